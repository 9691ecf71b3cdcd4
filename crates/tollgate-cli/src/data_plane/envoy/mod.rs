//! Envoy's rate limit service: the grpc listener.
//!
//! A gRPC call is an HTTP/2 request with a frame around its message and a status code in the trailers. There are only
//! two methods, so they run on the HTTP connections of the other listeners: `call.rs` reads calls and builds replies,
//! `service.rs` and `health.rs` are the two services.

pub(crate) mod code;
pub(super) mod json;
pub(crate) mod messages;
pub(crate) mod protobuf_reader;
pub(crate) mod protobuf_writer;
pub(crate) mod response;

mod call;
mod deadline;
mod frame;
mod health;
mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::{Response, request};
use tollgate_rules::expect_ready;

use super::DataContext;
use super::check_service::CheckService;
use super::facts::escape_non_utf8;
use crate::listeners::handler::{Handler, ReceivedRequest, RequestAdmission, RoutedRequest};
use crate::listeners::request_body::BodyError;
use crate::listeners::response_body::ResponseBody;
use crate::listeners::service::ListenerService;
use crate::listeners::tokens::Tokens;
use call::{GrpcError, GrpcResult};
use code::{GrpcCode, GrpcCodeCounters};
use messages::{HealthCheckRequest, RateLimitRequest};

/// The name of Envoy's service.
const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Answers on the grpc listener.
struct EnvoyListener {
    checks: CheckService,
    /// Accepted tokens; `None` admits every client that reaches the listener.
    tokens: Option<Arc<Tokens>>,
    /// Set while the server stops; health checks report it.
    stopping: Arc<AtomicBool>,
    codes: Arc<GrpcCodeCounters>,
}

/// Builds the grpc listener.
pub(crate) fn listener(context: &DataContext<'_>) -> ListenerService {
    let codes = Arc::<GrpcCodeCounters>::default();
    let listener = EnvoyListener {
        checks: context.checks(),
        tokens: context.tokens.clone(),
        stopping: context.stopping.clone(),
        codes: codes.clone(),
    };
    context.http_service(listener).with_metrics(codes)
}

/// A gRPC method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcMethod {
    ShouldRateLimit,
    HealthCheck,
}

impl GrpcMethod {
    fn from_path(path: &str) -> Option<GrpcMethod> {
        Some(match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                GrpcMethod::ShouldRateLimit
            }
            "/grpc.health.v1.Health/Check" => GrpcMethod::HealthCheck,
            _ => return None,
        })
    }
}

const NO_SUCH_METHOD: &str = "There is no such method. There are: \
    envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit, grpc.health.v1.Health/Check.";

const TOKEN_REQUIRED: &str =
    "This listener requires a token: send the metadata `authorization: Bearer <token>`.";

impl Handler for EnvoyListener {
    /// Envoy sends the calls of all its requests over one connection per thread, and opens more when these are full.
    /// Streams that a client opens beyond this bound, before it has received it, are refused and may cost it the
    /// connection, so the bound is not small. The allowance for bodies bounds the memory of all calls.
    const STREAMS_MAX: u32 = 1_000;

    /// HTTP/2 only: gRPC needs it.
    const VERSIONS: &'static [&'static str] = &["h2"];

    type Endpoint = GrpcMethod;

    fn admit(&self, head: &request::Parts, _: SocketAddr) -> RequestAdmission<GrpcMethod> {
        if let Some(refusal) = call::reject_non_grpc(head) {
            return RequestAdmission::Answered(Box::new(refusal));
        }
        match self.find_method(head) {
            Ok((endpoint, deadline)) => RequestAdmission::Admitted(RoutedRequest {
                endpoint,
                body_bytes_max: Some(call::BODY_BYTES_MAX),
                deadline,
            }),
            Err(failed) => {
                RequestAdmission::Answered(Box::new(call::reply(Err(failed), &self.codes)))
            }
        }
    }

    fn answer_at_once(
        &self,
        method: GrpcMethod,
        request: &mut ReceivedRequest<'_>,
    ) -> Option<Response<ResponseBody>> {
        self.checks.gatekeeper.answers_at_once().then(|| {
            let outcome = expect_ready(self.call(method, request.body));
            call::reply(outcome, &self.codes)
        })
    }

    async fn answer_by(
        &self,
        method: GrpcMethod,
        request: ReceivedRequest<'_>,
    ) -> Response<ResponseBody> {
        call::reply(self.call(method, request.body).await, &self.codes)
    }

    fn unreceived(
        &self,
        admitted: &RoutedRequest<GrpcMethod>,
        problem: &BodyError,
    ) -> Response<ResponseBody> {
        let outcome = self.refuse_oversized(admitted.endpoint, call::body_error(problem));
        call::reply(outcome, &self.codes)
    }

    fn panicked(&self) -> Response<ResponseBody> {
        call::reply(Err(call::INTERNAL_ERROR), &self.codes)
    }
}

impl EnvoyListener {
    /// The method of an admitted call, and its deadline.
    fn find_method(
        &self,
        head: &request::Parts,
    ) -> Result<(GrpcMethod, Option<Duration>), GrpcError> {
        let timeout = deadline::grpc_timeout(&head.headers).map_err(|()| call::INVALID_TIMEOUT)?;
        if self.tokens.as_ref().is_some_and(|tokens| tokens.admit(&head.headers).is_none()) {
            return Err(GrpcError::new(GrpcCode::Unauthenticated, TOKEN_REQUIRED));
        }
        let method = GrpcMethod::from_path(head.uri.path())
            .ok_or(GrpcError::new(GrpcCode::Unimplemented, NO_SUCH_METHOD))?;
        Ok((method, timeout))
    }

    /// Calls a method with the body of a call.
    async fn call(&self, method: GrpcMethod, body: &[u8]) -> GrpcResult {
        let message = match call::message(body) {
            Ok(message) => message,
            Err(failed) => return self.refuse_oversized(method, failed),
        };
        match method {
            GrpcMethod::ShouldRateLimit => {
                let request =
                    RateLimitRequest::read(message).map_err(|_| call::UNREADABLE_MESSAGE)?;
                service::answer(&self.checks, &request).await
            }
            GrpcMethod::HealthCheck => {
                let request =
                    HealthCheckRequest::read(message).map_err(|_| call::UNREADABLE_MESSAGE)?;
                let stopping = self.stopping.load(Ordering::Relaxed);
                health::check(&request.service, stopping)
                    .ok_or(GrpcError::new(GrpcCode::NotFound, NO_SUCH_SERVICE))
            }
        }
    }

    /// The outcome of a call without a message. A check whose message is too long is refused.
    fn refuse_oversized(&self, method: GrpcMethod, failed: GrpcError) -> GrpcResult {
        if failed == call::MESSAGE_TOO_LONG && method == GrpcMethod::ShouldRateLimit {
            return Ok(service::refuse_oversized_message(&self.checks));
        }
        Err(failed)
    }
}

const NO_SUCH_SERVICE: &str = "There is no such service: use the empty name, \
    \"ratelimit\" or \"envoy.service.ratelimit.v3.RateLimitService\".";
