//! One call with a complete client, to check that a server does the work that is measured.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

use testkit::traffic::SHOULD_RATE_LIMIT;

use crate::envoy::BenchRateLimitResponse;
use crate::process::START_MAX;

/// Sends one message with its gRPC prefix and returns the answer; an error unless the call ends with status 0.
pub fn check(address: SocketAddr, message: &[u8]) -> Result<BenchRateLimitResponse, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let message = Bytes::copy_from_slice(message);
    runtime.block_on(async {
        match timeout(START_MAX, call(address, message)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer for {} s", START_MAX.as_secs())),
        }
    })
}

async fn call(address: SocketAddr, message: Bytes) -> Result<BenchRateLimitResponse, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(http2_error)?;
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{address}{SHOULD_RATE_LIMIT}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a valid request");
    let mut client = client.ready().await.map_err(http2_error)?;
    let (response, mut body) = client.send_request(request, false).map_err(http2_error)?;
    body.send_data(message, true).map_err(http2_error)?;
    let response = response.await.map_err(http2_error)?;
    status(response.headers())?;
    let mut body = response.into_body();
    let mut received = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(http2_error)?;
        let _ = body.flow_control().release_capacity(data.len());
        received.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.map_err(http2_error)?.unwrap_or_default();
    if !trailers.contains_key("grpc-status") {
        return Err("the answer has no grpc-status behind it".into());
    }
    status(&trailers)?;
    let message = received.get(5..).ok_or("the answer has no message")?;
    BenchRateLimitResponse::decode(message).map_err(|error| format!("not the answer: {error}"))
}

/// Checks that the gRPC status is missing or 0.
fn status(fields: &HeaderMap) -> Result<(), String> {
    match fields.get("grpc-status") {
        Some(status) if status != "0" => {
            Err(format!("grpc-status {status:?}, {:?}", fields.get("grpc-message")))
        }
        _ => Ok(()),
    }
}

fn http2_error(error: h2::Error) -> String {
    format!("HTTP/2: {error}")
}
