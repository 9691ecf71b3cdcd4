//! Charge by response: what was too much is given back, what was too little is charged.

use http::{HeaderName, Response};
use tollgate_tower::charge;

use crate::layer::harness::{GatedFullBody, limit, poll};
use crate::layer::harness::{
    HelloService, behind, from, gate, limiter, now, send, statuses, strict, with,
};
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use tollgate::KeyBuf;
use tollgate_tower::{KeyFrom, KeyedGate};
use tower::{Layer, Service, service_fn};

#[test]
fn only_failures_are_charged() {
    let (gate, _) = gate(&["2/minute burst 2"]);
    let hello = HelloService::answering(|request| {
        let right = request.headers().contains_key("x-password");
        let status = if right { 200 } else { 401 };
        Response::builder().status(status).body("".into()).unwrap()
    });
    let mut service = behind(&strict(gate).charge(charge::only_failures), &hello);
    let right = || with("192.0.2.1", &[("x-password", "right")]);
    let wrong = || from("192.0.2.1");
    let requests = [right(), right(), right(), wrong(), right(), wrong(), right(), wrong()];
    // After two failures even the right password has to wait: it is refused before it is looked at.
    assert_eq!(statuses(&mut service, requests), [200, 200, 200, 401, 200, 401, 429, 429]);
}

#[test]
fn what_a_failure_is() {
    // Status, grpc-status in the head, whether it is charged.
    let rows = [
        (200, None, false),
        (302, None, false),
        (404, None, true),
        (503, None, true),
        (200, Some("0"), false),
        (200, Some("16"), true),
        (200, Some("?"), true),
    ];
    for (status, grpc_status, charged) in rows {
        let response = Response::builder().status(status);
        let response = match grpc_status {
            Some(grpc_status) => response.header("grpc-status", grpc_status),
            None => response,
        };
        let head = response.body(()).unwrap().into_parts().0;
        let want = if charged { None } else { Some(0) };
        assert_eq!(charge::only_failures(&head), want, "{status} {grpc_status:?}");
    }
}

#[test]
fn a_header_tells_the_true_cost() {
    // What the response says, and what is left of 100 after 10 were taken first.
    let rows = [
        (Some("4"), 96),
        (Some("10"), 90),
        (Some("0"), 100),
        (Some("25"), 75),
        (Some("130"), -30),
        (Some("-5"), 90),
        (Some("+5"), 90),
        (Some("many"), 90),
        (Some("99999999999999999999999"), 90),
        (None, 90),
    ];
    for (said, left) in rows {
        let (limiter, _) = limiter();
        let tokens = limit("100/hour burst 100");
        let gate =
            KeyedGate::new(limiter.clone(), [tokens.clone()]).unwrap().key(KeyFrom::global());
        let hello = HelloService::answering(move |_| {
            let response = Response::builder();
            let response = match said {
                Some(said) => response.header("x-tokens-used", said),
                None => response,
            };
            response.body("".into()).unwrap()
        });
        let by_header = charge::header(HeaderName::from_static("x-tokens-used"));
        let layer = strict(gate).cost(|_| 10).charge(by_header);
        assert_eq!(send(&mut behind(&layer, &hello), from("192.0.2.1")).status(), 200);
        let key = KeyBuf::new().with("global", "");
        assert_eq!(limiter.balance(&tokens, &key), left, "{said:?}");
    }
}

#[test]
fn each_of_several_limits_is_settled() {
    let (limiter, _) = limiter();
    let limits = [limit("50/minute burst 50"), limit("100/hour burst 100")];
    let gate = KeyedGate::new(limiter.clone(), limits.clone()).unwrap().key(KeyFrom::global());
    let layer = strict(gate).cost(|_| 10).charge(|_| Some(60));
    assert_eq!(send(&mut behind(&layer, &HelloService::new()), from("192.0.2.1")).status(), 200);
    let key = KeyBuf::new().with("global", "");
    assert_eq!(limits.each_ref().map(|limit| limiter.balance(limit, &key)), [-10, 40]);
}

#[test]
fn a_client_that_leaves_keeps_its_charge() {
    let (limiter, _) = limiter();
    let tokens = limit("100/hour burst 100");
    let gate = KeyedGate::new(limiter.clone(), [tokens.clone()]).unwrap().key(KeyFrom::global());
    let layer = strict(gate).cost(|_| 10).charge(|_| Some(0));
    let mut never =
        layer.layer(service_fn(|_| pending::<Result<Response<GatedFullBody>, Infallible>>()));
    {
        let mut left = pin!(never.call(from("192.0.2.1")));
        assert!(poll(&mut left).is_pending());
    }
    let key = KeyBuf::new().with("global", "");
    assert_eq!(limiter.balance(&tokens, &key), 90, "the work was begun");
}

#[test]
fn an_error_of_the_inner_service_passes_and_keeps_its_charge() {
    let (limiter, _) = limiter();
    let tokens = limit("100/hour burst 100");
    let gate = KeyedGate::new(limiter.clone(), [tokens.clone()]).unwrap().key(KeyFrom::global());
    let layer = strict(gate).charge(|_| Some(0));
    let mut failing = layer.layer(service_fn(|_| {
        std::future::ready(Err::<Response<GatedFullBody>, _>("no connection"))
    }));
    assert_eq!(now(failing.call(from("192.0.2.1"))).map(drop), Err("no connection"));
    let key = KeyBuf::new().with("global", "");
    assert_eq!(limiter.balance(&tokens, &key), 99);
}
