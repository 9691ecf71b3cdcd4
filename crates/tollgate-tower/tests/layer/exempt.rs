//! Requests that nobody counts, and what requests cost.

use http::{Method, Request};
use tollgate_tower::GateDecision;

use crate::layer::harness::{HelloService, behind, from, gate, send, statuses, strict, with};

fn preflight(fields: &[(&'static str, &str)]) -> Request<()> {
    let mut request = with("192.0.2.1", fields);
    *request.method_mut() = Method::OPTIONS;
    request
}

const ORIGIN: (&str, &str) = ("origin", "https://example.com");
const WANTED: (&str, &str) = ("access-control-request-method", "PUT");

#[test]
fn preflights_pass_and_look_alikes_do_not() {
    // Request, whether it is counted.
    let rows = [
        (preflight(&[ORIGIN, WANTED]), false),
        (preflight(&[ORIGIN]), true),
        (preflight(&[WANTED]), true),
        (preflight(&[]), true),
        (with("192.0.2.1", &[ORIGIN, WANTED]), true),
    ];
    for (request, counted) in rows {
        let (gate, _) = gate(&["1/second burst 1"]);
        let mut service = behind(&strict(gate), &HelloService::new());
        let response = send(&mut service, request);
        assert_eq!(response.extensions().get::<GateDecision>().is_some(), counted);
        let next = send(&mut service, from("192.0.2.1")).status();
        assert_eq!(next, if counted { 429 } else { 200 });
    }
}

#[test]
fn preflights_can_be_counted() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let mut service = behind(&strict(gate).limit_preflights(), &HelloService::new());
    let requests = [preflight(&[ORIGIN, WANTED]), preflight(&[ORIGIN, WANTED])];
    assert_eq!(statuses(&mut service, requests), [200, 429]);
}

#[test]
fn the_exempt_are_not_asked() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let layer = strict(gate).exempt(|head| head.headers.contains_key("x-health"));
    let mut service = behind(&layer, &HelloService::new());
    let health = || with("192.0.2.1", &[("x-health", "1")]);
    let requests = [health(), from("192.0.2.1"), health(), from("192.0.2.1"), health()];
    assert_eq!(statuses(&mut service, requests), [200, 200, 200, 429, 200]);
    assert!(send(&mut service, health()).headers().is_empty());
}

#[test]
fn a_request_costs_what_the_function_says() {
    let (gate, _) = gate(&["10/second burst 10"]);
    let layer = strict(gate).cost(|head| {
        let text = head.headers.get("x-cost").and_then(|value| value.to_str().ok());
        text.and_then(|text| text.parse().ok()).unwrap_or(1)
    });
    let mut service = behind(&layer, &HelloService::new());
    // Cost, status, what is left.
    for (cost, status, left) in [
        ("4", 200, "6"),
        ("7", 429, "6"),
        ("0", 200, "6"),
        ("6", 200, "0"),
        ("1", 429, "0"),
        ("0", 200, "0"),
    ] {
        let response = send(&mut service, with("192.0.2.1", &[("x-cost", cost)]));
        assert_eq!(response.status(), status, "{cost}");
        assert_eq!(response.headers()["x-ratelimit-remaining"], left, "{cost}");
    }
}
