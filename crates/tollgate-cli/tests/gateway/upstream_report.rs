//! `GET /api/upstreams`: servers, queues and tunnels of a running gateway.

use std::net::TcpListener;

use serde_json::{Value, json};
use testkit::peers::RawUpstream;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;
use crate::harness::TollgateProcess;

fn report(server: &TollgateProcess) -> Value {
    let answer = server.admin_get("/api/upstreams", &[]);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn servers_queues_and_tunnels_are_counted() {
    let upstream = RawUpstream::start(|conversation| {
        while let Some(request) = conversation.read_request()? {
            let head = match request.target == "/echo" {
                true => {
                    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
                }
                false => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            };
            conversation.write(head.as_bytes())?;
        }
        Ok(())
    });
    // Nobody listens at a port that was just given back.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (good, bad) = (format!("http://{}", upstream.address()), format!("http://{closed}"));
    let rules = format!(
        "upstreams: {{ app: {{ addresses: ['{good}', '{bad}'], retries: 0 }} }}
rules:
  - {{ name: queue, key: '{{ip}}', fair: {{ wait: 5s, per_key: 50, total: 100 }} }}
  - {{ name: all, key: global, concurrency: adaptive }}
"
    );
    let gateway = GatewayProcess::start_routed(&rules, &["--workers", "1"]);
    let server = &gateway.server;
    let fresh = report(server);
    assert_eq!((&fresh["gateway"], &fresh["tunnels"]), (&json!(true), &json!({ "open": 0 })));
    let of_server = |report: &Value, url: &str| {
        let servers = report["upstreams"][0]["servers"].as_array().expect("servers");
        servers.iter().find(|one| one["url"] == url).unwrap_or_else(|| panic!("{report}")).clone()
    };
    let want = json!({
        "url": bad, "up": true, "state": "available", "reason": null, "since_ms": null,
        "in_flight": 0, "requests": 0, "failures": 0, "failed_checks": 0, "mean_ms": null,
    });
    assert_eq!(of_server(&fresh, &bad), want);
    assert_eq!(fresh["queues"][0]["rule"], "queue");

    // The bad server gets requests until it is ejected.
    let mut statuses = Vec::new();
    until_true("an ejection", || {
        statuses.push(gateway.get("/").status);
        of_server(&report(server), &bad)["up"] == false
    });
    let shown = report(server);
    let (of_good, of_bad) = (of_server(&shown, &good), of_server(&shown, &bad));
    let failed = statuses.iter().filter(|status| **status == 502).count();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(failed + served, statuses.len(), "{statuses:?}");
    assert_eq!((&of_bad["failures"], &of_bad["requests"]), (&json!(failed), &json!(failed)));
    assert_eq!((&of_good["requests"], &of_good["failures"]), (&json!(served), &json!(0)));
    assert_eq!(of_bad["mean_ms"], Value::Null);
    assert_eq!(
        (&of_bad["state"], &of_bad["reason"]),
        (&json!("ejected"), &json!("connect_failed"))
    );
    assert!(served == 0 || of_good["mean_ms"].as_f64().unwrap() > 0.0, "{shown}");
    assert_eq!(shown["upstreams"][0]["name"], "app");
    assert_eq!(shown["adaptive"][0]["rule"], "all");

    let mut tunnel = WireClient::connect(gateway.address());
    tunnel.send(b"GET /echo HTTP/1.1\r\nhost: app\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    assert_eq!(tunnel.read_head().expect("a head").status, 101);
    until_true("an open tunnel", || report(server)["tunnels"]["open"] == 1);
    drop(tunnel);
    until_true("a closed tunnel", || report(server)["tunnels"]["open"] == 0);
}

#[test]
fn a_server_without_a_gateway_says_so() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let want = json!({
        "gateway": false, "upstreams": [], "queues": [], "tunnels": { "open": 0 }, "adaptive": [],
    });
    assert_eq!(report(&server), want);
    assert_eq!(server.admin_get("/api/upstreams?x", &[]).status, 400);
}
