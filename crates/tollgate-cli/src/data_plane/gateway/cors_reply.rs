//! The fields that let a web page read a response which the gateway makes itself (CORS). Upstreams write their own.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};
use tollgate_rules::CorsSettings;

/// The fields that pages may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, \
     x-ratelimit-reset, x-request-id",
);

/// The permission of one request's page to read the response.
#[derive(Debug)]
pub(super) struct CorsReply {
    /// `None` if the page may not read it.
    allowed: Option<HeaderValue>,
    any_origin: bool,
    expose: bool,
    credentials: bool,
}

impl CorsReply {
    /// The permission under these settings; `None` if the request does not come from a web page.
    pub(super) fn of(settings: &CorsSettings, request: &HeaderMap) -> Option<CorsReply> {
        let origin = request.get(ORIGIN)?;
        let is_allowed = origin.to_str().is_ok_and(|origin| settings.admits(origin));
        let allowed =
            if settings.any_origin { HeaderValue::from_static("*") } else { origin.clone() };
        Some(CorsReply {
            allowed: is_allowed.then_some(allowed),
            any_origin: settings.any_origin,
            expose: settings.expose,
            credentials: settings.credentials,
        })
    }

    /// Writes the fields of the response.
    pub(super) fn write(self, response: &mut HeaderMap) {
        if !self.any_origin {
            // Another page gets another response.
            response.append(VARY, HeaderValue::from_static("origin"));
        }
        let Some(allowed) = self.allowed else { return };
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.expose {
            response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        if self.credentials {
            let yes = HeaderValue::from_static("true");
            response.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
    }
}
