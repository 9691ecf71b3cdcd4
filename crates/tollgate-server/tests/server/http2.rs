//! HTTP/2: answers arrive whole, whatever the request carries.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Method, Request};
use tempfile::tempdir;
use tokio::net::TcpStream;
use tokio::runtime;

use crate::harness::{DEADLINE, Server, file, text};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An answer that does not wait for the body must not reset the stream that the body is still
/// coming in on: many clients then throw the answer away.
#[test]
fn answers_that_need_no_body_are_not_lost() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let server = Server::start(&["--limit", "99999/hour", "--auth-token-file", text(&tokens)]);
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
async fn ask(server: &Server, request: Request<()>, body: Bytes) -> Result<u16, String> {
    let stream = TcpStream::connect(server.http()).await.expect("the door is open");
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
