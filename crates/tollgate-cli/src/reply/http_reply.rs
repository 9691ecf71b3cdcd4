//! The reply of an endpoint, before it is a response: rendered for hyper, or as the bytes of HTTP/1.1.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tollgate::Micros;
use tollgate::headers::RateLimitFields;

use crate::listeners::response_body::ResponseBody;

/// A reply.
pub(crate) enum HttpReply {
    /// The answer to a check.
    Decision(DecisionReply),
    /// Any other, such as an error.
    Other(Response<ResponseBody>),
}

/// The answer to a check.
pub(crate) struct DecisionReply {
    pub(crate) status: StatusCode,
    /// Media type of the body; not sent if the body is empty.
    pub(crate) media_type: Cow<'static, str>,
    pub(crate) fields: RateLimitFields,
    /// Status that a proxy should send instead of the one it understands.
    pub(crate) meant_status: Option<StatusCode>,
    pub(crate) body: Bytes,
    /// Instant of the decision.
    pub(crate) at: Micros,
}

const MEANT_STATUS: &str = "x-tollgate-status";

impl HttpReply {
    /// The reply as a response.
    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        match self {
            HttpReply::Decision(reply) => reply.into_response(),
            HttpReply::Other(response) => response,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            HttpReply::Decision(reply) => reply.status,
            HttpReply::Other(response) => response.status(),
        }
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        match self {
            HttpReply::Decision(reply) => &reply.body,
            HttpReply::Other(response) => response.body().bytes(),
        }
    }

    /// Instant of the decision, if there was one.
    pub(crate) fn decided_at(&self) -> Option<Micros> {
        match self {
            HttpReply::Decision(reply) => Some(reply.at),
            HttpReply::Other(_) => None,
        }
    }

    /// Writes status line, fields and body as hyper does.
    pub(crate) fn write_http1(&self, out: &mut Vec<u8>, date: &[u8]) {
        let status = self.status();
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
        out.extend_from_slice(b"\r\n");
        match self {
            HttpReply::Decision(reply) => reply.write_fields(out),
            HttpReply::Other(response) => {
                for (name, value) in response.headers() {
                    write_field(out, name.as_str(), value.as_bytes());
                }
            }
        }
        let body = self.body();
        let mut digits = itoa::Buffer::new();
        write_field(out, "content-length", digits.format(body.len()).as_bytes());
        write_field(out, "date", date);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
    }
}

impl From<Response<ResponseBody>> for HttpReply {
    fn from(response: Response<ResponseBody>) -> HttpReply {
        HttpReply::Other(response)
    }
}

impl DecisionReply {
    /// The reply as a response.
    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        let DecisionReply { status, media_type, fields, meant_status, body, at: _ } = self;
        let media_type = match media_type {
            Cow::Borrowed(text) => Some(HeaderValue::from_static(text)),
            Cow::Owned(text) => HeaderValue::try_from(text).ok(),
        };
        let kind = media_type.filter(|_| !body.is_empty()).map(|kind| (CONTENT_TYPE, kind));
        let mut response = Response::new(ResponseBody::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.reserve(fields.len() + 2);
        for (name, value) in kind.into_iter().chain(fields.iter()) {
            headers.insert(name, value);
        }
        if let Some(meant) = meant_status {
            headers.insert(const { HeaderName::from_static(MEANT_STATUS) }, meant.as_u16().into());
        }
        response
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        if !self.body.is_empty() {
            write_field(out, "content-type", self.media_type.as_bytes());
        }
        for (name, value) in self.fields.texts() {
            write_field(out, name, value);
        }
        if let Some(meant) = self.meant_status {
            write_field(out, MEANT_STATUS, meant.as_str().as_bytes());
        }
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
