//! A client with a deadline.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// What hangs fails here, on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a test on a runtime of its own.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(DEADLINE, test).await.expect("the test ends before its deadline");
    });
}

/// A port of its own.
pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its number");
    (listener, address)
}

/// One connection.
pub(crate) struct LoopbackClient(SendRequest<Full<Bytes>>);

impl LoopbackClient {
    pub(crate) async fn connect(address: SocketAddr) -> LoopbackClient {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        LoopbackClient(sender)
    }

    /// Sends a request, and reads the head of its response.
    pub(crate) async fn begin(&mut self, request: Request<&'static str>) -> Response<Incoming> {
        self.0.ready().await.expect("an open connection");
        let request = request.map(Full::from);
        self.0.send_request(request).await.expect("a response")
    }

    pub(crate) async fn send(&mut self, request: Request<&'static str>) -> Response<String> {
        let (head, body) = self.begin(request).await.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        Response::from_parts(head, String::from_utf8(bytes.into()).expect("text"))
    }

    pub(crate) async fn get(&mut self, path: &str) -> Response<String> {
        self.send(request("GET", path, "")).await
    }
}

pub(crate) fn request(method: &str, path: &str, body: &'static str) -> Request<&'static str> {
    let request = Request::builder().method(method).uri(path).header("host", "example.com");
    request.body(body).expect("a request")
}
