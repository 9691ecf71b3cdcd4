//! The HTTP requests of the generator.

use testkit::traffic;
use tollgate_bench::generator::requests::EncodedRequests;

/// Checks in a batch.
pub(crate) const BATCH: usize = 64;

/// `GET /v1/forward-auth`. The same bytes go to bare hyper and to nginx.
pub(crate) fn forward_auth() -> EncodedRequests {
    EncodedRequests::generate(1, |users| traffic::forward_auth(users[0]))
}

/// The shortest request that names a caller, for nginx without a proxy in front of it.
pub(crate) fn short() -> EncodedRequests {
    EncodedRequests::generate(1, |users| {
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {:05}\r\n\r\n", users[0])
    })
}

/// `POST /v1/check`. The same bytes go to bare hyper.
pub(crate) fn check() -> EncodedRequests {
    EncodedRequests::generate(1, |users| traffic::check(users[0]))
}

/// `POST /v1/check/batch`.
pub(crate) fn batch() -> EncodedRequests {
    EncodedRequests::generate(BATCH, traffic::check_batch)
}
