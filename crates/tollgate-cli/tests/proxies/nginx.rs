//! nginx: `auth_request`, with `examples/nginx`.

use testkit::peers::{ExampleFiles, ProxyProcess};

use crate::proxies::scenarios;
use crate::proxies::setup::{ProxyAddresses, ProxyKind, ProxySetup};

const NGINX: ProxyKind =
    ProxyKind { folder: "nginx", start, tells_what_is_left: true, closed: &[503] };

fn start(places: &ProxyAddresses) -> ProxyProcess {
    ProxyProcess::nginx(example(places), places.proxy)
}

fn example(places: &ProxyAddresses) -> ExampleFiles {
    let example = places.put_into(ExampleFiles::read("nginx", &["nginx.conf"]));
    example.replace("127.0.0.1:8000", places.proxy)
}

#[test]
fn a_request_passes_as_it_is() {
    scenarios::let_in(&NGINX);
}

#[test]
fn a_path_is_passed_on_as_it_was_read() {
    scenarios::passes_on_what_it_read(&NGINX);
}

#[test]
fn a_refusal_is_429_and_goes_no_further() {
    scenarios::refused(&NGINX);
}

#[test]
fn callers_with_a_key_are_counted_by_it() {
    scenarios::counted_by_key(&NGINX);
}

#[test]
fn made_up_keys_run_out() {
    scenarios::made_up_keys_run_out(&NGINX);
}

#[test]
fn whoever_is_refused_stays_refused_whatever_they_send() {
    scenarios::refused_whatever_they_send(&NGINX);
}

#[test]
fn without_an_answer_open_paths_pass_and_closed_ones_do_not() {
    scenarios::nobody_answers(&NGINX);
}

#[test]
fn a_closed_rule_without_its_store_is_503() {
    scenarios::store_does_not_answer(&NGINX);
}

#[test]
fn a_slow_tollgate_makes_nobody_wait_long() {
    scenarios::slow(&NGINX);
}

#[test]
fn connections_to_tollgate_are_kept() {
    scenarios::connections_are_kept(&NGINX);
}

/// nginx asks with one of two keys: the application must not read the other.
#[test]
fn the_application_gets_the_key_that_was_counted() {
    let setup = ProxySetup::start(&NGINX);
    let keys = [("x-api-key", "first"), ("x-api-key", "second")];
    assert_eq!(setup.ask(2, "GET", "/page", &keys).expect("an answer").status, 200);
    let reached = setup.reached();
    let [key] = reached[0].header_values("x-api-key")[..] else { panic!("one key: {reached:?}") };
    let ask = |key| setup.ask(2, "GET", "/page", &[("x-api-key", key)]).expect("an answer");
    let left = ask(key).header("ratelimit").expect("the field RateLimit").to_owned();
    assert!(left.starts_with("\"api-1h\";r=98;"), "{key} was counted: {left}");
}

/// Tollgate's answer to a question that is malformed is one, on closed paths too.
#[test]
fn a_malformed_question_is_the_clients_fault() {
    let setup = ProxySetup::start(&NGINX);
    for target in ["/page", "/login"] {
        let answer = setup.ask(2, "POST", target, &[("x-api-key", "a\u{1}b")]);
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.header("retry-after")), (400, None), "{target}");
    }
    assert_eq!(setup.reached(), []);
}

/// If Tollgate is not at the configured address, no request passes uncounted.
#[test]
fn a_mistyped_address_is_no_open_listener() {
    let mistyped = |places: &ProxyAddresses| {
        let example = example(places).replace("/v1/forward-auth/nginx", "/v1/forward-auth/ngin");
        ProxyProcess::nginx(example, places.proxy)
    };
    let setup = ProxySetup::start(&ProxyKind { start: mistyped, ..NGINX });
    assert_eq!([setup.status(2, "GET", "/page"), setup.status(2, "GET", "/login")], [500, 503]);
    assert_eq!(setup.reached(), []);
}
