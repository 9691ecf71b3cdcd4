//! Whose units are counted.

use http::{HeaderName, Request};
use tollgate::Limit;
use tollgate_tower::keyed_gate::LimitsError;
use tollgate_tower::{GateDecision, KeyFrom, KeyedGate, TrustedProxies, WithoutKey};

use crate::layer::harness::{
    HelloService, behind, from, gate, limit, limiter, send, statuses, strict, with,
};

#[test]
fn callers_have_a_limit_each() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let mut service = behind(&strict(gate), &HelloService::new());
    let requests = ["192.0.2.1", "192.0.2.2", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2"];
    assert_eq!(statuses(&mut service, requests.map(from)), [200, 200, 429, 200, 429]);
}

#[test]
fn clients_are_told_apart_behind_a_proxy() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let mut service =
        behind(&strict(gate.key(KeyFrom::client_ip_behind(proxies))), &HelloService::new());
    let via = |peer: &str, list: &str| with(peer, &[("x-forwarded-for", list)]);
    let requests = [
        via("10.0.0.1", "203.0.113.1"),
        via("10.0.0.2", "203.0.113.2"),
        via("10.0.0.2", "6.6.6.6, 203.0.113.1"),
        via("203.0.113.3", "203.0.113.4"),
        via("203.0.113.3", "203.0.113.5"),
    ];
    assert_eq!(statuses(&mut service, requests), [200, 200, 429, 200, 429]);
}

#[test]
fn header_and_path_and_their_fallback() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let by_key = KeyFrom::header(HeaderName::from_static("x-api-key"));
    let layer = strict(gate.key(KeyFrom::path().and(by_key).or(KeyFrom::client_ip())));
    let mut service = behind(&layer, &HelloService::new());
    let ask = |path: &str, fields: &[(&'static str, &str)]| {
        let mut request = with("192.0.2.1", fields);
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    let requests = [
        ask("/a", &[("x-api-key", "k")]),
        ask("/a?x", &[("x-api-key", "k")]),
        ask("/b", &[("x-api-key", "k")]),
        ask("/a", &[("x-api-key", "l")]),
        ask("/a", &[]),
        ask("/b", &[("x-api-key", "")]),
    ];
    assert_eq!(statuses(&mut service, requests), [200, 429, 200, 200, 200, 429]);
    let twice = send(&mut service, ask("/a", &[("x-api-key", "k"), ("x-api-key", "l")]));
    assert_eq!(twice.status(), 400);
    assert!(twice.body().contains("x-api-key stands twice"), "{}", twice.body());
}

#[test]
fn cookies_in_pieces_and_schemes_are_one_caller() {
    let rows: [(&str, &[&str], &[&str]); 2] = [
        ("cookie", &["a=1", "b=2"], &["a=1; b=2"]),
        ("authorization", &["Bearer k"], &["bearer   k"]),
    ];
    for (name, one, other) in rows {
        let name = HeaderName::from_static(name);
        let (gate, _) = gate(&["1/second burst 1"]);
        let layer = strict(gate.key(KeyFrom::header(name.clone())));
        let mut service = behind(&layer, &HelloService::new());
        let requests = [one, other].map(|lines| {
            let mut request = from("192.0.2.1");
            for line in lines {
                request.headers_mut().append(name.clone(), line.parse().unwrap());
            }
            request
        });
        assert_eq!(statuses(&mut service, requests), [200, 429], "{name}");
    }
}

#[test]
fn without_a_key() {
    let rows = [(WithoutKey::Shared, [200, 429]), (WithoutKey::Refused, [429, 429])];
    let passed = [(WithoutKey::Passed, [200, 200])];
    for (without_key, want) in rows.into_iter().chain(passed) {
        let (gate, _) = gate(&["1/second burst 1"]);
        let layer = strict(gate.without_key(without_key)).on_warning(|_| {});
        let mut service = behind(&layer, &HelloService::new());
        let requests = [Request::new(()), Request::new(())];
        assert_eq!(statuses(&mut service, requests), want, "{without_key:?}");
        let response = send(&mut service, Request::new(()));
        let decided = response.extensions().get::<GateDecision>().is_some();
        assert_eq!(decided, without_key != WithoutKey::Passed);
    }
}

#[test]
fn several_limits_are_one_decision() {
    let (gate, clock) = gate(&["2/second burst 2", "3/minute burst 3"]);
    let mut service = behind(&strict(gate), &HelloService::new());
    let mut ask = || {
        let response = send(&mut service, from("192.0.2.1"));
        let decision = response.extensions().get::<GateDecision>().unwrap();
        (response.status().as_u16(), decision.policy().map(String::from), decision.remaining())
    };
    let of = |policy: &str| Some(policy.to_string());
    assert_eq!(ask(), (200, of("api-1s"), 1));
    assert_eq!(ask(), (200, of("api-1s"), 0));
    assert_eq!(ask(), (429, of("api-1s"), 0), "and the minute is not charged");
    crate::layer::harness::later(&clock, 1_000_000);
    assert_eq!(ask(), (200, of("api-1m"), 0));
    assert_eq!(ask(), (429, of("api-1m"), 0));
}

#[test]
fn a_gate_has_1_to_16_limits() {
    let numbered = |number: usize| limit(&format!("1/{}s", number + 1));
    let gate = |limits: usize| KeyedGate::new(limiter().0, (0..limits).map(numbered)).map(drop);
    assert_eq!((gate(1), gate(16)), (Ok(()), Ok(())));
    let told = |error: LimitsError| error.to_string();
    assert_eq!(gate(0).map_err(told), Err("a gate has 0 limits: give it 1 to 16".into()));
    assert_eq!(gate(17).map_err(told), Err("a gate has 17 limits: give it 1 to 16".into()));
}

#[test]
fn two_limits_of_a_gate_that_count_the_same_are_an_error() {
    let plain = |text: &str| tollgate::limit::parse_rate(text).unwrap();
    let unnamed = |text| plain(text).build().unwrap();
    let named = |text, name: &str| plain(text).name(name).build().unwrap();
    let gate = |limits: &[Limit]| KeyedGate::new(limiter().0, limits.to_vec()).map(drop);
    let limits = [unnamed("9/second"), unnamed("9/minute"), unnamed("5/second")];
    assert_eq!(gate(&limits), Err(LimitsError::Alike(1, 3)));
    let told = LimitsError::Alike(1, 3).to_string();
    assert_eq!(told, "limits 1 and 3 of a gate share their counts: give one another name");
    assert_eq!(gate(&[named("9/second", "a"), named("9/second", "b")]), Ok(()));
}
