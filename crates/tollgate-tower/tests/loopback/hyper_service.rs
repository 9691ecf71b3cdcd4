//! hyper without a framework: the layer around a function, HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyedGate, PeerAddr, RateLimitLayer};
use tower::{Layer, ServiceBuilder, service_fn};

use crate::loopback::client::{LoopbackClient, listen, run};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[test]
fn a_function_behind_the_layer() {
    run(async {
        let limit = Limit::per_hour(3).burst(3).name("all").build().expect("a limit");
        let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(100)), [limit]).expect("a gate");
        let limited = RateLimitLayer::new(gate).layer(service_fn(hello));
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let service = ServiceBuilder::new()
                    .map_request(move |mut request: Request<Incoming>| {
                        request.extensions_mut().insert(PeerAddr(peer.ip()));
                        request
                    })
                    .service(limited.clone());
                tokio::spawn(async move {
                    let service = TowerToHyperService::new(service);
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let mut statuses = Vec::new();
        for _ in 0..4 {
            // A connection each: they are of one address and share its limit.
            let response = LoopbackClient::connect(address).await.get("/").await;
            statuses.push(response.status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 429]);
    });
}
