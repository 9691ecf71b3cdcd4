//! Signs of misuse are told, each once, and nothing else is.

use std::sync::{Arc, Mutex};

use http::{HeaderName, Request};
use tollgate_tower::{Gate, KeyFrom, RateLimitLayer, TrustedProxies, Warning};
use tower::Layer;

use crate::layer::harness::{HelloService, behind, from, gate, send, with};

/// A layer, and what it has warned of.
pub(crate) fn watched(gate: impl Gate) -> (RateLimitLayer, Arc<Mutex<Vec<Warning>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let layer =
        RateLimitLayer::new(gate).on_warning(move |warning| tell.lock().unwrap().push(warning));
    (layer, told)
}

/// What these requests make a layer with this key warn of.
fn warnings(key: KeyFrom, requests: impl IntoIterator<Item = Request<()>>) -> Vec<Warning> {
    let (layer, told) = watched(gate(&["1000000/second"]).0.key(key));
    let mut service = behind(&layer, &HelloService::new());
    for request in requests {
        send(&mut service, request);
    }
    told.lock().unwrap().clone()
}

#[test]
fn a_forwarding_header_that_nobody_reads() {
    let proxies = || TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let by_header = || KeyFrom::header(HeaderName::from_static("x-api-key"));
    let forwarded = || with("10.0.0.1", &[("x-forwarded-for", "203.0.113.1"), ("x-api-key", "k")]);
    let standard = || with("10.0.0.1", &[("forwarded", "for=203.0.113.1")]);
    let ignored = [Warning::ForwardedIgnored];
    let twice = || [forwarded(), forwarded()];
    assert_eq!(warnings(KeyFrom::client_ip(), twice()), ignored);
    assert_eq!(warnings(KeyFrom::client_ip(), [standard()]), ignored);
    assert_eq!(warnings(by_header().or(KeyFrom::client_ip()), twice()), ignored);
    assert_eq!(warnings(KeyFrom::client_ip_behind(proxies()), twice()), []);
    assert_eq!(warnings(by_header(), twice()), []);
    assert_eq!(warnings(KeyFrom::client_ip(), [from("10.0.0.1")]), []);
}

#[test]
fn one_key_for_several_callers() {
    let one = || KeyFrom::new("user", |_| Some("anonymous".into()));
    let peers = |count: usize, requests: usize| {
        (0..requests).map(move |index| from(&format!("192.0.2.{}", index % count)))
    };
    assert_eq!(warnings(one(), peers(2, 999)), []);
    assert_eq!(warnings(one(), peers(2, 3_000)), [Warning::OneKey]);
    assert_eq!(warnings(one(), peers(1, 3_000)), [], "one caller has one key");
    assert_eq!(warnings(KeyFrom::global(), peers(2, 3_000)), [], "meant so");
    assert_eq!(warnings(KeyFrom::client_ip(), peers(2, 3_000)), []);
    // Behind a proxy that tells of them, callers are told apart by what it says.
    let behind_one = (0..2_000).map(|index| {
        with("10.0.0.1", &[("x-forwarded-for", ["203.0.113.1", "203.0.113.2"][index % 2])])
    });
    assert_eq!(warnings(one(), behind_one), [Warning::OneKey]);
}

#[test]
fn a_request_without_a_key() {
    let nowhere = || [Request::new(()), Request::new(())];
    assert_eq!(warnings(KeyFrom::client_ip(), nowhere()), [Warning::NoKey]);
    assert_eq!(warnings(KeyFrom::global(), nowhere()), []);
}

#[test]
fn a_layer_that_is_applied_twice() {
    let (layer, told) = watched(gate(&["9/second burst 9"]).0);
    let mut service = layer.layer(layer.layer(HelloService::new()));
    for _ in 0..3 {
        send(&mut service, from("192.0.2.1"));
    }
    assert_eq!(*told.lock().unwrap(), [Warning::AppliedTwice]);
    // Another layer between hides nothing.
    let (layer, told) = watched(gate(&["9/second burst 9"]).0);
    let (other, _) = watched(gate(&["9/second burst 9"]).0);
    send(&mut layer.layer(other.layer(layer.layer(HelloService::new()))), from("192.0.2.1"));
    assert_eq!(*told.lock().unwrap(), [Warning::AppliedTwice]);
    // Two layers are two limits.
    let (outer, told) = watched(gate(&["9/second burst 9"]).0);
    let (inner, told_inside) = watched(gate(&["9/second burst 9"]).0);
    send(&mut outer.layer(inner.layer(HelloService::new())), from("192.0.2.1"));
    assert!(told.lock().unwrap().is_empty() && told_inside.lock().unwrap().is_empty());
}

#[test]
fn warnings_say_what_to_do() {
    for (warning, want) in [
        (Warning::ForwardedIgnored, "trusted_peers"),
        (Warning::AppliedTwice, "apply it once"),
        (Warning::OneKey, "KeyFrom::global()"),
        (Warning::NoKey, ".peer(…)"),
        (Warning::NoPeer, ".peer(…)"),
    ] {
        assert!(warning.to_string().contains(want), "{warning}");
    }
}
