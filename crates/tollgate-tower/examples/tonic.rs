//! A gRPC service, the standard health service, with ten calls a second for each client. Who asks more
//! often gets `RESOURCE_EXHAUSTED`, and is told when to come back.
//!
//! ```text
//! cargo run -p tollgate-tower --example tonic
//! ```

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use tokio::net::TcpListener;
use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyedGate, RateLimitLayer};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

type ServeError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ServeError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let server = tokio::spawn(serve(listener));

    let mut client = HealthClient::new(Channel::from_shared(address)?.connect().await?);
    for call in 1..=12 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => println!("call {call}: serving"),
            Err(status) => println!("call {call}: {:?}, {}", status.code(), status.message()),
        }
    }
    server.abort();
    Ok(())
}

pub(crate) async fn serve(listener: TcpListener) -> Result<(), ServeError> {
    let limit = Limit::per_second(10).burst(10).name("health").build()?;
    let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(100_000)), [limit])?;
    let layer = RateLimitLayer::new(gate).peer(peer);

    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

/// Where tonic has the address at the other end of the connection.
fn peer(head: &Parts) -> Option<IpAddr> {
    head.extensions.get::<TcpConnectInfo>()?.remote_addr().map(|address| address.ip())
}
