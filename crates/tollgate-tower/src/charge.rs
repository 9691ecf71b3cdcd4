//! Charge by response: what a request cost after all, told by the head of its response.
//!
//! The layer takes its cost first, so that a caller without room is refused before any work is done. When
//! the response is there, a charge function may say what the true cost is: what was too much is given
//! back, what was too little is charged, if need be into debt. A request whose response never comes (its
//! client left, or the inner service failed) keeps its first charge: the work was begun.

use http::{HeaderName, response};

/// The true cost of a request, by its response; `None`: as taken.
pub type ChargeFn = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;

/// Only failures are charged: whoever logs in with the right password pays nothing, whoever guesses does.
/// A failure is a status of 400 and above, and of a gRPC call a `grpc-status` other than 0 in the head of
/// the response, where servers put it if there is no message before it. One that comes in trailers, after
/// messages, is not seen, and nor is one in the body, as grpc-web has it: such a call is free.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Limit, Limiter};
/// use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer, charge};
///
/// let guesses = Limit::per_minute(5).name("guesses").build()?;
/// let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(1_000)), [guesses])?;
/// let layer = RateLimitLayer::new(gate).charge(charge::only_failures);
/// # drop(layer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn only_failures(response: &response::Parts) -> Option<u64> {
    let failed = response.status.is_client_error() || response.status.is_server_error();
    // The status of a gRPC call that failed is still 200.
    let failed_call = response.headers.get("grpc-status").is_some_and(|status| status != "0");
    (!failed && !failed_call).then_some(0)
}

/// The number in a response header, such as `x-tokens-used`. Without one, or if it is no whole number, the
/// first charge stands.
pub fn header(name: HeaderName) -> impl Fn(&response::Parts) -> Option<u64> + Send + Sync {
    move |response| number(response, name.as_str())
}

/// The whole number in a response header.
pub(crate) fn number(response: &response::Parts, name: &str) -> Option<u64> {
    let text = response.headers.get(name)?.to_str().ok()?.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
