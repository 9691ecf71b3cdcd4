//! Charge by response: the true cost of a request, found in the head of its response.
//!
//! The layer charges an estimate first, so that a caller over the limit is refused before any work is done. When
//! the response is ready, a charge function may return the true cost. The difference is refunded or charged,
//! into debt if necessary. The estimate stands if no response comes, because the client left or the inner
//! service failed: the work was begun.

use http::{HeaderName, response};

/// A mark in the extensions of a response that is not the answer to the request, such as a proxy's 504: the work may
/// have been done all the same, so the first charge stands and nothing is read from the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeStands;

/// A mark in the extensions of a response to a request that was never sent on, such as a proxy's 502 for a server that refuses
/// connections: nobody has done any work, so estimates are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentRequest;

/// A function that finds the true cost of a request in its response; `None` keeps the first charge.
pub type ChargeFn = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;

/// Charges failures only: a login with the right password costs nothing, a wrong guess costs a unit.
///
/// A failure is a status of 400 or above. For gRPC it is a `grpc-status` other than 0 in the head of the response,
/// where servers put it if they send no message. A failure in trailers, or in the body as grpc-web has it, is not
/// detected, so such a call is free.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Algorithm, Limit, Limiter};
/// use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer, charge};
///
/// let guesses =
///     Limit::per_minute(5).algorithm(Algorithm::SlidingWindowLog).name("guesses").build()?;
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

/// Charges the number in a response header, such as `x-tokens-used`. The first charge stands if the header is
/// missing or is not a whole number.
pub fn header(name: HeaderName) -> impl Fn(&response::Parts) -> Option<u64> + Send + Sync {
    move |response| {
        let text = response.headers.get(&name)?.to_str().ok()?.trim();
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    }
}
