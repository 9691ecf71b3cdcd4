//! Clients of the grpc listener: tonic with Envoy's published messages, and one that sends raw bytes.

use std::net::SocketAddr;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use h2::client::{self, SendRequest};
use http::{HeaderMap, Method, Request};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::harness::DEADLINE;

pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A tonic client on a connection of its own.
pub(crate) struct RlsTestClient {
    pub(crate) runtime: Runtime,
    pub(crate) client: RateLimitServiceClient<Channel>,
}

impl RlsTestClient {
    pub(crate) fn connect(address: SocketAddr) -> RlsTestClient {
        let runtime = current_thread_runtime();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = runtime.block_on(endpoint.timeout(DEADLINE).connect());
        let client = RateLimitServiceClient::new(channel.expect("the listener is open"));
        RlsTestClient { runtime, client }
    }

    /// Makes one call.
    pub(crate) fn call(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let called = self.client.should_rate_limit(request);
        self.runtime.block_on(called).map(tonic::Response::into_inner)
    }

    /// Makes one call that must succeed.
    pub(crate) fn ask(&mut self, request: RateLimitRequest) -> RlsAnswer {
        RlsAnswer(self.call(request).expect("an answer"))
    }
}

/// A request: each descriptor is a list of entries.
pub(crate) fn rls_request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The response to a call.
#[derive(Debug)]
pub(crate) struct RlsAnswer(pub(crate) RateLimitResponse);

impl RlsAnswer {
    /// Code of the request, and code and remaining units of each descriptor: `OVER: OK 9, OVER 0`.
    pub(crate) fn short(&self) -> String {
        let each: Vec<_> = self.0.statuses.iter().map(short).collect();
        format!("{}: {}", code_word(self.0.overall_code), each.join(", "))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.response_headers_to_add.iter().filter(|field| field.key == name);
        let HeaderValue { value, .. } = fields.next()?;
        assert!(fields.next().is_none(), "{name} appears twice: {self:?}");
        Some(value)
    }
}

fn short(status: &DescriptorStatus) -> String {
    let limit = status.current_limit.is_some() || status.limit_remaining > 0;
    let left = if limit { format!(" {}", status.limit_remaining) } else { String::new() };
    format!("{}{left}", code_word(status.code))
}

fn code_word(code: i32) -> &'static str {
    match code {
        1 => "OK",
        2 => "OVER",
        _ => panic!("the code {code} must not be sent"),
    }
}

pub(crate) fn current_thread_runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// An HTTP/2 client that sends raw bytes.
pub(crate) struct RawGrpcClient {
    sender: SendRequest<Bytes>,
}

/// A response, with headers and trailers in one list.
#[derive(Debug)]
pub(crate) struct RawGrpcAnswer {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl RawGrpcAnswer {
    pub(crate) fn code(&self) -> &str {
        self.field("grpc-status")
    }

    pub(crate) fn field(&self, name: &str) -> &str {
        let value = self.fields.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        value.to_str().expect("printable")
    }
}

impl RawGrpcClient {
    pub(crate) async fn connect(address: SocketAddr) -> RawGrpcClient {
        let stream = TcpStream::connect(address).await.expect("the listener is open");
        // Room for the answers to a thousand calls at once.
        let mut builder = client::Builder::new();
        builder.initial_connection_window_size(1 << 20);
        let (sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        RawGrpcClient { sender: sender.ready().await.expect("a connection") }
    }

    /// Number of concurrent calls that the server allows on this connection.
    pub(crate) fn calls_max(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// Makes a call with these header fields besides the usual ones; an empty value omits a field.
    pub(crate) async fn call(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<RawGrpcAnswer, h2::Error> {
        let request = call_to(path, fields);
        timeout(DEADLINE, self.send(request, body)).await.expect("an answer in time")
    }

    pub(crate) async fn send(
        &self,
        request: Request<()>,
        body: Vec<u8>,
    ) -> Result<RawGrpcAnswer, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut sending) = sender.send_request(request, false)?;
        sending.send_data(body.into(), true)?;
        read_whole_answer(response).await
    }

    /// Makes a call whose body begins with these bytes and never ends.
    pub(crate) async fn call_without_end(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        begun: Vec<u8>,
    ) -> Result<RawGrpcAnswer, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut sending) = sender.send_request(call_to(path, fields), false)?;
        sending.send_data(begun.into(), false)?;
        read_whole_answer(response).await
    }
}

/// The head of a call with these header fields besides the usual ones.
fn call_to(path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(Method::POST);
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        if !fields.iter().any(|(other, _)| *other == name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    request.uri(format!("http://localhost{path}")).body(()).expect("a request")
}

/// Reads a whole response.
async fn read_whole_answer(response: client::ResponseFuture) -> Result<RawGrpcAnswer, h2::Error> {
    let (head, mut coming) = response.await?.into_parts();
    let mut answer =
        RawGrpcAnswer { status: head.status.as_u16(), fields: head.headers, body: Vec::new() };
    while let Some(data) = coming.data().await {
        let data = data?;
        coming.flow_control().release_capacity(data.len())?;
        answer.body.extend_from_slice(&data);
    }
    if let Some(trailers) = coming.trailers().await? {
        answer.fields.extend(trailers);
    }
    Ok(answer)
}

/// A message in its frame.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0], &length.to_be_bytes()[..], message].concat()
}
