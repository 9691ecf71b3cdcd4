//! Caddy: `forward_auth` written out, with `examples/caddy`.

use testkit::net::free_address;
use testkit::peers::{ExampleFiles, ProxyProcess};

use crate::proxies::scenarios;
use crate::proxies::setup::{ProxyAddresses, ProxyKind, ProxySetup};

const CADDY: ProxyKind =
    ProxyKind { folder: "caddy", start, tells_what_is_left: true, closed: &[503] };

fn start(places: &ProxyAddresses) -> ProxyProcess {
    let example = places.put_into(ExampleFiles::read("caddy", &["Caddyfile"]));
    let example = example.replace("127.0.0.1:2019", free_address());
    ProxyProcess::caddy(
        &example.replace("http://:8000", format!("http://:{}", places.proxy.port())),
        places.proxy,
    )
}

#[test]
fn a_request_passes_as_it_is() {
    scenarios::let_in(&CADDY);
}

#[test]
fn a_path_is_passed_on_as_it_was_read() {
    scenarios::passes_on_what_it_read(&CADDY);
}

#[test]
fn a_refusal_is_429_and_goes_no_further() {
    scenarios::refused(&CADDY);
}

#[test]
fn callers_with_a_key_are_counted_by_it() {
    scenarios::counted_by_key(&CADDY);
}

#[test]
fn made_up_keys_run_out() {
    scenarios::made_up_keys_run_out(&CADDY);
}

#[test]
fn whoever_is_refused_stays_refused_whatever_they_send() {
    scenarios::refused_whatever_they_send(&CADDY);
}

#[test]
fn without_an_answer_open_paths_pass_and_closed_ones_do_not() {
    scenarios::nobody_answers(&CADDY);
}

#[test]
fn a_closed_rule_without_its_store_is_503() {
    scenarios::store_does_not_answer(&CADDY);
}

#[test]
fn a_slow_tollgate_makes_nobody_wait_long() {
    scenarios::slow(&CADDY);
}

#[test]
fn connections_to_tollgate_are_kept() {
    scenarios::connections_are_kept(&CADDY);
}

#[test]
fn two_keys_are_none() {
    let setup = ProxySetup::start(&CADDY);
    let keys = [("x-api-key", "first"), ("x-api-key", "second")];
    assert_eq!(setup.ask(2, "GET", "/page", &keys).expect("an answer").status, 400);
    assert_eq!(setup.reached(), []);
}

/// An application that fails is not asked twice, as if Tollgate had not answered.
#[test]
fn an_application_that_is_gone_is_not_taken_for_tollgate() {
    let mut setup = ProxySetup::start(&CADDY);
    let gone = std::mem::replace(&mut setup.application, testkit::peers::Upstream::start());
    drop(gone);
    assert_eq!(setup.status(2, "GET", "/page"), 502);
    assert_eq!(setup.status(2, "POST", "/login"), 502);
}
