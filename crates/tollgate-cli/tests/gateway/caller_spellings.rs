//! Callers that spell a host, a cookie or a header field in other ways: the gateway counts them as one, and the upstream
//! sees what was counted.

use std::net::Ipv4Addr;

use testkit::peers::RawUpstream;

use super::gateway_process::GatewayProcess;
use super::http2_wire::Http2Wire;
use super::wire_client::{WireClient, WireReply};

/// An upstream whose responses are the heads of its requests.
fn echo() -> RawUpstream {
    RawUpstream::start(|conversation| {
        loop {
            let head = conversation.read_head()?;
            let length = head.len();
            let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}");
            conversation.write(reply.as_bytes())?;
        }
    })
}

/// Sends one request of HTTP/1.1 from an untrusted address.
fn send(gateway: &GatewayProcess, target: &str, fields: &str) -> WireReply {
    let mut client = WireClient::connect_from(Ipv4Addr::new(127, 0, 0, 9), gateway.address());
    client.send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n").as_bytes());
    client.read_reply("GET").expect("an answer")
}

/// Sends one request of HTTP/2; the body of the response, which a refusal has as well.
fn send_http2(gateway: &GatewayProcess, fields: &[(&str, &str)]) -> String {
    let mut wire = Http2Wire::connect_from(Ipv4Addr::new(127, 0, 0, 9), gateway.address());
    wire.send_request(1, fields, b"").expect("a connection");
    String::from_utf8(wire.read_stream(1).data).expect("text")
}

fn is_refused(body: &str) -> bool {
    body.contains("Too Many Requests")
}

#[test]
fn a_host_is_one_in_every_spelling_and_protocol() {
    let upstream = echo();
    let rules = "identify: { trusted_peers: [] }
rules:
  - { name: api, match: { host: api.example }, key: '{host}', limits: [{ rate: 1/hour, algorithm: sliding_window_log }] }";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    assert_eq!(send(&gateway, "/", "host: other.example\r\n").status, 200);
    assert_eq!(send(&gateway, "/", "host: api.example\r\n").status, 200, "the one");
    for host in ["api.example", "API.example", "api.example.", "api.example:1", "Api.Example.:80"] {
        let reply = send(&gateway, "/", &format!("host: {host}\r\n"));
        assert_eq!(reply.status, 429, "Host: {host}");
        let target = format!("http://{host}/");
        let reply = send(&gateway, &target, &format!("host: {host}\r\n"));
        assert_eq!(reply.status, 429, "{target}");
        let head = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        let body = send_http2(&gateway, &[&head[..], &[(":authority", host)]].concat());
        assert!(is_refused(&body), ":authority {host}: {body}");
        let body = send_http2(&gateway, &[&head[..], &[("host", host)]].concat());
        assert!(is_refused(&body), "host {host} of HTTP/2: {body}");
    }
}

#[test]
fn a_request_without_a_host_does_not_get_around_rules_of_hosts() {
    let upstream = echo();
    let rules = "rules: [{ name: hosts, key: '{host}', limits: [{ rate: 1/hour, algorithm: sliding_window_log }] }]";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    assert_eq!(send(&gateway, "/", "host: app\r\n").status, 200, "the one");
    for fields in ["host: .\r\n", "host: ..\r\n", "host: .:80\r\n", "host:\r\n", ""] {
        assert_eq!(send(&gateway, "/", fields).status, 400, "{fields:?}");
    }
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_reply("GET").expect("an answer").status, 400, "HTTP/1.0");
    let head = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let body = send_http2(&gateway, &head);
    assert!(body.contains("`Host`"), "HTTP/2 without :authority: {body}");
}

#[test]
fn cookies_in_pieces_are_joined_before_the_decision() {
    let upstream = echo();
    let rules = "identify: { trusted_peers: [] }
rules:
  - { name: tester, match: { header: { cookie: { glob: '*session=7*' } } }, key: '{header.cookie}',
      limits: [{ rate: 2/hour, algorithm: sliding_window_log }] }";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let head = [(":method", "GET"), (":scheme", "http"), (":authority", "app"), (":path", "/")];
    let crumbs = [("cookie", "theme=dark"), ("cookie", "session=7")];
    let first = send_http2(&gateway, &[&head[..], &crumbs].concat());
    assert!(first.contains("cookie: theme=dark; session=7"), "{first}");
    let whole = "host: app\r\ncookie: theme=dark; session=7\r\n";
    assert_eq!(send(&gateway, "/", whole).status, 200, "the second of two");
    let third = send_http2(&gateway, &[&head[..], &crumbs].concat());
    assert!(is_refused(&third), "{third}");
    assert_eq!(send(&gateway, "/", whole).status, 429);
}

#[test]
fn fields_that_servers_confuse_with_a_counted_one_do_not_pass() {
    let upstream = echo();
    let rules = "identify: { trusted_peers: [127.0.0.1/32], user: { header: x_user_id } }
rules:
  - { name: tenant, match: { header: { x-plan: free } }, key: '{header.X-Tenant}',
      limits: [{ rate: 1000/hour, algorithm: sliding_window_log }] }";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let sent = "host: app\r\nX-Tenant: a\r\nX_Tenant: b\r\nx.tenant: c\r\nX-Plan: free\r\nX_Plan: d\r\n\
                X-User-Id: root\r\nx_user_id: root\r\nx_other: e\r\n";
    let reply = send(&gateway, "/", sent);
    let seen = reply.text().to_ascii_lowercase();
    assert_eq!(reply.status, 200, "{seen}");
    assert!(reply.field("ratelimit").is_some(), "the rule applies");
    assert!(seen.contains("x-tenant: a\r\n") && seen.contains("x_other: e\r\n"), "{seen}");
    for gone in ["x_tenant", "x.tenant", "x_plan", "x-user-id", "x_user_id"] {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    // The field alone, under its other name, names no tenant.
    let reply = send(&gateway, "/", "host: app\r\nX_Tenant: b\r\nX-Plan: free\r\n");
    assert!(!reply.text().to_ascii_lowercase().contains("x_tenant"), "{}", reply.text());
    // A second line of a field that a rule matches does not hide the first.
    let reply = send(&gateway, "/", "host: app\r\nX-Tenant: a\r\nX-Plan: gold\r\nX-Plan: free\r\n");
    assert!(reply.field("ratelimit").is_some(), "the second line counts");
}

#[test]
fn addresses_that_strangers_state_do_not_reach_the_upstream() {
    let upstream = echo();
    let gateway = GatewayProcess::start(
        upstream.address(),
        "identify: { trusted_peers: [127.0.0.1/32] }\nrules: [{ name: all, key: '{ip}', limits: [1000/s] }]",
    );
    let names = "x-originating-ip x-appengine-user-ip x-vercel-forwarded-for do-connecting-ip \
        x-forwarded-for x-real-ip fastly-client-ip fly-client-ip x-nf-client-connection-ip \
        cloudfront-viewer-address x-azure-socketip eo-client-ip x_originating_ip";
    let fields: String =
        names.split_whitespace().map(|name| format!("{name}: 192.0.2.66\r\n")).collect();
    let from_stranger =
        send(&gateway, "/", &format!("host: app\r\n{fields}x-own: kept\r\n")).text();
    assert!(
        !from_stranger.contains("192.0.2.66") && from_stranger.contains("x-own: kept"),
        "{from_stranger}"
    );
    let mut proxy = WireClient::connect(gateway.address());
    proxy.send(format!("GET / HTTP/1.1\r\nhost: app\r\n{fields}\r\n").as_bytes());
    let from_proxy = proxy.read_reply("GET").expect("an answer").text();
    assert!(from_proxy.contains("do-connecting-ip: 192.0.2.66"), "{from_proxy}");
    assert!(!from_proxy.contains("x_originating_ip"), "{from_proxy}");
}

#[test]
fn trailers_cannot_be_taken_for_fields_that_rules_read() {
    let upstream = RawUpstream::recorder();
    let rules = "identify: { trusted_peers: [127.0.0.1/32], user: { header: x_user_id } }
rules:
  - { name: tenants, key: '{header.x-tenant|ip}', limits: [1000/hour] }
  - { name: beta, match: { header: { x-beta: 'yes' } }, key: '{ip}', limits: [1000/hour] }";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let trailers = "x_tenant: a\r\nx-tenant: b\r\nX.Tenant: c\r\nx_beta: yes\r\nx-beta: yes\r\n\
                    x-user-id: otto\r\nx_user_id: otto\r\nx-sum: 42\r\nx_other: 1\r\n";
    let names =
        "x_tenant, x-tenant, x.tenant, x_beta, x-beta, x-user-id, x_user_id, x-sum, x_other";
    let head = format!(
        "POST / HTTP/1.1\r\nhost: app\r\nx-tenant: one\r\ntrailer: {names}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    for from in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 9)] {
        let mut client = WireClient::connect_from(from, gateway.address());
        client.send(format!("{head}2\r\nxx\r\n0\r\n{trailers}\r\n").as_bytes());
        assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
        let requests = upstream.take_requests().expect("strict HTTP");
        let mut passed: Vec<_> = requests[0].trailers.iter().map(|(name, _)| &**name).collect();
        passed.sort_unstable();
        assert_eq!(passed, ["x-sum", "x_other"], "from {from}");
    }
}
