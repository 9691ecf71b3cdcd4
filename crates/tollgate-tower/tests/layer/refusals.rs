//! What a refused client is told, to the byte, and what an admitted one is.

use bytes::Bytes;
use http::{Response, StatusCode};
use tollgate::headers::{Dialect, RateLimitReply};
use tollgate::{DecidedBy, Decision, Micros, Refusal, Wait};
use tollgate_tower::gate::{DecisionDetails, Gate, GateAnswer, GateRequest};
use tollgate_tower::{GateDecision, KeyFrom, RateLimitLayer, WithoutKey};

use crate::layer::harness::{HelloService, behind, from, gate, later, lines, send, strict, with};

#[test]
fn an_admitted_client_is_told_where_it_stands() {
    let (gate, _) = gate(&["3/second burst 3"]);
    let hello = HelloService::answering(|request| {
        let decision = request.extensions().get::<GateDecision>().expect("the handler sees it");
        let said = format!("{} of {}", decision.remaining(), decision.capacity());
        Response::new(said.into())
    });
    let response = send(&mut behind(&strict(gate), &hello), from("192.0.2.1"));
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, "2 of 3"));
    let want = [
        "ratelimit-policy: \"api-1s\";q=3;w=1",
        "ratelimit: \"api-1s\";r=2;t=1",
        "x-ratelimit-limit: 3",
        "x-ratelimit-remaining: 2",
        "x-ratelimit-reset: 1794744001",
    ];
    assert_eq!(lines(response.headers()), want);
    let decision = response.extensions().get::<GateDecision>().unwrap();
    assert!(decision.allowed() && decision.problem().is_empty());
    assert_eq!((decision.policy(), decision.rule()), (Some("api-1s"), None));
}

#[test]
fn services_outside_see_refusals_and_what_they_ask_for() {
    for asked_for in [false, true] {
        let layer = RateLimitLayer::new(gate(&["1/second burst 1"]).0);
        let layer = if asked_for { layer.decision_in_response() } else { layer };
        let mut service = behind(&layer, &HelloService::new());
        for (status, seen) in [(200, asked_for), (429, true)] {
            let response = send(&mut service, from("192.0.2.1"));
            let decision = response.extensions().get::<GateDecision>();
            assert_eq!((response.status().as_u16(), decision.is_some()), (status, seen));
        }
    }
}

#[test]
fn a_refusal_is_a_problem_document() {
    let (gate, clock) = gate(&["2/minute burst 2"]);
    let hello = HelloService::new();
    let mut service = behind(&strict(gate), &hello);
    for _ in 0..2 {
        assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    }
    later(&clock, 1_500_000);
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let want = [
        "cache-control: no-store",
        "content-type: application/problem+json",
        "ratelimit-policy: \"api-1m\";q=2;w=60",
        "ratelimit: \"api-1m\";r=0;t=29",
        "retry-after: 29",
        "x-ratelimit-limit: 2",
        "x-ratelimit-remaining: 0",
        "x-ratelimit-reset: 1794744060",
    ];
    assert_eq!(lines(response.headers()), want);
    let want = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Quota exceeded","status":429,"#,
        r#""detail":"The limit api-1m (2/minute burst 2) has no room for this request. Retry in 29 s.","#,
        r#""violated-policies":["api-1m"],"reason":"over_limit","error":"Too Many Requests","#,
        r#""message":"Rate limit exceeded. Retry in 29 s.","retryAfter":29}"#,
    );
    assert_eq!(response.body(), want);
    let decision = response.extensions().get::<GateDecision>().unwrap();
    assert_eq!(decision.refusal(), Some(Refusal::OverLimit));
    assert_eq!(decision.retry_after_s(), Some(29));
    assert_eq!(hello.calls(), 2, "the inner service was not asked");
    assert_eq!(send(&mut service, from("192.0.2.2")).status(), 200, "others go on");
}

#[test]
fn a_grpc_client_is_told_in_headers_only() {
    let (gate, clock) = gate(&["1/second burst 1"]);
    let mut service = behind(&strict(gate).headers(&[]), &HelloService::new());
    let request = || with("192.0.2.1", &[("content-type", "application/grpc+proto")]);
    assert_eq!(send(&mut service, request()).status(), 200);
    later(&clock, 250_000);
    let response = send(&mut service, request());
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, ""));
    let want = [
        "cache-control: no-store",
        "content-type: application/grpc",
        "grpc-message: Rate limit exceeded. Retry in 1 s.",
        "grpc-retry-pushback-ms: 750",
        "grpc-status-details-bin: CAgSIlJhdGUgbGltaXQgZXhjZWVkZWQuIFJldHJ5IGluIDEgcy4aNAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIICgYQgK/Q5QI",
        "grpc-status: 8",
        "retry-after: 1",
    ];
    assert_eq!(lines(response.headers()), want);
}

/// A gate whose store does not answer.
struct UnavailableGate;

impl Gate for UnavailableGate {
    fn ask(&self, question: &mut GateRequest) -> GateAnswer {
        let second = Wait::from_micros(1_000_000);
        let refused = Decision::refused(Refusal::StoreUnavailable, second, Micros::ZERO);
        let reply = RateLimitReply::new(&refused, &[]);
        GateAnswer::Now(question.decided(&DecisionDetails {
            reply: &reply,
            dialects: &Dialect::DEFAULT,
            decided_by: DecidedBy::Closed,
            delay: Wait::ZERO,
            policy: None,
            rule: None,
            refusal: None,
            warnings: &[],
        }))
    }
}

#[test]
fn a_store_that_does_not_answer_is_not_blamed_on_the_client() {
    let mut service = behind(&RateLimitLayer::new(UnavailableGate), &HelloService::new());
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let want =
        ["cache-control: no-store", "content-type: application/problem+json", "retry-after: 1"];
    assert_eq!(lines(response.headers()), want);
    let want = r#""reason":"store_unavailable","error":"Service Unavailable","#;
    assert!(response.body().contains(want), "{}", response.body());
    let decision = response.extensions().get::<GateDecision>().unwrap();
    assert_eq!(decision.refusal(), Some(Refusal::StoreUnavailable));

    let grpc = with("192.0.2.1", &[("content-type", "application/grpc")]);
    let response = send(&mut service, grpc);
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, ""));
    assert_eq!(response.headers()["grpc-status"], "14", "UNAVAILABLE");
    let message = "The store of the rate limits does not answer. Retry in 1 s.";
    assert_eq!(response.headers()["grpc-message"], message);
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
}

#[test]
fn a_cost_that_never_fits_is_told_so() {
    let (gate, _) = gate(&["5/second burst 5"]);
    let mut service = behind(&strict(gate).cost(|_| 6).headers(&[]), &HelloService::new());
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers().get("retry-after"), None);
    assert!(response.body().ends_with(r#""retryAfter":null}"#), "{}", response.body());
    let grpc = with("192.0.2.1", &[("content-type", "application/grpc")]);
    let response = send(&mut service, grpc);
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "-1", "do not retry");
}

#[test]
fn dialects_are_chosen() {
    let rows: [(&[Dialect], &[&str]); 4] = [
        (&[], &[]),
        (
            &[Dialect::XRateLimit],
            &["x-ratelimit-limit: 3", "x-ratelimit-remaining: 2", "x-ratelimit-reset: 1794744001"],
        ),
        (
            &[Dialect::Draft],
            &["ratelimit-policy: \"api-1s\";q=3;w=1", "ratelimit: \"api-1s\";r=2;t=1"],
        ),
        (
            &[Dialect::Legacy],
            &[
                "ratelimit-limit: 3",
                "ratelimit-policy: 3;w=1",
                "ratelimit-remaining: 2",
                "ratelimit-reset: 1",
            ],
        ),
    ];
    for (dialects, want) in rows {
        let (gate, _) = gate(&["3/second burst 3"]);
        let mut service = behind(&strict(gate).headers(dialects), &HelloService::new());
        assert_eq!(lines(send(&mut service, from("192.0.2.1")).headers()), want, "{dialects:?}");
    }
}

#[test]
fn a_refusal_can_be_answered_in_your_own_way() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let layer = strict(gate).headers(&[]).refusal(|refused| {
        let text = format!("{} {}", refused.head().uri.path(), refused.decision().retry_after());
        let response = Response::builder().status(503).header("retry-after", "7");
        response.body(Bytes::from(text)).unwrap()
    });
    let mut service = behind(&layer, &HelloService::new());
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!((response.status().as_u16(), response.body().as_str()), (503, "/ 1 s"));
    // Its own fields stay, the others are added.
    assert_eq!(lines(response.headers()), ["cache-control: no-store", "retry-after: 7"]);
    assert!(response.extensions().get::<GateDecision>().is_some());
}

#[test]
fn the_usual_refusal_can_be_changed() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let layer = strict(gate).refusal(|refused| {
        let mut response = refused.response();
        response.headers_mut().insert("content-language", "en".parse().unwrap());
        response
    });
    let mut service = behind(&layer, &HelloService::new());
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    let response = send(&mut service, from("192.0.2.1"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-language"], "en");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
}

#[test]
fn who_does_not_say_who_is_calling_can_be_refused() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let layer = strict(gate.without_key(WithoutKey::Refused));
    let response = send(&mut behind(&layer, &HelloService::new()), http::Request::new(()));
    assert_eq!(response.status(), 429);
    assert!(response.body().contains("does not say who is calling"), "{}", response.body());
    assert_eq!(response.headers().get("retry-after"), None);
}

#[test]
fn a_grpc_client_that_says_two_things_is_told_in_headers_only() {
    let (gate, _) = gate(&["9/second burst 9"]);
    // A percent sign may stand in the name of a field, and has to be escaped in the message.
    let key = KeyFrom::header(http::HeaderName::from_static("x-%"));
    let mut service = behind(&strict(gate.key(key)), &HelloService::new());
    let twice = [("content-type", "application/grpc"), ("x-%", "a"), ("x-%", "b")];
    let response = send(&mut service, with("192.0.2.1", &twice));
    assert_eq!((response.status(), response.body().as_str()), (StatusCode::OK, ""));
    let want = [
        "cache-control: no-store",
        "content-type: application/grpc",
        "grpc-message: x-%25 stands twice, with different values: send it once.",
        "grpc-status: 3",
    ];
    assert_eq!(lines(response.headers()), want);
}
