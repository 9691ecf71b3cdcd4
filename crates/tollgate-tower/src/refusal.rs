//! Responses to refused requests: 429 with a problem document, or `RESOURCE_EXHAUSTED` for gRPC clients. While the
//! store is unavailable they are 503 and `UNAVAILABLE`, because the client did nothing wrong.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Response, StatusCode, request};
use tollgate::headers::ProblemDetails;

use crate::body_host::BodyReadFailure;
use crate::decision::GateDecision;
use crate::grpc;
use crate::layer::LayerConfig;

/// A function that makes the response to a refused request.
pub type RefusalFn = dyn Fn(&RefusedRequest<'_>) -> Response<Bytes> + Send + Sync;

/// A refused request, for a refusal function of your own.
///
/// ```
/// use http::{HeaderValue, Response};
/// use tollgate_tower::RefusedRequest;
///
/// /// The default response, marked as English.
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
    /// The decision: the reason, and the wait after which the request would be allowed.
    pub fn decision(&self) -> &GateDecision {
        self.decision
    }

    /// The head of the request.
    pub fn head(&self) -> &request::Parts {
        self.head
    }

    /// Returns true if the client speaks gRPC, and would treat a plain HTTP response as a protocol error.
    pub fn is_grpc(&self) -> bool {
        grpc::content_type(self.head).is_some()
    }

    /// The default response.
    pub fn response(&self) -> Response<Bytes> {
        let mut response = match grpc::content_type(self.head) {
            Some(content_type) => grpc::refused(self.decision, content_type),
            None => match self.decision.custom_refusal() {
                Some(custom) => custom.response(),
                None => problem(self.decision.status(), self.decision.problem().clone()),
            },
        };
        self.decision.write_to(response.headers_mut(), true);
        response
    }
}

/// A response to refused clients that a gate gives instead of a problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomRefusal {
    /// The status.
    pub status: StatusCode,
    /// The media type of the body.
    pub content_type: HeaderValue,
    /// The body.
    pub body: Bytes,
}

impl CustomRefusal {
    fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body.clone());
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
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

/// The response to a request whose identifying header has two different values, or one that servers mistake for it:
/// either may be forged.
#[cold]
pub(crate) fn ambiguous_header(header: &HeaderName, head: &request::Parts) -> Response<Bytes> {
    let is_single = head.headers.get_all(header).iter().nth(1).is_none();
    let detail = match is_single && header != HOST {
        true => format!("servers mistake {header} for another header field: leave it out."),
        false => format!("{header} stands twice, with different values: send it once."),
    };
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

/// The response to a request whose body was not read.
#[cold]
pub(crate) fn unread(reason: BodyReadFailure) -> Response<Bytes> {
    let (status, detail) = (reason.status(), reason.message());
    let (title, code) = (status.canonical_reason().unwrap_or_default(), status.as_u16());
    // The texts need no escaping.
    let text = format!(r#"{{"title":"{title}","status":{code},"detail":"{detail}"}}"#);
    let mut response = problem(status, text.into());
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
