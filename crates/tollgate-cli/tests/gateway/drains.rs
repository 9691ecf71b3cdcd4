//! The end of a drain: requests that still wait for their turn get an answer, and have paid nothing.

use std::thread;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::http2_clients::{connect, current_thread_runtime};
use super::shaping::waiting;
use super::wire_client::WireClient;
use crate::harness::text;

/// Requests that are admitted and delayed.
const QUEUE: &str = "
rules: [{ name: even, key: global, limits: [{ rate: 1/hour, burst: 20, algorithm: leaky_bucket, queue: true }] }]
";

/// Requests that wait in a fair queue and have charged nothing.
const FAIR: &str = "
rules: [{ name: each, key: '{ip}', fair: { wait: 1h, per_key: 20, total: 20 }, limits: [20/hour burst 1] }]
";

/// Requests of each protocol that wait.
const WAITERS: usize = 3;

/// The status, the value of `Retry-After` and the body of an answer.
type DrainAnswer = (u16, Option<String>, Vec<u8>);

/// Sends a request on a connection that others use, and reads its answer.
async fn answer_of(sender: SendRequest<Bytes>) -> Result<DrainAnswer, h2::Error> {
    let request = Request::get("http://app/waits").body(()).expect("a request");
    let (response, _) = sender.ready().await?.send_request(request, true)?;
    let response = response.await?;
    let status = response.status().as_u16();
    let retry = response.headers().get("retry-after");
    let retry = retry.map(|value| value.to_str().expect("a number").to_owned());
    let mut incoming = response.into_body();
    let mut body = Vec::new();
    while let Some(data) = incoming.data().await {
        body.extend_from_slice(&data?);
    }
    Ok((status, retry, body))
}

/// Lets requests of both protocols wait, stops the gateway, and returns their answers.
fn answers_at_drain(gateway: &GatewayProcess) -> Vec<DrainAnswer> {
    let address = gateway.address();
    thread::scope(|scope| {
        let over_http2 = scope.spawn(move || {
            current_thread_runtime().block_on(async {
                let sender = connect(address).await;
                let requests: Vec<_> =
                    (0..WAITERS).map(|_| tokio::spawn(answer_of(sender.clone()))).collect();
                let mut answers = Vec::new();
                for request in requests {
                    let answer = request.await.expect("no panic");
                    answers.push(answer.expect("an answer, and no reset"));
                }
                answers
            })
        });
        let clients: Vec<WireClient> = (0..WAITERS)
            .map(|_| {
                let mut client = WireClient::connect(address);
                client.send(b"GET /waits HTTP/1.1\r\nhost: app\r\n\r\n");
                client
            })
            .collect();
        until_true("all of them to wait", || waiting(gateway) == 2 * WAITERS as u64);
        gateway.server.signal("TERM");
        let over_http1 = clients.into_iter().map(|mut client| {
            let reply = client.read_reply("GET").expect("an answer, and no cut");
            assert_eq!(reply.field("connection"), Some("close"), "{reply:?}");
            (reply.status, reply.field("retry-after").map(str::to_owned), reply.body)
        });
        let over_http1: Vec<DrainAnswer> = over_http1.collect();
        over_http1.into_iter().chain(over_http2.join().expect("no panic")).collect()
    })
}

/// Stops a gateway while requests wait. Checks their answers, and that the next process finds their units.
fn check_drain(name: &str, rules: &str, store: &[&str]) {
    let upstream = RawUpstream::recorder();
    let flags = [&["--workers", "2", "--gateway-max-delay", "3000h"], store].concat();
    let start = || GatewayProcess::start_with(upstream.address(), rules, &flags);
    let remaining = |gateway: &GatewayProcess| {
        gateway.server.check(r#"{"ip":"127.0.0.1","cost":0}"#)["remaining"].as_u64()
    };
    let gateway = start();
    assert_eq!(gateway.get("/first").status, 200, "{name}");
    let left = remaining(&gateway);
    for (status, retry, body) in answers_at_drain(&gateway) {
        let document: serde_json::Value = serde_json::from_slice(&body).expect("a document");
        assert_eq!((status, retry.as_deref()), (503, Some("1")), "{name}: {document}");
        assert_eq!(document["code"], "stopping", "{name}: {document}");
    }
    let ended = gateway.server.wait();
    assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
    assert_eq!(remaining(&start()), left, "{name}: {ended:?}");
    let received = String::from_utf8_lossy(&upstream.received().concat()).into_owned();
    assert!(!received.contains("/waits"), "{name}: {received}");
}

#[test]
fn who_waits_when_a_drain_ends_is_told_to_come_again_and_has_paid_nothing() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    thread::scope(|scope| {
        for (name, rules) in [("queue", QUEUE), ("fair", FAIR)] {
            let snapshot = directory.path().join(name);
            scope.spawn(move || check_drain(name, rules, &["--snapshot", text(&snapshot)]));
            scope.spawn(move || {
                let redis = TestRedis::start();
                let store = ["--store", &redis.url(), "--store-timeout", "1s"];
                check_drain(&format!("{name} over Redis"), rules, &store);
            });
        }
    });
}
