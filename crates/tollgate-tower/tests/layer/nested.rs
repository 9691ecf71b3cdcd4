//! Two layers around one service.

use http::Response;
use tollgate::headers::Dialect;
use tollgate_tower::{GateDecision, KeyFrom, RateLimitLayer};
use tower::Layer;

use crate::layer::harness::{HelloService, from, gate, send, strict};

#[test]
fn the_tighter_layer_is_told_whichever_is_outside() {
    // Outer, inner, the policy and what is left.
    let rows = [
        ("9/second burst 9", "3/minute burst 3", "api-1m", "2"),
        ("3/minute burst 3", "9/second burst 9", "api-1m", "2"),
        ("3/second burst 3", "3/minute burst 3", "api-1m", "2"),
    ];
    for (outer, inner, policy, left) in rows {
        let (outer_gate, inner_gate) = (gate(&[outer]).0, gate(&[inner]).0);
        let mut service = strict(outer_gate).layer(strict(inner_gate).layer(HelloService::new()));
        let response = send(&mut service, from("192.0.2.1"));
        assert_eq!(response.headers()["x-ratelimit-remaining"], left, "{outer} {inner}");
        assert_eq!(response.headers().get_all("x-ratelimit-remaining").iter().count(), 1);
        let decision = response.extensions().get::<GateDecision>().unwrap();
        assert_eq!(decision.policy(), Some(policy), "{outer} {inner}");
    }
}

#[test]
fn a_refusal_of_the_inner_layer_is_told() {
    let inner = gate(&["1/minute burst 1"]).0.key(KeyFrom::global());
    let mut service =
        strict(gate(&["5/second burst 5"]).0).layer(strict(inner).layer(HelloService::new()));
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["ratelimit-policy"], "\"api-1m\";q=1;w=60");
    assert_eq!(response.headers()["retry-after"], "60");
}

#[test]
fn a_decision_is_in_the_response_only_if_one_of_them_was_told_to() {
    let (wide, tight) = ("9/minute burst 9", "2/minute burst 2");
    for (outer, inner) in [(wide, tight), (tight, wide), (tight, tight)] {
        for (outer_tells, inner_tells) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            for dialects in [&Dialect::DEFAULT[..], &[]] {
                let layer = |limit, tells| {
                    let layer = RateLimitLayer::new(gate(&[limit]).0).headers(dialects);
                    if tells { layer.decision_in_response() } else { layer }
                };
                let inside = layer(inner, inner_tells).layer(HelloService::new());
                let mut service = layer(outer, outer_tells).layer(inside);
                // Two pass, and the third is refused by either.
                for (status, told) in
                    [(200, outer_tells || inner_tells); 2].into_iter().chain([(429, true)])
                {
                    let response = send(&mut service, from("192.0.2.1"));
                    assert_eq!(response.status(), status);
                    let decision = response.extensions().get::<GateDecision>();
                    assert_eq!(
                        decision.is_some(),
                        told,
                        "{outer} {outer_tells} {inner} {inner_tells} {dialects:?} {status}"
                    );
                }
            }
        }
    }
}

#[test]
fn fields_of_the_service_itself_stay() {
    let hello = HelloService::answering(|_| {
        Response::builder().header("x-ratelimit-limit", "own").body("".into()).unwrap()
    });
    let mut service = strict(gate(&["3/second burst 3"]).0).layer(hello);
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.headers()["x-ratelimit-limit"], "own");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "2");
}
