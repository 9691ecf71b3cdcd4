//! Outages of upstreams: each change is logged with the server and the reason, and status, readiness and metrics show it.

use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};
use testkit::peers::RawUpstream;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use crate::harness::TestHttpClient;

/// An address at which nobody listens.
fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address")
}

fn upstreams_of(gateway: &GatewayProcess) -> Value {
    gateway.server.admin_get("/api/status", &[]).json()["upstreams"].clone()
}

fn readiness(gateway: &GatewayProcess) -> (u16, Value) {
    let answer = gateway.server.admin_get("/readyz", &[]);
    (answer.status, answer.json())
}

fn metric(gateway: &GatewayProcess, line: &str) -> bool {
    gateway.server.admin_get("/metrics", &[]).body.lines().any(|one| one == line)
}

/// One server dies, then the other, and then both are back.
fn an_outage_is_shown(workers: &str) {
    let (first, second) = (closed_port(), closed_port());
    let other = RawUpstream::recorder();
    let rules = format!(
        "upstreams: {{ app: {{ addresses: ['http://{first}', 'http://{second}'], retries: 0,
                               eject: {{ after: 2, for: 1s }} }},
                      other: 'http://{}' }}
routes: [{{ path: /other, upstream: other }}, {{ path: '/{{*rest}}', upstream: app }}]
rules: [{{ name: all, key: '{{ip}}', limits: [1000000/day] }}]
",
        other.address()
    );
    let running = RawUpstream::start_at(second, recorder_script);
    let mut gateway = GatewayProcess::start_routed(&rules, &["--workers", workers]);
    assert_eq!(
        upstreams_of(&gateway),
        json!({ "ejected": 0, "down": 0, "failing": 0, "without_server": 0, "problems": [] })
    );

    // One of two is gone: it is ejected, and the upstream works.
    let mut shown = Value::Null;
    until_true("an ejection", || {
        gateway.get("/");
        shown = upstreams_of(&gateway);
        shown["problems"][0]["state"] == "ejected"
    });
    let line = gateway.server.wait_for_log("is ejected");
    for part in [&*format!("server=http://{first}"), "upstream=app", "reason=connect_failed"] {
        assert!(line.contains(part), "{line}");
    }
    let problem = &shown["problems"][0];
    assert_eq!(problem["upstream"], "app", "{shown}");
    assert_eq!(problem["server"], format!("http://{first}"), "{shown}");
    assert_eq!(problem["reason"], "connect_failed", "{shown}");
    assert!(problem["since_ms"].as_u64().expect("a time") > 1_700_000_000_000, "{shown}");
    assert_eq!(readiness(&gateway), (200, json!({ "ready": true })));

    // The other one dies as well.
    drop(running);
    until_true("no server", || {
        assert_eq!(gateway.get("/other").status, 200);
        gateway.get("/");
        upstreams_of(&gateway)["without_server"] == 1
    });
    let line = gateway.server.wait_for_log("no server of an upstream is available");
    assert!(line.contains("upstream=app"), "{line}");
    // The ejection of the first may end at any moment.
    until_true("a degraded server", || {
        let (status, document) = readiness(&gateway);
        assert_eq!((status, &document["ready"]), (200, &json!(true)));
        gateway.get("/");
        document["upstreams_without_server"] == json!(["app"])
            && document["degraded"] == true
            && document["message"].as_str().is_some_and(|message| message.contains("app"))
    });
    until_true("metrics", || {
        gateway.get("/");
        metric(&gateway, r#"tollgate_gateway_servers{upstream="app",state="available"} 0"#)
    });

    // Both are back.
    let _running = [first, second].map(|address| RawUpstream::start_at(address, recorder_script));
    until_true("all servers", || {
        gateway.get("/");
        upstreams_of(&gateway)["problems"] == json!([])
    });
    gateway.server.wait_for_log("an upstream has an available server again");
    assert_eq!(readiness(&gateway), (200, json!({ "ready": true })));
    assert!(metric(&gateway, r#"tollgate_gateway_servers{upstream="app",state="available"} 2"#));
}

fn recorder_script(conversation: &mut testkit::peers::RawConversation) -> std::io::Result<()> {
    while conversation.read_request()?.is_some() {
        conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
    Ok(())
}

#[test]
fn an_outage_is_logged_and_shown() {
    an_outage_is_shown("1");
}

#[test]
fn an_outage_is_logged_and_shown_by_four_workers() {
    an_outage_is_shown("4");
}

#[test]
fn a_failing_health_check_is_logged_and_counted() {
    let sick = RawUpstream::start(|conversation| {
        while conversation.read_request()?.is_some() {
            let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
            conversation.write(head.as_bytes())?;
        }
        Ok(())
    });
    let address = sick.address();
    let rules = format!(
        "upstreams: {{ app: {{ addresses: ['http://{address}'],
                       health: {{ path: /healthz, interval: 100ms, unhealthy: 2, healthy: 1 }} }} }}
rules: [{{ name: all, key: '{{ip}}', limits: [1000000/day] }}]
"
    );
    let mut gateway = GatewayProcess::start_routed(&rules, &[]);
    let line = gateway.server.wait_for_log("fails its health checks");
    let server = format!("server=http://{address}");
    for part in [&*server, "reason=\"health check: status 503\"", "upstream=app"] {
        assert!(line.contains(part), "{line}");
    }
    let shown = upstreams_of(&gateway);
    assert_eq!((&shown["down"], &shown["without_server"]), (&json!(1), &json!(1)), "{shown}");
    let report = gateway.server.admin_get("/api/upstreams", &[]).json();
    let of_server = &report["upstreams"][0]["servers"][0];
    assert_eq!((&of_server["state"], &of_server["up"]), (&json!("down"), &json!(false)));
    assert!(of_server["failures"].as_u64() >= Some(2), "{report}");
    assert!(of_server["failed_checks"].as_u64() >= Some(2), "{report}");
    drop(sick);
    let _well = RawUpstream::start_at(address, recorder_script);
    gateway.server.wait_for_log("a server of an upstream answers again");
    assert_eq!(upstreams_of(&gateway)["down"], 0);
}

/// gRPC clients cannot eject servers of HTTP/1.1, whatever version of HTTP they speak themselves.
#[test]
fn grpc_to_servers_of_http1_ejects_nobody() {
    let servers = [(); 4].map(|()| RawUpstream::recorder());
    let urls = servers.each_ref().map(|server| format!("'http://{}'", server.address()));
    let rules = format!(
        "upstreams: {{ app: {{ addresses: [{}] }} }}
rules: [{{ name: all, key: '{{ip}}', limits: [1000000/day] }}]
",
        urls.join(", ")
    );
    for workers in ["1", "4"] {
        let gateway = GatewayProcess::start_routed(&rules, &["--workers", workers]);
        for number in 0..32 {
            let mut client = TestHttpClient::connect(gateway.address());
            let fields = [("Content-Type", "application/grpc")];
            let answer = client.request("POST", "/service/method", &fields, "body");
            assert_eq!(answer.status, 200, "request {number}: {answer:?}");
        }
        let shown = upstreams_of(&gateway);
        assert_eq!((&shown["ejected"], &shown["problems"]), (&json!(0), &json!([])));
    }
}
