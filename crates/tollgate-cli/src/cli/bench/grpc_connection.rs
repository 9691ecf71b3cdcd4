//! gRPC: `ShouldRateLimit` of Envoy's rate limit service.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Uri, Version};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::connection::LoadPeer;
use super::http_connection::error_text;
use super::record::LoadOutcome;
use super::request::GrpcLoadRequest;
use crate::cli::human_output::printable;
use crate::data_plane::envoy::protobuf_reader::ProtobufFields;
use crate::data_plane::envoy::protobuf_writer::{write_bytes, write_delimited};

/// The method of the service.
const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Most bytes of a response.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Length of the prefix of a message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// A connection with one stream at a time.
pub(super) struct GrpcLoadConnection {
    sender: http2::SendRequest<GrpcRequestBody>,
    request: Arc<GrpcLoadRequest>,
    uri: Uri,
    authorization: Option<HeaderValue>,
}

impl GrpcLoadConnection {
    pub(super) async fn open(
        peer: &LoadPeer,
        request: Arc<GrpcLoadRequest>,
    ) -> Result<GrpcLoadConnection, String> {
        let stream = TokioIo::new(peer.connect().await?);
        let handshake = http2::handshake(TokioExecutor::new(), stream).await;
        let (sender, connection) = handshake.map_err(|error| error_text(&error))?;
        // Its errors reach the requests as well.
        tokio::spawn(connection);
        let uri = format!("http://{}{METHOD_PATH}", peer.target.authority).parse::<Uri>();
        let uri = uri.map_err(|error| error.to_string())?;
        Ok(GrpcLoadConnection { sender, request, uri, authorization: peer.authorization.clone() })
    }

    pub(super) async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub(super) async fn send(&mut self, key: &str) -> Result<LoadOutcome, String> {
        let mut call = Request::new(GrpcRequestBody(Some(framed(&message(&self.request, key)))));
        *call.method_mut() = Method::POST;
        *call.uri_mut() = self.uri.clone();
        *call.version_mut() = Version::HTTP_2;
        let headers = call.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let response = self.sender.send_request(call).await;
        let (head, body) = response.map_err(|error| error_text(&error))?.into_parts();
        let (bytes, trailers) = read_response(body).await?;
        if !head.status.is_success() {
            return Ok(LoadOutcome::Failed(format!("status {}", head.status.as_u16())));
        }
        // An error without a message has its status in the head.
        let fields = if trailers.contains_key("grpc-status") { &trailers } else { &head.headers };
        match status_problem(fields) {
            Some(problem) => Ok(LoadOutcome::Failed(problem)),
            None => decision(&bytes),
        }
    }
}

/// The body of a request: one message.
struct GrpcRequestBody(Option<Bytes>);

impl Body for GrpcRequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// The `RateLimitRequest` of this key.
fn message(request: &GrpcLoadRequest, key: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_bytes(&mut out, 1, request.domain.as_bytes());
    write_delimited(&mut out, 2, |descriptor| {
        for (name, value) in &request.entries {
            write_delimited(descriptor, 1, |entry| {
                write_bytes(entry, 1, name.as_bytes());
                write_bytes(entry, 2, value.with(key).as_bytes());
            });
        }
    });
    out
}

/// A message with its prefix: not compressed, and its length.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

async fn read_response(body: Incoming) -> Result<(Vec<u8>, HeaderMap), String> {
    let mut body = pin!(body);
    let (mut bytes, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|error| error_text(&error))?;
        match frame.into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
        if bytes.len() > RESPONSE_BYTES_MAX {
            return Err("the response is too long".into());
        }
    }
    Ok((bytes, trailers))
}

/// The problem that a status tells; `None` for 0.
fn status_problem(fields: &HeaderMap) -> Option<String> {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        "0" => None,
        "" => Some("the response has no grpc-status".into()),
        status => {
            Some(format!("grpc-status {}: {}", printable(status), printable(text("grpc-message"))))
        }
    }
}

/// The `overall_code` of a `RateLimitResponse` with its prefix.
fn decision(bytes: &[u8]) -> Result<LoadOutcome, String> {
    const NOT_A_RESPONSE: &str = "the response is not a RateLimitResponse";
    let message = bytes.get(PREFIX_BYTES..).ok_or(NOT_A_RESPONSE)?;
    let mut fields = ProtobufFields::new(message);
    while let Some((field, value)) = fields.next().map_err(|_| NOT_A_RESPONSE)? {
        if field == 1 {
            return match value.number() {
                Ok(1) => Ok(LoadOutcome::Allowed),
                Ok(2) => Ok(LoadOutcome::Refused),
                _ => Err(NOT_A_RESPONSE.into()),
            };
        }
    }
    Err(NOT_A_RESPONSE.into())
}

#[cfg(test)]
mod tests {
    use super::super::request::KeyedText;
    use super::*;
    use crate::data_plane::envoy::messages::RateLimitRequest;

    #[test]
    fn the_server_reads_what_is_written() {
        let entries =
            vec![("user".into(), KeyedText::new("a{key}")), ("b".into(), KeyedText::new(""))];
        let request = GrpcLoadRequest { domain: "d".into(), entries };
        let bytes = framed(&message(&request, "7"));
        assert_eq!(bytes[..5], [0, 0, 0, 0, bytes.len() as u8 - 5]);
        let read = RateLimitRequest::read(&bytes[5..]).unwrap();
        assert_eq!((&*read.domain, read.descriptors.len()), ("d", 1));
        let entries = read.descriptors[0].entries.iter();
        let entries: Vec<_> = entries.map(|entry| (&*entry.key, &*entry.value)).collect();
        assert_eq!(entries, [("user", "a7"), ("b", "")]);
    }

    #[test]
    fn decisions_are_yes_or_no() {
        assert_eq!(decision(&[0, 0, 0, 0, 2, 8, 1]), Ok(LoadOutcome::Allowed));
        assert_eq!(decision(&[0, 0, 0, 0, 2, 8, 2]), Ok(LoadOutcome::Refused));
        for bytes in [&[][..], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 8, 0], &[0, 0, 0, 0, 2, 10, 9]] {
            assert!(decision(bytes).is_err(), "{bytes:?}");
        }
    }
}
