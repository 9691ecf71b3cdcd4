//! Requests that wait under `queue: true` for hours, until somebody raises the limit: they depart at the new pace, and
//! before those who come then, over memory and over a Redis.

use std::fs;

use testkit::redis::TestRedis;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::shaping::{Arrivals, recorder, waits};
use super::wire_client::WireClient;
use crate::harness::TestHttpClient;

fn rules(rate: &str) -> String {
    format!(
        "rules: [{{ name: even, key: '{{ip}}', \
         limits: [{{ rate: {rate}, burst: 20, algorithm: leaky_bucket, queue: true }}] }}]"
    )
}

/// The rate that the limit is raised to: one in 400 ms, so that a busy machine changes no order between a departure and its
/// arrival. A rate of another period would be another limit.
const RAISED: &str = "9000/hour";

/// A way to raise the limit.
type Raise = fn(&GatewayProcess);

fn post(gateway: &GatewayProcess, path: &str, body: &str) {
    let mut admin = TestHttpClient::connect(gateway.server.admin());
    let answer = admin.request("POST", path, &[("x-tollgate-admin", "1")], body);
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn reload(gateway: &GatewayProcess) {
    fs::write(gateway.rules_path(), rules(RAISED)).expect("a file");
    post(gateway, "/api/reload", "");
}

fn set_override(gateway: &GatewayProcess) {
    let limit = format!(
        r#"{{ "rate": "{RAISED}", "burst": 20, "algorithm": "leaky_bucket", "queue": true }}"#
    );
    let body = format!(r#"{{ "override": {{ "limits": [{limit}] }} }}"#);
    post(gateway, "/api/keys/even/ip=127.0.0.1", &body);
}

/// Sends requests one after the other, each when those before it stand in line or have departed.
fn send(
    gateway: &GatewayProcess,
    arrivals: &Arrivals,
    numbers: impl Iterator<Item = u64>,
) -> Vec<WireClient> {
    let sent = numbers.map(|number| {
        let mut client = WireClient::connect(gateway.address());
        client.send(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes());
        until_true("the request to stand in line", || {
            let figures = waits(gateway);
            let departed = arrivals.lock().expect("no panic").len() as u64;
            figures["waiting"].as_u64().expect("a number") + departed > number
        });
        client
    });
    sent.collect()
}

#[test]
fn those_who_wait_depart_at_the_new_pace_and_before_newcomers() {
    let ways: [(&str, Raise); 2] = [("reload", reload), ("override", set_override)];
    for (name, raise) in ways {
        for redis in [None, Some(TestRedis::start())] {
            let url = redis.as_ref().map(TestRedis::url).unwrap_or_default();
            let store = ["--store", &url, "--store-timeout", "1s"];
            let store = if redis.is_some() { &store[..] } else { &[] };
            let flags = [&["--workers", "2", "--gateway-max-delay", "100h"], store].concat();
            let (upstream, arrivals) = recorder();
            let gateway = GatewayProcess::start_with(upstream.address(), &rules("1/hour"), &flags);
            let mut clients = send(&gateway, &arrivals, 0..5);
            assert_eq!(arrivals.lock().expect("no panic").len(), 1, "the others wait for hours");
            raise(&gateway);
            clients.extend(send(&gateway, &arrivals, 5..7));
            for client in &mut clients {
                assert_eq!(client.read_reply("GET").expect("an answer").status, 200);
            }
            let order: Vec<String> =
                arrivals.lock().expect("no panic").iter().map(|one| one.0.clone()).collect();
            let expected: Vec<String> = (0..7).map(|number| format!("/{number}")).collect();
            assert_eq!(order, expected, "{name} over {url:?}");
        }
    }
}
