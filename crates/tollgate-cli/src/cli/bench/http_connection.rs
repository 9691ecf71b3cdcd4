//! HTTP/1.1: checks, and requests for a URL.

use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;

use http::header::{HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::connection::LoadPeer;
use super::record::LoadOutcome;
use crate::cli::human_output::printable;

/// Bytes of an error's body that are kept for its message.
const ERROR_BYTES_MAX: usize = 1_024;

/// A connection that stays open.
pub(super) struct HttpLoadConnection {
    sender: http1::SendRequest<String>,
}

impl HttpLoadConnection {
    pub(super) async fn open(peer: &LoadPeer) -> Result<HttpLoadConnection, String> {
        let stream = TcpStream::connect(peer.address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| error_text(&error))?;
        // Its errors reach the requests as well.
        tokio::spawn(connection);
        Ok(HttpLoadConnection { sender })
    }

    pub(super) async fn send(&mut self, peer: &LoadPeer, key: &str) -> Result<LoadOutcome, String> {
        // The server may close a connection between two requests; that is not an error.
        if self.sender.ready().await.is_err() {
            *self = HttpLoadConnection::open(peer).await?;
        }
        let request = http_request(peer, key).map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await;
        let response = response.map_err(|error| error_text(&error))?;
        let status = response.status();
        let body = drain(response.into_body()).await?;
        Ok(match status {
            StatusCode::TOO_MANY_REQUESTS => LoadOutcome::Refused,
            status if status.as_u16() < 400 => LoadOutcome::Allowed,
            status => LoadOutcome::Failed(status_text(status, &body)),
        })
    }
}

fn http_request(peer: &LoadPeer, key: &str) -> http::Result<Request<String>> {
    let request = &peer.request;
    let mut head = Request::builder()
        .method(&request.method)
        .uri(request.path.with(key))
        .header(HOST, HeaderValue::from_str(&peer.target.authority)?);
    for (name, value) in &request.headers {
        head = head.header(name, HeaderValue::try_from(value.with(key))?);
    }
    head.body(request.body.with(key))
}

/// Reads a body to its end and returns its beginning.
async fn drain(body: Incoming) -> Result<Vec<u8>, String> {
    let mut body = pin!(body);
    let mut beginning = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let data = frame.map_err(|error| error_text(&error))?.into_data().unwrap_or_default();
        let room = ERROR_BYTES_MAX - beginning.len();
        beginning.extend_from_slice(&data[..data.len().min(room)]);
    }
    Ok(beginning)
}

/// The status of an error and the server's message, if there is one.
fn status_text(status: StatusCode, body: &[u8]) -> String {
    let document = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    match document["message"].as_str() {
        Some(message) => format!("status {}: {}", status.as_u16(), printable(message)),
        None => format!("status {}", status.as_u16()),
    }
}

/// The error of the connection behind an error of HTTP.
pub(super) fn error_text(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
