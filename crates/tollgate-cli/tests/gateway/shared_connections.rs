//! Many clients behind one proxy, whose requests come on one HTTP/2 connection: a client that has used up its memory for bodies
//! does not stop the others.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::Request;
use testkit::peers::RawUpstream;

use super::gateway_process::GatewayProcess;
use super::http2_clients::{connect, current_thread_runtime};
use crate::harness::DEADLINE;
use crate::server::exposition::ParsedExposition;

/// A rule that needs bodies of `/chat`, which come through a trusted proxy.
const RULES: &str = "
identify: { trusted_peers: [127.0.0.1/32] }
rules:
  - { name: chat, match: { path: /chat }, key: '{ip}', limits: [1000000/day],
      cost: { reserve: '{request.json.max_tokens|2000}' } }
";

/// Bytes of an unfinished body.
const PART_BYTES: usize = 15_000;

/// Begins a request of a client behind the proxy.
async fn begin(
    sender: &SendRequest<Bytes>,
    client: &str,
    (method, target): (&str, &str),
) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let request = Request::builder().method(method).uri(format!("http://app{target}"));
    let request = request.header("x-forwarded-for", client).body(()).expect("a request");
    let mut ready = sender.clone().ready().await.expect("a connection");
    ready.send_request(request, method == "GET").expect("it is sent")
}

/// The answer to a whole request, or `None` if there is none in time.
async fn answer_of(
    sender: &SendRequest<Bytes>,
    client: &str,
    what: (&str, &str),
    body: &'static [u8],
) -> Option<u16> {
    let (response, mut sending) = begin(sender, client, what).await;
    if !body.is_empty() {
        sending.send_data(Bytes::from_static(body), true).expect("it is sent");
    }
    let answer = async {
        let response = response.await.expect("an answer");
        let status = response.status().as_u16();
        read_all(response.into_body()).await;
        status
    };
    tokio::time::timeout(DEADLINE, answer).await.ok()
}

async fn read_all(mut body: RecvStream) {
    while let Some(data) = body.data().await {
        let length = data.expect("data").len();
        let _ = body.flow_control().release_capacity(length);
    }
}

fn body_memory(gateway: &GatewayProcess) -> u64 {
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    let mut samples = page.samples();
    samples
        .find(|one| one.name == "tollgate_gateway_body_memory_bytes")
        .map_or(0, |one| one.value as u64)
}

#[test]
fn a_client_that_has_used_up_its_share_does_not_stop_others_on_the_connection() {
    let upstream = RawUpstream::recorder();
    // The first memory leaves connections their small windows, the second has large ones.
    for (workers, memory) in [("1", "1MiB"), ("4", "1MiB"), ("1", "16MiB")] {
        let flags =
            ["--workers", workers, "--gateway-body-memory", memory, "--body-timeout", "10m"];
        let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
        current_thread_runtime().block_on(async {
            let sender = connect(gateway.address()).await;
            assert_eq!(answer_of(&sender, "192.0.2.9", ("GET", "/first"), b"").await, Some(200));
            let mut unfinished = Vec::new();
            for _ in 0..90 {
                let (response, mut sending) = begin(&sender, "192.0.2.1", ("POST", "/chat")).await;
                sending.send_data(Bytes::from(vec![b'['; PART_BYTES]), false).expect("it is sent");
                let response = tokio::spawn(response);
                unfinished.push((response, sending));
            }
            let used_up = async {
                while body_memory(&gateway) <= 30_000 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(DEADLINE, used_up).await.expect("the share is used up");
            let rows: [(_, _, &'static [u8]); 4] = [
                ("GET", "/plain", b""),
                ("GET", "/chat", b""),
                ("POST", "/plain", b"a body that no rule needs"),
                ("POST", "/chat", br#"{"max_tokens":1}"#),
            ];
            for (method, target, body) in rows {
                let answer = answer_of(&sender, "192.0.2.2", (method, target), body).await;
                assert_eq!(answer, Some(200), "{method} {target}, {workers} workers, {memory}");
            }
            // Of the attacker's bodies some wait, and the others are refused.
            let refused = unfinished.iter().filter(|(response, _)| response.is_finished()).count();
            assert!((1..90).contains(&refused), "{refused}");
        });
    }
}
