//! Ordinary HTTP/2 clients: requests at once on one connection, bodies, trailers and refusals.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};

use super::applications::RecordingApplication;
use super::gateway_process::{COUNTING_RULES, GatewayProcess};

pub(super) fn current_thread_runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Opens a connection, which lives in the background.
pub(super) async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("the listener is open");
    stream.set_nodelay(true).expect("a socket");
    let (sender, connection) = client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender.ready().await.expect("a connection")
}

/// The response to a request.
#[derive(Debug)]
struct Http2Reply {
    status: u16,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

async fn send(
    sender: &SendRequest<Bytes>,
    target: &str,
    body: Option<Bytes>,
    trailers: Option<HeaderMap>,
) -> Result<Http2Reply, h2::Error> {
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = Request::builder().method(method).uri(format!("http://app{target}"));
    let request = request.header("te", "trailers").header("trailer", "x-sum");
    let request = request.body(()).expect("a request");
    let mut ready = sender.clone().ready().await?;
    let (response, mut sending) = ready.send_request(request, body.is_none())?;
    if let Some(body) = body {
        sending.send_data(body, trailers.is_none())?;
        if let Some(trailers) = trailers {
            sending.send_trailers(trailers)?;
        }
    }
    let response = response.await?;
    let (status, mut incoming) = (response.status().as_u16(), response.into_body());
    let mut body = Vec::new();
    while let Some(data) = incoming.data().await {
        let data = data?;
        let _ = incoming.flow_control().release_capacity(data.len());
        body.extend_from_slice(&data);
    }
    Ok(Http2Reply { status, body, trailers: incoming.trailers().await? })
}

#[test]
fn many_requests_share_a_connection() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    current_thread_runtime().block_on(async {
        let sender = connect(gateway.address()).await;
        // From now on the client knows how many requests may be open.
        send(&sender, "/first", None, None).await.expect("an answer");
        let requests: Vec<_> = (0..200)
            .map(|number| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let target = format!("/{number}");
                    let body = (number % 2 == 0).then(|| Bytes::from(vec![b'x'; 50_000]));
                    let reply = send(&sender, &target, body, None).await.expect("an answer");
                    assert_eq!((reply.status, reply.body), (200, target.into_bytes()));
                })
            })
            .collect();
        for request in requests {
            request.await.expect("no failure");
        }
    });
    assert_eq!(gateway.counted(), 201);
    assert_eq!(application.seen(), (201, 0));
}

#[test]
fn trailers_pass_both_ways() {
    let application = RecordingApplication::node();
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    current_thread_runtime().block_on(async {
        let sender = connect(gateway.address()).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "42".parse().expect("a value"));
        let body = Some(Bytes::from_static(b"hello"));
        let reply = send(&sender, "/trailers", body, Some(trailers)).await.expect("an answer");
        assert_eq!((reply.status, reply.body.as_slice()), (200, &b"hello"[..]));
        let trailers = reply.trailers.expect("trailers");
        assert_eq!(trailers.get("x-sum").map(|value| value.as_bytes()), Some(&b"42"[..]));
    });
}

/// A refused request is answered with 429, and the others on its connection go on.
#[test]
fn refusals_leave_the_connection_open() {
    let application = RecordingApplication::node();
    let rules = "rules: [{ name: two, key: '{ip}', limits: [2/day] }]";
    let gateway = GatewayProcess::start(application.address(), rules);
    current_thread_runtime().block_on(async {
        let sender = connect(gateway.address()).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            // A body that nobody reads must not reset the stream that its refusal comes on.
            let body = Some(Bytes::from(vec![b'x'; 100_000]));
            let reply = send(&sender, "/a", body, None).await.expect("an answer");
            statuses.push(reply.status);
        }
        assert_eq!(statuses, [200, 200, 429, 429]);
    });
    assert_eq!(application.seen(), (2, 0));
}
