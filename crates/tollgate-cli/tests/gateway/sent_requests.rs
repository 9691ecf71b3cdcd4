//! Requests that an upstream had, and those that it did not have, by what their failures cost.

use testkit::peers::RawUpstream;

use super::gateway_process::GatewayProcess;
use super::unsent_requests::{RefusingPort, UNITS, estimating_rules, left};

/// The rules of these tests for an upstream.
fn rules_for(upstream: &str) -> String {
    let rules = estimating_rules(&[("number", "{ reserve: 500 }")]);
    format!(
        "upstreams: {{ app: {upstream} }}\nroutes: [{{ path: '/{{*rest}}', upstream: app }}]\n{rules}"
    )
}

#[test]
fn a_request_that_one_server_had_counts_although_the_next_one_cannot_be_reached() {
    let upstream = RawUpstream::start(|conversation| conversation.read_request().map(drop));
    let port = RefusingPort::take();
    let servers = format!(
        "{{ addresses: ['http://{}', 'http://{}'], retries: 1 }}",
        upstream.address(),
        port.address
    );
    let gateway = GatewayProcess::start_routed(&rules_for(&servers), &["--workers", "1"]);
    for _ in 0..20 {
        assert!((502..=503).contains(&gateway.get("/number").status));
        let had = String::from_utf8_lossy(&upstream.received().concat()).matches("GET").count();
        assert_eq!(UNITS - left(&gateway, "/number"), 500 * had as u64, "{had} had been sent");
    }
}

#[test]
fn a_request_for_which_http2_never_began_is_free() {
    let upstream = RawUpstream::start(|conversation| conversation.read_bytes(24).map(drop));
    let servers = format!("{{ addresses: ['http://{}'], version: http2 }}", upstream.address());
    let gateway = GatewayProcess::start_routed(&rules_for(&servers), &["--workers", "1"]);
    let reply = gateway.get("/number");
    assert_eq!((reply.status, &*reply.problem_code()), (502, "reset"));
    assert_eq!(left(&gateway, "/number"), UNITS, "only the preface was sent");
}

#[test]
fn a_request_counts_if_the_upstream_switches_protocols_unasked() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_request()?;
        conversation.write(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n",
        )?;
        conversation.wait_for_close()
    });
    let servers = format!("{{ addresses: ['http://{}'] }}", upstream.address());
    let rules =
        rules_for(&servers).replace("reserve: 500", "reserve: 500, actual: '{response.bytes}'");
    let gateway = GatewayProcess::start_routed(&rules, &["--workers", "1"]);
    let reply = gateway.get("/number");
    assert_eq!((reply.status, &*reply.problem_code()), (502, "invalid_response"));
    assert_eq!(left(&gateway, "/number"), UNITS - 500);
}
