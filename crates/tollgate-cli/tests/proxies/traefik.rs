//! Traefik: `forwardAuth`, by way of a router of its own, with `examples/traefik`.

use testkit::net::free_address;
use testkit::peers::{ExampleFiles, ProxyProcess};

use crate::proxies::scenarios;
use crate::proxies::setup::{ProxyAddresses, ProxyKind, ProxySetup};

/// Traefik adds nothing to the answers of an application.
const TRAEFIK: ProxyKind =
    ProxyKind { folder: "traefik", start, tells_what_is_left: false, closed: &[500, 502, 504] };

fn start(places: &ProxyAddresses) -> ProxyProcess {
    let example = places.put_into(ExampleFiles::read("traefik", &["traefik.yaml", "routes.yaml"]));
    let example = example.replace("127.0.0.1:8090", free_address());
    ProxyProcess::traefik(&example.replace("127.0.0.1:8000", places.proxy), places.proxy)
}

#[test]
fn a_request_passes_as_it_is() {
    scenarios::let_in(&TRAEFIK);
}

#[test]
fn a_path_is_passed_on_as_it_was_read() {
    scenarios::passes_on_what_it_read(&TRAEFIK);
}

#[test]
fn a_refusal_is_429_and_goes_no_further() {
    scenarios::refused(&TRAEFIK);
}

#[test]
fn callers_with_a_key_are_counted_by_it() {
    scenarios::counted_by_key(&TRAEFIK);
}

#[test]
fn made_up_keys_run_out() {
    scenarios::made_up_keys_run_out(&TRAEFIK);
}

#[test]
fn whoever_is_refused_stays_refused_whatever_they_send() {
    scenarios::refused_whatever_they_send(&TRAEFIK);
}

#[test]
fn without_an_answer_open_paths_pass_and_closed_ones_do_not() {
    scenarios::nobody_answers(&TRAEFIK);
}

#[test]
fn a_closed_rule_without_its_store_is_503() {
    scenarios::store_does_not_answer(&TRAEFIK);
}

#[test]
fn a_slow_tollgate_makes_nobody_wait_long() {
    scenarios::slow(&TRAEFIK);
}

#[test]
fn connections_to_tollgate_are_kept() {
    scenarios::connections_are_kept(&TRAEFIK);
}

#[test]
fn two_keys_are_none() {
    let setup = ProxySetup::start(&TRAEFIK);
    let keys = [("x-api-key", "first"), ("x-api-key", "second")];
    assert_eq!(setup.ask(2, "GET", "/page", &keys).expect("an answer").status, 400);
    assert_eq!(setup.reached(), []);
}

/// Traefik takes them for letters, an application may take them for slashes: nobody's path is closed
/// or counted by how it is spelt.
#[test]
fn encoded_slashes_are_refused() {
    let setup = ProxySetup::start(&TRAEFIK);
    for target in ["/%2Flogin", "/a%2f..%2flogin", "/%5Clogin", "/a%5c..%5clogin"] {
        assert_eq!(setup.status(2, "POST", target), 400, "{target}");
    }
    assert_eq!(setup.reached(), []);
}
