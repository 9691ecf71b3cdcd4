//! `GET /api/events`: what happens, as server-sent events.

mod hub;
mod publisher;
#[cfg(test)]
mod tests;
mod tick;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Method, Response, StatusCode, request};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use crate::listeners::response_body::ResponseBody;
use crate::reply;
use hub::{STREAMS_MAX, StreamRefusal};
pub(crate) use publisher::LiveTraffic;

/// Header with which a client continues after an event.
static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

impl ControlPlane {
    /// Opens a stream of events.
    pub(super) fn events(
        &self,
        head: &request::Parts,
    ) -> Result<Response<ResponseBody>, QueryError> {
        QueryFields::parse(head.uri.query(), &[])?;
        let mut response = Response::default();
        if head.method != Method::HEAD {
            match self.traffic.events.open(last_id(&head.headers)) {
                Ok(stream) => *response.body_mut() = ResponseBody::streamed(Box::new(stream)),
                Err(refusal) => return Ok(refused(refusal)),
            }
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // nginx would otherwise collect events before it forwards them.
        let buffering = HeaderName::from_static("x-accel-buffering");
        headers.insert(buffering, HeaderValue::from_static("no"));
        Ok(response)
    }
}

/// The id after which the client continues.
fn last_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(&LAST_EVENT_ID).and_then(|id| id.to_str().ok())
}

fn refused(refusal: StreamRefusal) -> Response<ResponseBody> {
    let message = match refusal {
        StreamRefusal::TooMany => format!(
            "{STREAMS_MAX} event streams are open, and no more may be: close one, such as a dashboard in \
             another tab."
        ),
        StreamRefusal::Stopping => "The server is stopping.".into(),
    };
    let mut response = reply::error(StatusCode::SERVICE_UNAVAILABLE, &message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}
