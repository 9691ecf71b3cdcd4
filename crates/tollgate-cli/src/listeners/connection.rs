//! One connection: HTTP/1.1 or HTTP/2, requests in, responses out, until it ends or has to.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, EXPECT, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version, request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::allowance::{Allowance, SharedAllowance};
use super::graceful_close::shutdown_and_drain;
use super::protocol::Protocol;
use super::request_body::{BODY_ALLOWANCE_LIMITS, DISCARD_BYTES_MAX, RequestBody};
use super::response_body::InFlightRequest;
pub(crate) use super::response_body::ResponseBody;
use super::watchdog::{ConnectionActivity, ConnectionOrder, ConnectionTimeouts};
use crate::metrics::responses::ResponseCounts;
use crate::reply;

/// The most bytes of a request's head, and of what is buffered to be written.
const HEAD_BYTES_MAX: u32 = 16 << 10;

/// What a connection of HTTP/2 may have sent before anybody has looked at it, on one stream,
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// and on all of them.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// What a connection too many is told.
const TOO_MANY_CONNECTIONS_REPLY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 74\r\n\r\n\
    {\"error\":\"Service Unavailable\",\"message\":\"Too many connections are open.\"}";

/// Answers requests: a plane.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The most requests at once on a connection of HTTP/2.
    const STREAMS_MAX: u32 = 100;

    /// The versions of HTTP that TLS offers, the best first.
    const VERSIONS: &'static [&'static str] = &["h2", "http/1.1"];

    /// The answer. Whatever is wrong with the request is an answer too, and a body that does not
    /// matter need not be read.
    fn answer(
        &self,
        head: &request::Parts,
        body: &mut RequestBody,
        peer: SocketAddr,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;

    /// The answer if `answer` panics, which is a bug.
    fn panicked(&self) -> Response<ResponseBody>;
}

/// What all connections of a listener share.
pub(crate) struct HttpProtocol<H> {
    pub(crate) handler: H,
    /// How long a peer may take.
    pub(crate) timeouts: ConnectionTimeouts,
    /// Set while the server stops: peers are asked to leave after their next answer.
    pub(crate) stopping: Arc<AtomicBool>,
    /// What was answered.
    responses: Arc<ResponseCounts>,
    /// What the bodies of requests and their replies may take up.
    body_allowance: Arc<SharedAllowance>,
    connection_builder: auto::Builder<TokioExecutor>,
}

impl<H: Handler> HttpProtocol<H> {
    pub(crate) fn new(
        handler: H,
        patience: ConnectionTimeouts,
        stopping: Arc<AtomicBool>,
        responses: Arc<ResponseCounts>,
    ) -> HttpProtocol<H> {
        let mut protocols = auto::Builder::new(TokioExecutor::new());
        // No timers of hyper's: the patrol closes what is slow. 100 headers are its default, and
        // cheaper than any other number.
        // A peer that has sent its request and closed its side still gets the answer.
        let mut http1 = protocols.http1();
        http1.max_buf_size(HEAD_BYTES_MAX as usize).half_close(true);
        protocols
            .http2()
            .max_concurrent_streams(H::STREAMS_MAX)
            // Callers give up in numbers when this machine stalls: all of their requests at once are no
            // attack yet.
            .max_pending_accept_reset_streams(H::STREAMS_MAX as usize)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_send_buf_size(HEAD_BYTES_MAX as usize);
        HttpProtocol {
            handler,
            timeouts: patience,
            stopping,
            responses,
            body_allowance: SharedAllowance::new(BODY_ALLOWANCE_LIMITS),
            connection_builder: protocols,
        }
    }
}

impl<H: Handler> Protocol for HttpProtocol<H> {
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8] = TOO_MANY_CONNECTIONS_REPLY;
    const ALPN: &'static [&'static str] = H::VERSIONS;

    fn timeouts(&self) -> &ConnectionTimeouts {
        &self.timeouts
    }

    async fn serve<S>(self: Arc<Self>, stream: S, peer: SocketAddr, pulse: Arc<ConnectionActivity>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        serve(stream, peer, self, pulse).await;
    }
}

/// Serves one connection to its end.
async fn serve<S, H>(
    stream: S,
    peer: SocketAddr,
    site: Arc<HttpProtocol<H>>,
    pulse: Arc<ConnectionActivity>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let (back, mut left) = oneshot::channel();
    let io =
        ActivityStream { stream: Some(stream), activity: pulse.clone(), return_to: Some(back) };
    serve_requests(io, peer, &site, &pulse).await;
    if pulse.order() == ConnectionOrder::Continue
        && let Ok(stream) = left.try_recv()
    {
        Box::pin(close_gracefully(stream, site.timeouts.head, &pulse)).await;
    }
}

/// Takes requests and answers them until one side has enough.
async fn serve_requests<S, H>(
    io: ActivityStream<S>,
    peer: SocketAddr,
    site: &Arc<HttpProtocol<H>>,
    pulse: &Arc<ConnectionActivity>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let service = {
        let (site, pulse) = (site.clone(), pulse.clone());
        service_fn(move |request| {
            let answering = InFlightRequest::begin(&pulse, request.version());
            answer(site.clone(), answering, request, peer)
        })
    };
    let mut connection = pin!(site.connection_builder.serve_connection(TokioIo::new(io), service));
    let mut finishing = false;
    poll_fn(|context| {
        // Before the order is looked at: an order given later finds the waker.
        pulse.set_waker(context.waker());
        match pulse.order() {
            ConnectionOrder::Continue => {}
            ConnectionOrder::Finish if finishing => {}
            ConnectionOrder::Finish => {
                // What has already arrived is answered first.
                if connection.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            ConnectionOrder::Abort => return Poll::Ready(()),
        }
        // An error here is the peer's: it left, or it does not speak HTTP. A stranger can cause
        // as many as it likes, so they are not logged.
        connection.as_mut().poll(context).map(drop)
    })
    .await;
}

/// Parts with a peer that may still be sending, for as long as nobody wants an end.
async fn close_gracefully<S>(mut stream: S, patience: Duration, pulse: &ConnectionActivity)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let last = shutdown_and_drain(&mut stream, DISCARD_BYTES_MAX);
    let mut last = pin!(tokio::time::timeout(patience, last));
    poll_fn(|context| match pulse.order() {
        ConnectionOrder::Continue => last.as_mut().poll(context).map(drop),
        ConnectionOrder::Finish | ConnectionOrder::Abort => Poll::Ready(()),
    })
    .await;
}

async fn answer<H: Handler>(
    site: Arc<HttpProtocol<H>>,
    answering: InFlightRequest,
    request: Request<Incoming>,
    peer: SocketAddr,
) -> Result<Response<ResponseBody>, Infallible> {
    let (head, incoming) = request.into_parts();
    let allowance = Allowance::new(&site.body_allowance);
    let mut body =
        RequestBody::new(incoming, site.timeouts.body, allowance, answering.activity().clone());
    let mut response = if let Some(problem) = host_problem(&head) {
        reply::error(StatusCode::BAD_REQUEST, problem)
    } else {
        let mut answer = pin!(site.handler.answer(&head, &mut body, peer));
        poll_fn(|context| {
            // A bug in one answer must not end the connection, let alone the worker.
            let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
            polled.unwrap_or_else(|_| Poll::Ready(site.handler.panicked()))
        })
        .await
    };
    let (mut allowance, rest) = body.into_parts();
    if !allowance.try_resize(response.body().len()) {
        response = reply::no_room();
        allowance.release();
    }
    site.responses.count(response.status());
    if head.version == Version::HTTP_2 {
        // A body that is dropped half-way resets its stream, and many clients then throw away the
        // answer that came before. So the rest is read beside the answer, which does not wait for it;
        // by at most as many tasks as there may be streams. One who waits to be told to go on has sent
        // nothing.
        if rest.is_open() && !head.headers.contains_key(EXPECT) {
            tokio::spawn(rest.discard());
        }
    } else if site.stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.body_mut().hold_until_sent(answering, allowance);
    Ok(response)
}

/// What is wrong with how a request says whom it is for (RFC 9112, section 3.2): two who read two hosts
/// may each go by another one. HTTP/1.0 need not say it, and HTTP/2 has a place of its own for it.
fn host_problem(head: &request::Parts) -> Option<&'static str> {
    if head.version > Version::HTTP_11 {
        return None;
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Version::HTTP_11 => {
            Some("A request of HTTP/1.1 needs the header field `Host`.")
        }
        (_, Some(_)) => Some("A request has at most one header field `Host`."),
        _ => None,
    }
}

/// A stream that tells the pulse when bytes come in.
struct ActivityStream<S> {
    /// There until this is dropped.
    stream: Option<S>,
    activity: Arc<ConnectionActivity>,
    /// Where the stream goes after that, unless the peer has ended it.
    return_to: Option<oneshot::Sender<S>>,
}

impl<S: Unpin> ActivityStream<S> {
    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.stream.as_mut().expect("it is there until this is dropped"))
    }
}

impl<S> Drop for ActivityStream<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.return_to.take()) {
            // Nobody waits for it if the whole connection is dropped.
            let _ = back.send(stream);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.stream().poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.bytes_received();
        } else if polled.is_ready() {
            self.return_to = None;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::listeners::connection_caps::ConnectionCaps;
    use crate::listeners::workers::{NewConnection, Workers};

    /// Has a bug in one path.
    struct PanickingHandler;

    impl Handler for PanickingHandler {
        async fn answer(
            &self,
            head: &request::Parts,
            _: &mut RequestBody,
            _: SocketAddr,
        ) -> Response<ResponseBody> {
            assert_ne!(head.uri.path(), "/bug", "this test's bug");
            reply::json(StatusCode::OK, "{}")
        }

        fn panicked(&self) -> Response<ResponseBody> {
            reply::panicked()
        }
    }

    #[test]
    fn the_reply_to_one_too_many_is_well_formed() {
        let text = std::str::from_utf8(TOO_MANY_CONNECTIONS_REPLY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }

    #[test]
    fn a_panic_answers_500_and_the_connection_goes_on() {
        let second = Duration::from_secs(1);
        let patience =
            ConnectionTimeouts { head: 30 * second, idle: 30 * second, body: 30 * second };
        let site =
            Arc::new(HttpProtocol::new(PanickingHandler, patience, Arc::default(), Arc::default()));
        let (workers, _ended) = Workers::start("test", 1, &site, None).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(30 * second)).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let place = runtime.block_on(ConnectionCaps::new(1, 1).admit(peer.ip())).unwrap();
        runtime.block_on(workers.assign(NewConnection { stream, peer, permit: place }));

        for (path, want) in
            [("/bug", "HTTP/1.1 500"), ("/", "HTTP/1.1 200"), ("/bug", "HTTP/1.1 500")]
        {
            write!(client, "GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            let mut said = vec![0; 1_024];
            let length = client.read(&mut said).unwrap();
            let said = String::from_utf8_lossy(&said[..length]);
            assert!(said.starts_with(want), "{path}: {said}");
        }
    }
}
