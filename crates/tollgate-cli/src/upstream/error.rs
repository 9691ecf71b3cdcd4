//! Errors of forwarding: a closed set, with a status for clients and a code for metrics and logs.

use http::StatusCode;

/// The reason why an upstream did not answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// The connection was refused or could not be opened.
    ConnectFailed,
    /// The connection was not opened in time.
    ConnectTimeout,
    /// The TLS handshake failed: the certificate is not trusted, or there is no common protocol.
    TlsFailed,
    /// The upstream has no server.
    NoUpstream,
    /// The upstream closed the connection before the head of its response.
    Reset,
    /// The response is not valid HTTP.
    InvalidResponse,
    /// The head of the response did not come in time.
    ResponseTimeout,
    /// All connections to the upstream are busy.
    UpstreamBusy,
    /// The client stopped sending its body, or sent it too slowly.
    RequestBody,
    /// The server answered HTTP/2 by another protocol.
    LacksHttp2,
}

impl ForwardError {
    /// The status of the response to the client.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            ForwardError::ConnectFailed
            | ForwardError::TlsFailed
            | ForwardError::Reset
            | ForwardError::LacksHttp2
            | ForwardError::InvalidResponse => StatusCode::BAD_GATEWAY,
            ForwardError::ConnectTimeout | ForwardError::ResponseTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            ForwardError::NoUpstream | ForwardError::UpstreamBusy => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ForwardError::RequestBody => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// The code in metrics, logs and problem documents.
    pub(crate) fn code(self) -> &'static str {
        match self {
            ForwardError::ConnectFailed => "connect_failed",
            ForwardError::ConnectTimeout => "connect_timeout",
            ForwardError::TlsFailed => "tls_failed",
            ForwardError::NoUpstream => "no_upstream",
            ForwardError::Reset => "reset",
            ForwardError::InvalidResponse => "invalid_response",
            ForwardError::ResponseTimeout => "response_timeout",
            ForwardError::UpstreamBusy => "upstream_busy",
            ForwardError::RequestBody => "request_body",
            ForwardError::LacksHttp2 => "lacks_http2",
        }
    }

    /// Returns true if the server is to blame.
    pub(super) fn is_failure_of_server(self) -> bool {
        match self {
            ForwardError::ConnectFailed
            | ForwardError::ConnectTimeout
            | ForwardError::TlsFailed
            | ForwardError::Reset
            | ForwardError::InvalidResponse
            | ForwardError::LacksHttp2
            | ForwardError::ResponseTimeout => true,
            ForwardError::NoUpstream | ForwardError::UpstreamBusy | ForwardError::RequestBody => {
                false
            }
        }
    }

    /// A sentence for people.
    pub(crate) fn message(self) -> &'static str {
        match self {
            ForwardError::ConnectFailed => "The upstream cannot be reached.",
            ForwardError::ConnectTimeout => "The upstream did not accept a connection in time.",
            ForwardError::TlsFailed => "The upstream cannot be reached by TLS.",
            ForwardError::NoUpstream => "The upstream has no server.",
            ForwardError::Reset => "The upstream closed the connection before it answered.",
            ForwardError::InvalidResponse => "The upstream sent an invalid response.",
            ForwardError::ResponseTimeout => "The upstream did not answer in time.",
            ForwardError::UpstreamBusy => "All connections to the upstream are busy.",
            ForwardError::RequestBody => "The body of the request did not arrive.",
            ForwardError::LacksHttp2 => "The upstream does not speak HTTP/2.",
        }
    }
}

impl From<hyper::Error> for ForwardError {
    fn from(error: hyper::Error) -> ForwardError {
        if error.is_parse() {
            ForwardError::InvalidResponse
        } else if error.is_user() {
            // The body of the request failed: hyper calls it the user's.
            ForwardError::RequestBody
        } else {
            ForwardError::Reset
        }
    }
}
