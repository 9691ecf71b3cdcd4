//! HTTP/1.1: checks, and requests for a URL.

use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::connection::LoadPeer;
use super::record::LoadOutcome;
use super::request::HttpLoadRequest;
use crate::cli::human_output::printable;

/// Bytes of an error's body that are kept for its message.
const ERROR_BYTES_MAX: usize = 1_024;

/// A connection that stays open.
pub(super) struct HttpLoadConnection {
    sender: http1::SendRequest<String>,
    request: Arc<HttpLoadRequest>,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
}

impl HttpLoadConnection {
    pub(super) async fn open(
        peer: &LoadPeer,
        request: Arc<HttpLoadRequest>,
    ) -> Result<HttpLoadConnection, String> {
        let handshake = http1::handshake(TokioIo::new(peer.connect().await?)).await;
        let (sender, connection) = handshake.map_err(|error| error_text(&error))?;
        // Its errors reach the requests as well.
        tokio::spawn(connection);
        let host = HeaderValue::from_str(&peer.target.authority);
        let host = host.map_err(|error| error.to_string())?;
        Ok(HttpLoadConnection { sender, request, host, authorization: peer.authorization.clone() })
    }

    pub(super) async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub(super) async fn send(&mut self, key: &str) -> Result<LoadOutcome, String> {
        let request = self.http_request(key).map_err(|error| error.to_string())?;
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

    fn http_request(&self, key: &str) -> http::Result<Request<String>> {
        let request = &self.request;
        let mut head = Request::builder()
            .method(&request.method)
            .uri(request.path.with(key))
            .header(HOST, self.host.clone());
        if let Some(authorization) = &self.authorization {
            head = head.header(AUTHORIZATION, authorization.clone());
        }
        for (name, value) in &request.headers {
            head = head.header(name, HeaderValue::try_from(value.with(key))?);
        }
        head.body(request.body.with(key))
    }
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
