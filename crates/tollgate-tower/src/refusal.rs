//! What a refused client is told: 429 with a problem document, or `RESOURCE_EXHAUSTED` where it speaks gRPC;
//! 503 and `UNAVAILABLE` where it is not the client's doing, because the store does not answer.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::ProblemDetails;

use crate::decision::GateDecision;
use crate::grpc;
use crate::layer::LayerConfig;

/// The response to a refused request.
pub type RefusalFn = dyn Fn(&RefusedRequest<'_>) -> Response<Bytes> + Send + Sync;

/// A request that is refused, for whoever answers it in their own way.
///
/// ```
/// use http::{HeaderValue, Response};
/// use tollgate_tower::RefusedRequest;
///
/// /// As always, and in a language that people here read.
/// fn refuse(refused: &RefusedRequest<'_>) -> Response<bytes::Bytes> {
///     let mut response = refused.response();
///     response.headers_mut().insert("content-language", HeaderValue::from_static("en"));
///     response
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'a> {
    decision: &'a GateDecision,
    head: &'a request::Parts,
}

impl RefusedRequest<'_> {
    /// Why, and when it would pass.
    pub fn decision(&self) -> &GateDecision {
        self.decision
    }

    /// The request.
    pub fn head(&self) -> &request::Parts {
        self.head
    }

    /// Whether the client speaks gRPC, and would take a plain response for a failure.
    pub fn is_grpc(&self) -> bool {
        grpc::content_type(self.head).is_some()
    }

    /// The response that is sent if nobody says otherwise.
    pub fn response(&self) -> Response<Bytes> {
        let mut response = match grpc::content_type(self.head) {
            Some(content_type) => grpc::refused(self.decision, content_type),
            None => problem(self.decision.status(), self.decision.problem().clone()),
        };
        self.decision.write_to(response.headers_mut(), true);
        response
    }
}

pub(crate) fn refuse(
    config: &LayerConfig,
    decision: &GateDecision,
    head: &request::Parts,
) -> Response<Bytes> {
    let refused = RefusedRequest { decision, head };
    let mut response = match &config.refusal {
        None => refused.response(),
        Some(refusal) => {
            let mut response = refusal(&refused);
            decision.write_to(response.headers_mut(), false);
            response
        }
    };
    response.extensions_mut().insert(decision.clone());
    response
}

/// A header that says who is calling says two things: either may be the client's choice.
#[cold]
pub(crate) fn ambiguous_header(header: &HeaderName, head: &request::Parts) -> Response<Bytes> {
    let detail = format!("{header} stands twice, with different values: send it once.");
    let mut response = match grpc::content_type(head) {
        Some(content_type) => grpc::invalid(&detail, content_type),
        None => {
            // Names of header fields need no escaping.
            let text = format!(r#"{{"title":"Bad Request","status":400,"detail":"{detail}"}}"#);
            problem(StatusCode::BAD_REQUEST, text.into())
        }
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn problem(status: StatusCode, text: Bytes) -> Response<Bytes> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = const { HeaderValue::from_static(ProblemDetails::CONTENT_TYPE) };
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
