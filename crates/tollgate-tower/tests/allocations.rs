//! What a request costs in allocations, which a counting allocator watches, and the size of its future. The numbers
//! are bounds; lower ones are welcome here.

#[path = "../../tollgate/tests/counting/mod.rs"]
mod counting;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use counting::allocations;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::Full;
use tollgate::headers::Dialect;
use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer};
use tower::{Layer, Service};

/// Answers from what it has.
#[derive(Clone)]
struct StaticHello;

impl Service<Request<()>> for StaticHello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// Allocations of one request, beside those of making and answering it; the most of a thousand.
fn of_layer(layer: &RateLimitLayer) -> u64 {
    let mut service = layer.layer(StaticHello);
    let mut most = 0;
    for round in 0..1_100 {
        let mut request = Request::new(());
        request.headers_mut().insert("x-api-key", HeaderValue::from_static("some-key"));
        // As servers do: the first extension makes the map.
        request.extensions_mut().insert(1_u8);
        let before = allocations();
        let future = pin!(service.call(request));
        let done = future.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(response)) = done else { panic!("not ready") };
        let count = allocations() - before;
        drop(response);
        // What is made once is made in the first hundred.
        most = if round < 100 { 0 } else { most.max(count) };
    }
    most
}

fn layer(limits: &[&str]) -> RateLimitLayer {
    let limits = limits.iter().map(|text| text.parse::<Limit>().expect("a limit"));
    let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(1_000)), limits).expect("a gate");
    let key = KeyFrom::header(HeaderName::from_static("x-api-key"));
    RateLimitLayer::new(gate.key(key)).on_warning(|warning| panic!("{warning}"))
}

#[test]
fn a_request_costs_few_allocations() {
    let one = ["1000000000/second"];
    let exempt = layer(&one).exempt(|_| true);
    assert_eq!(of_layer(&exempt), 0, "the exempt cost nothing");
    // The decision, and its box in the request's extensions.
    let silent = of_layer(&layer(&one).headers(&[]));
    assert!(silent <= 2, "{silent} without header fields");
    // The text of all fields, what shares it, and the response's map of fields.
    let usual = of_layer(&layer(&one));
    assert!(usual <= 6, "{usual} with the usual fields");
    let outside = of_layer(&layer(&one).decision_in_response());
    assert!(outside <= usual + 3, "{outside} with the response's map of extensions");
    let several = of_layer(&layer(&[one[0], "2000000000/minute", "3000000000/hour"]));
    assert!(several <= usual + 1, "{several} with several limits: a longer text may grow once");
    let settled = of_layer(&layer(&one).charge(|_| Some(0)));
    assert!(settled <= usual + 2, "{settled} with what is settled later and its key");
    let draft = of_layer(&layer(&one).headers(&[Dialect::Draft]));
    assert!(draft <= usual, "{draft}");
}

#[test]
fn the_future_is_little_more_than_that_of_the_inner_service() {
    let mut service = layer(&["1000000000/second"]).layer(StaticHello);
    let inner = size_of_val(&StaticHello.call(Request::new(())));
    let mut request = Request::new(());
    request.headers_mut().insert("x-api-key", HeaderValue::from_static("some-key"));
    let outer = size_of_val(&service.call(request));
    assert!(outer <= inner + 48, "{outer} bytes around {inner}");
}
