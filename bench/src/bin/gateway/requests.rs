//! The requests of the generator.

use tollgate_bench::generator::requests::EncodedRequests;

/// A request as an API client sends it. All contestants get the same bytes.
pub(crate) fn api() -> EncodedRequests {
    EncodedRequests::generate(1, |items| {
        format!(
            "GET /api/items/{:05}?sort=name HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench/1.0\r\n\
             Accept: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
            items[0]
        )
    })
}

/// A request to the path that allows one request a minute, to see that a contestant limits.
pub(crate) const TIGHT: &[u8] = b"GET /tight HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
