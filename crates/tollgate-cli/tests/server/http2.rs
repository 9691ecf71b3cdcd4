//! HTTP/2: answers arrive whole, whatever the request carries, and do not pile up if nobody reads them.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Method, Request, Response};
use tempfile::tempdir;
use tokio::net::TcpStream;
use tokio::runtime;

use crate::harness::{DEADLINE, TollgateProcess, file, text};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An answer that does not wait for the body must not reset the stream that the body is still
/// coming in on: many clients then throw the answer away.
#[test]
fn answers_that_need_no_body_are_not_lost() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let server =
        TollgateProcess::start(&["--limit", "99999/hour", "--auth-token-file", text(&tokens)]);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let body = |bytes| Bytes::from(vec![b' '; bytes]);
    // method, path, token, body | status
    let rows = [
        (Method::POST, "/v1/check", "Bearer wrong", body(300_000), 401),
        (Method::POST, "/v1/chek", &bearer, body(300_000), 404),
        (Method::PUT, "/v1/check", &bearer, body(300_000), 405),
        (Method::POST, "/v1/check", &bearer, body(300_000), 413),
        (Method::POST, "/v1/check", &bearer, body(3_000_000), 413),
        (Method::POST, "/v1/forward-auth", &bearer, body(300_000), 200),
        (Method::POST, "/v1/forward-auth", &bearer, body(10), 200),
    ];
    for (method, path, token, body, status) in rows {
        for _ in 0..50 {
            let request = Request::builder().method(method.clone()).header("authorization", token);
            let request = request.uri(format!("http://{}{path}", server.http()));
            let asked = ask(&server, request.body(()).unwrap(), body.clone());
            let asked = async { tokio::time::timeout(DEADLINE, asked).await.expect("an answer") };
            assert_eq!(runtime.block_on(asked), Ok(status), "{method} {path} {}", body.len());
        }
    }
}

/// The status of the answer, on a connection of its own; `Err` if the stream is reset.
async fn ask(server: &TollgateProcess, request: Request<()>, body: Bytes) -> Result<u16, String> {
    let stream = TcpStream::connect(server.http()).await.expect("the listener is open");
    let (sender, mut connection) = client::handshake(stream).await.expect("HTTP/2");
    let mut pings = connection.ping_pong().expect("the first use");
    tokio::spawn(connection);
    let mut sender: SendRequest<Bytes> = sender.ready().await.expect("a connection");
    let (response, mut sending) = sender.send_request(request, false).expect("a request");
    sending.send_data(body, true).map_err(|error| error.to_string())?;
    let response = response.await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let mut answer = response.into_body();
    while let Some(data) = answer.data().await {
        data.map_err(|error| error.to_string())?;
    }
    // A reset may come right behind: whatever was sent before the pong is here after it.
    pings.ping(h2::Ping::opaque()).await.map_err(|error| error.to_string())?;
    poll_fn(|context| match sending.poll_reset(context) {
        Poll::Ready(reset) => Poll::Ready(Err(format!("{reset:?}"))),
        Poll::Pending => Poll::Ready(Ok(status)),
    })
    .await
}

/// A client that asks and takes nothing of the answers: it lets heads pass, and no bytes of bodies.
async fn ask_only(server: &TollgateProcess) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.http()).await.expect("the listener is open");
    stream.set_nodelay(true).expect("a socket");
    let mut builder = client::Builder::new();
    let (sender, connection) =
        builder.initial_window_size(0).handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender.ready().await.expect("a connection")
}

/// The head of the answer to a question, `Err` if the connection ends.
async fn head_of(
    sender: &mut SendRequest<Bytes>,
    path: &str,
    body: &str,
) -> Result<Response<h2::RecvStream>, h2::Error> {
    let request = Request::post(format!("http://localhost{path}")).body(()).expect("a request");
    let mut ready = sender.clone().ready().await?;
    let (response, mut sending) = ready.send_request(request, false)?;
    sending.send_data(Bytes::copy_from_slice(body.as_bytes()), true)?;
    response.await
}

/// Answers lie in the server's memory until they are taken. All of them together have a bound; beyond it
/// nothing is decided that could not be told.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    const WAITING_BYTES_MAX: usize = 64 << 20;
    // So patient that nobody is closed meanwhile.
    let server = TollgateProcess::start(&["--limit", "9000000/hour", "--idle-timeout", "10m"]);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batch = format!("[{}]", vec![r#"{"ip":"192.0.2.1"}"#; 1_000].join(","));
    let look = r#"{"ip":"192.0.2.1","cost":0}"#;
    let remaining = || server.check(look)["remaining"].as_u64().expect("a limit");
    let before = remaining();
    let asked = async {
        let (mut kept, mut bytes, mut refused) = (Vec::new(), 0, 0);
        for _ in 0..3 {
            let mut sender = ask_only(&server).await;
            for _ in 0..90 {
                let answer = head_of(&mut sender, "/v1/check/batch", &batch).await.expect("a head");
                let length = answer.headers()["content-length"].to_str().unwrap().to_string();
                match answer.status().as_u16() {
                    200 => bytes += length.parse::<usize>().unwrap(),
                    503 => refused += 1,
                    other => panic!("{other}"),
                }
                kept.push(answer);
            }
        }
        (kept, bytes, refused)
    };
    let asked = async { tokio::time::timeout(4 * DEADLINE, asked).await.expect("answers") };
    let (kept, bytes, refused) = runtime.block_on(asked);
    assert!(refused > 0 && bytes <= WAITING_BYTES_MAX, "{bytes} bytes wait, {refused} are refused");
    assert!(bytes > WAITING_BYTES_MAX / 2, "{bytes} bytes wait, {refused} are refused");
    let answered = kept.iter().filter(|answer| answer.status() == 200).count() as u64;
    assert_eq!(before - remaining(), 1_000 * answered, "a batch that is refused charges nothing");
    // Others are answered as ever, and long again when the client has left.
    assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200);
    drop((kept, runtime));
    testkit::wait::until_true("room", || server.post("/v1/check/batch", &batch).status == 200);
}

/// Also if it goes on asking.
#[test]
fn who_does_not_read_is_closed() {
    let flags = ["--limit", "99999/hour", "--header-timeout", "100ms", "--idle-timeout", "200ms"];
    let server = TollgateProcess::start(&flags);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let closed = async {
        let mut sender = ask_only(&server).await;
        let unread =
            head_of(&mut sender, "/v1/check", r#"{"user":"1","cost":0}"#).await.expect("a head");
        // These have no body.
        while head_of(&mut sender, "/v1/forward-auth", "").await.is_ok() {}
        drop(unread);
    };
    let closed = async { tokio::time::timeout(DEADLINE, closed).await.is_ok() };
    assert!(runtime.block_on(closed), "it is still served");
    assert_eq!(
        server.post("/v1/check", r#"{"user":"1","cost":0}"#).status,
        200,
        "others are served"
    );
}
