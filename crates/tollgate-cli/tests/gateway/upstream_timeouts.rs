//! Upstreams that take too long, and requests that are or are not sent again.

use std::net::SocketAddr;

use testkit::peers::{RawUpstream, Upstream};
use testkit::wait::until_true;

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;

/// One upstream with short timeouts.
fn start(upstream: SocketAddr) -> GatewayProcess {
    let rules = format!(
        "
upstreams: {{ app: {{ addresses: ['http://{upstream}'], response_timeout: 300ms, idle_timeout: 300ms, eject: none }} }}
rules: [{{ name: all, key: '{{ip}}', limits: [1000000/day] }}]
"
    );
    GatewayProcess::start_routed(&rules, &["--workers", "1"])
}

#[test]
fn a_head_that_does_not_come_is_504() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.wait_for_close()
    });
    let gateway = start(upstream.address());
    for method in ["GET", "POST"] {
        let mut client = WireClient::connect(gateway.address());
        let head = format!("{method} /slow HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\n\r\n");
        client.send(head.as_bytes());
        let reply = client.read_reply(method).expect("an answer");
        assert_eq!((reply.status, reply.problem_code().as_str()), (504, "response_timeout"));
    }
    until_true("the connections to be closed", || upstream.connected() == 0);
}

#[test]
fn interim_responses_without_end_are_504() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        while !conversation.is_stopped() {
            conversation.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = start(upstream.address());
    assert_eq!(gateway.get("/hints").status, 504);
    until_true("the connection to be closed", || upstream.connected() == 0);
}

#[test]
fn a_body_that_stops_breaks_the_response() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")?;
        conversation.wait_for_close()
    });
    let gateway = start(upstream.address());
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET /slow HTTP/1.1\r\nhost: app\r\n\r\n");
    let mut reply = client.read_head().expect("a head");
    assert_eq!(reply.status, 200);
    assert!(client.read_body_of("GET", &mut reply).is_err(), "{reply:?}");
    until_true("the connection to be closed", || upstream.connected() == 0);
}

/// A request that may have been executed is not sent again, unless its method is safe.
#[test]
fn only_safe_methods_are_sent_again() {
    let upstream = RawUpstream::start(|conversation| {
        conversation.read_head()?;
        conversation.reset()
    });
    let gateway = start(upstream.address());
    // method, body | attempts
    let rows = [
        ("GET", "", 2),
        ("HEAD", "", 2),
        ("OPTIONS", "", 2),
        ("GET", "hello", 1),
        ("POST", "", 1),
        ("POST", "hello", 1),
        ("PUT", "hello", 1),
        ("DELETE", "", 1),
        ("PATCH", "", 1),
    ];
    for (method, body, attempts) in rows {
        let before = upstream.accepted();
        let mut client = WireClient::connect(gateway.address());
        let length = body.len();
        let head = format!("{method} /a HTTP/1.1\r\nhost: app\r\ncontent-length: {length}\r\n");
        client.send(format!("{head}\r\n{body}").as_bytes());
        assert_eq!(client.read_reply(method).expect("an answer").status, 502, "{method} {body}");
        assert_eq!(upstream.accepted() - before, attempts, "{method} {body}");
    }
}

#[test]
fn active_checks_find_a_dead_server_without_a_request() {
    let (alive, dead) = (Upstream::start(), testkit::net::free_address());
    let rules = format!(
        "
upstreams:
  app:
    addresses: [\"http://{}\", \"http://{dead}\"]
    retries: 0
    eject: none
    health: {{ path: /health, interval: 1s, timeout: 1s, healthy: 1, unhealthy: 1 }}
routes: [{{ path: '/{{*rest}}', upstream: app }}]
{COUNTING_RULES}",
        alive.address()
    );
    let gateway = GatewayProcess::start_routed(&rules, &[]);
    let is_found = || {
        let metrics = gateway.server.admin_get("/metrics", &[]).body;
        metrics.contains(r#"tollgate_gateway_servers{upstream="app",state="available"} 1"#)
    };
    until_true("the dead server is found", is_found);
    for _ in 0..30 {
        assert_eq!(gateway.get("/").status, 200);
    }
}
