//! One HTTP/1.1 or HTTP/2 connection: reads requests and writes responses until either side closes.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::activity_stream::ActivityStream;
use super::allowance::SharedAllowance;
use super::answering::Answering;
use super::fast_lane::{self, LaneEnd};
use super::graceful_close::shutdown_and_drain;
use super::handler::Handler;
use super::protocol::{AgreedVersion, Protocol};
use super::request_body::{BODY_ALLOWANCE_LIMITS, DISCARD_BYTES_MAX};
use super::response_body::InFlightRequest;
use super::watchdog::{ConnectionActivity, ConnectionOrder, ConnectionTimeouts};
use crate::metrics::responses::ResponseCounts;

/// Maximum bytes of the head of a request, and of buffered output.
const HEAD_BYTES_MAX: u32 = 16 << 10;

/// Maximum unread bytes of one HTTP/2 stream.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Maximum unread bytes of all streams of an HTTP/2 connection.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Reply to a connection beyond the caps.
pub(crate) const TOO_MANY_CONNECTIONS_REPLY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 74\r\n\r\n\
    {\"error\":\"Service Unavailable\",\"message\":\"Too many connections are open.\"}";

/// The HTTP protocol of a listener, shared by all its connections.
pub(crate) struct HttpProtocol<H> {
    pub(crate) handler: H,
    /// Timeouts of its connections.
    pub(crate) timeouts: ConnectionTimeouts,
    /// Set while the server stops: responses then ask the peer to close the connection.
    pub(crate) stopping: Arc<AtomicBool>,
    /// Counts responses by status.
    pub(super) responses: Arc<ResponseCounts>,
    /// Memory budget of request bodies and their responses.
    pub(super) body_allowance: Arc<SharedAllowance>,
    connection_builder: auto::Builder<TokioExecutor>,
    /// The same for connections on which HTTP/1.1 was agreed on or spoken: they do not change to HTTP/2.
    http1_builder: auto::Builder<TokioExecutor>,
    /// The same for connections on which HTTP/2 was agreed on.
    http2_builder: auto::Builder<TokioExecutor>,
}

/// The settings of hyper's server.
pub(crate) fn connection_builder(streams_max: u32) -> auto::Builder<TokioExecutor> {
    let mut protocols = auto::Builder::new(TokioExecutor::new());
    // No timers of hyper: the watchdog closes slow connections. hyper's default of 100 header fields is cheaper than any
    // other number.
    // A peer that has closed its sending side still gets the response.
    protocols.http1().max_buf_size(HEAD_BYTES_MAX as usize).half_close(true);
    protocols
        .http2()
        .max_concurrent_streams(streams_max)
        // When this machine stalls, many clients cancel at once: that alone is not an attack.
        .max_pending_accept_reset_streams(streams_max as usize)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_send_buf_size(HEAD_BYTES_MAX as usize);
    protocols
}

/// The settings of hyper's server for HTTP/1.1 alone with upgrades, for which the other builder ignores its version.
pub(crate) fn http1_builder() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol.max_buf_size(HEAD_BYTES_MAX as usize);
    protocol
}

impl<H: Handler> HttpProtocol<H> {
    pub(crate) fn new(
        handler: H,
        timeouts: ConnectionTimeouts,
        stopping: Arc<AtomicBool>,
        responses: Arc<ResponseCounts>,
    ) -> HttpProtocol<H> {
        let protocols = connection_builder(H::STREAMS_MAX);
        HttpProtocol {
            handler,
            timeouts,
            stopping,
            responses,
            body_allowance: SharedAllowance::new(BODY_ALLOWANCE_LIMITS),
            http1_builder: protocols.clone().http1_only(),
            http2_builder: protocols.clone().http2_only(),
            connection_builder: protocols,
        }
    }

    /// The builder of connections that speak this version.
    fn builder_for(&self, agreed: AgreedVersion) -> &auto::Builder<TokioExecutor> {
        match agreed {
            AgreedVersion::Any => &self.connection_builder,
            AgreedVersion::Http1 => &self.http1_builder,
            AgreedVersion::Http2 => &self.http2_builder,
        }
    }
}

impl<H: Handler> Protocol for HttpProtocol<H> {
    const TOO_MANY_CONNECTIONS_REPLY: &'static [u8] = TOO_MANY_CONNECTIONS_REPLY;
    const ALPN: &'static [&'static str] = H::VERSIONS;

    fn timeouts(&self) -> &ConnectionTimeouts {
        &self.timeouts
    }

    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        peer: SocketAddr,
        agreed: AgreedVersion,
        activity: Arc<ConnectionActivity>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        serve(stream, (peer, agreed), self, activity).await;
    }
}

/// Serves one connection to its end.
async fn serve<S, H>(
    mut stream: S,
    (peer, agreed): (SocketAddr, AgreedVersion),
    protocol: Arc<HttpProtocol<H>>,
    activity: Arc<ConnectionActivity>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let (mut received, mut builder) = (Vec::new(), protocol.builder_for(agreed));
    // The lane speaks HTTP/1.1.
    if protocol.handler.has_fast_lane() && agreed != AgreedVersion::Http2 {
        match fast_lane::serve(&mut stream, peer, &protocol, &activity).await {
            LaneEnd::Closed => return,
            LaneEnd::HandOver { unanswered, is_http1 } => {
                received = unanswered;
                builder = if is_http1 { &protocol.http1_builder } else { builder };
            }
        }
    }
    let (io, left) = ActivityStream::new(stream, received.into(), &activity);
    serve_requests(io, peer, (&protocol, builder), &activity).await;
    Box::pin(close_returned(left, protocol.timeouts.head, &activity)).await;
}

/// Answers requests until either side closes.
async fn serve_requests<S, H>(
    io: ActivityStream<S>,
    peer: SocketAddr,
    (protocol, builder): (&Arc<HttpProtocol<H>>, &auto::Builder<TokioExecutor>),
    activity: &Arc<ConnectionActivity>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let service = {
        let (protocol, activity) = (protocol.clone(), activity.clone());
        service_fn(move |request| {
            let answering = InFlightRequest::begin(&activity, request.version());
            Answering::begin(&protocol, answering, request, peer)
        })
    };
    let connection = builder.serve_connection(TokioIo::new(io), service);
    obey_orders(connection, GracefulConnection::graceful_shutdown, activity).await;
}

/// Runs a connection to its end, and obeys the orders of the watchdog. `finish` makes it answer the requests that have
/// arrived, and no more.
pub(crate) async fn obey_orders<C: Future>(
    connection: C,
    finish: impl Fn(Pin<&mut C>),
    activity: &ConnectionActivity,
) {
    let mut connection = pin!(connection);
    let mut finishing = false;
    poll_fn(|context| {
        // Before the order is read: a later order then finds the waker.
        activity.set_waker(context.waker());
        match activity.order() {
            ConnectionOrder::Continue => {}
            ConnectionOrder::Finish if finishing => {}
            ConnectionOrder::Finish => {
                // Requests that have already arrived are answered first.
                if connection.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                finishing = true;
                finish(connection.as_mut());
            }
            ConnectionOrder::Abort => return Poll::Ready(()),
        }
        // Errors here come from the peer: it left, or does not speak HTTP. Anybody can cause any number of them, so they
        // are not logged.
        connection.as_mut().poll(context).map(drop)
    })
    .await;
}

/// Closes a stream that its connection gave back, unless the connection has been ordered to end.
pub(crate) async fn close_returned<S>(
    mut left: oneshot::Receiver<S>,
    timeout: Duration,
    activity: &ConnectionActivity,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if activity.order() == ConnectionOrder::Continue
        && let Ok(stream) = left.try_recv()
    {
        close_gracefully(stream, timeout, activity).await;
    }
}

/// Closes a connection whose peer may still be sending, until the timeout or an order to end.
async fn close_gracefully<S>(mut stream: S, timeout: Duration, activity: &ConnectionActivity)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let last = shutdown_and_drain(&mut stream, DISCARD_BYTES_MAX);
    let mut last = pin!(tokio::time::timeout(timeout, last));
    poll_fn(|context| match activity.order() {
        ConnectionOrder::Continue => last.as_mut().poll(context).map(drop),
        ConnectionOrder::Finish | ConnectionOrder::Abort => Poll::Ready(()),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use bytes::Bytes;
    use http::{Response, StatusCode, request};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::listeners::connection_caps::ConnectionCaps;
    use crate::listeners::handler::{ReceivedRequest, RequestAdmission, RoutedRequest};
    use crate::listeners::request_body::BodyError;
    use crate::listeners::response_body::{ChunkSource, ResponseBody};
    use crate::listeners::watchdog::ConnectionWatchdog;
    use crate::listeners::workers::{NewConnection, Workers};
    use crate::reply;

    /// A handler that panics in the step that the path names.
    struct PanickingHandler;

    /// Step of an answer.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum AnswerStep {
        AtOnce,
        Body,
        Waiting,
        None,
    }

    impl Handler for PanickingHandler {
        type Endpoint = AnswerStep;

        fn admit(&self, head: &request::Parts, _: SocketAddr) -> RequestAdmission<AnswerStep> {
            let endpoint = match head.uri.path() {
                "/bug" => panic!("this test's bug"),
                "/at-once" => AnswerStep::AtOnce,
                "/body" => AnswerStep::Body,
                "/waiting" => AnswerStep::Waiting,
                _ => AnswerStep::None,
            };
            let body_bytes_max = (endpoint == AnswerStep::Body).then_some(9);
            RequestAdmission::Admitted(RoutedRequest { endpoint, body_bytes_max, deadline: None })
        }

        fn answer_at_once(
            &self,
            endpoint: AnswerStep,
            request: &mut ReceivedRequest<'_>,
        ) -> Option<Response<ResponseBody>> {
            let fails = matches!(endpoint, AnswerStep::AtOnce | AnswerStep::Body);
            assert!(!fails, "this test's bug: {:?}", request.body);
            None
        }

        async fn answer_by(
            &self,
            endpoint: AnswerStep,
            _: ReceivedRequest<'_>,
        ) -> Response<ResponseBody> {
            tokio::task::yield_now().await;
            assert!(endpoint != AnswerStep::Waiting, "this test's bug");
            reply::json(StatusCode::OK, "{}")
        }

        fn unreceived(
            &self,
            _: &RoutedRequest<AnswerStep>,
            problem: &BodyError,
        ) -> Response<ResponseBody> {
            reply::no_body(problem, 9)
        }

        fn panicked(&self) -> Response<ResponseBody> {
            reply::panicked()
        }
    }

    /// A handler whose bodies never end. It counts the chunks that it was asked for.
    struct EndlessHandler(Arc<AtomicUsize>);

    struct EndlessChunks(Arc<AtomicUsize>);

    const CHUNK_BYTES: usize = 1 << 10;

    impl ChunkSource for EndlessChunks {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Bytes::from_static(&[b'x'; CHUNK_BYTES])))
        }
    }

    impl Handler for EndlessHandler {
        type Endpoint = ();

        fn admit(&self, _: &request::Parts, _: SocketAddr) -> RequestAdmission<()> {
            let body = ResponseBody::streamed(Box::new(EndlessChunks(self.0.clone())));
            RequestAdmission::Answered(Box::new(Response::new(body)))
        }

        fn answer_at_once(
            &self,
            (): (),
            _: &mut ReceivedRequest<'_>,
        ) -> Option<Response<ResponseBody>> {
            None
        }

        async fn answer_by(&self, (): (), _: ReceivedRequest<'_>) -> Response<ResponseBody> {
            reply::panicked()
        }

        fn unreceived(&self, _: &RoutedRequest<()>, problem: &BodyError) -> Response<ResponseBody> {
            reply::no_body(problem, 9)
        }

        fn panicked(&self) -> Response<ResponseBody> {
            reply::panicked()
        }
    }

    #[test]
    fn a_body_that_nobody_reads_is_not_made_and_ends_its_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let second = Duration::from_secs(1);
            let timeouts = ConnectionTimeouts { head: second, idle: second, body: second };
            let chunks = Arc::new(AtomicUsize::new(0));
            let handler = EndlessHandler(chunks.clone());
            let protocol =
                Arc::new(HttpProtocol::new(handler, timeouts, Arc::default(), Arc::default()));
            let (mut client, server) = tokio::io::duplex(1 << 10);
            let watchdog = Arc::new(ConnectionWatchdog::default());
            let watched = watchdog.watch(Arc::default());
            let activity = watched.activity.clone();
            let peer = SocketAddr::from(([127, 0, 0, 1], 1));
            let served =
                tokio::spawn(serve(server, (peer, AgreedVersion::Any), protocol, activity));
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let made_after = async |turns: usize| {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                chunks.load(Ordering::Relaxed)
            };
            let made = made_after(1_000).await;
            assert!((1..=64).contains(&made), "{made} chunks of {CHUNK_BYTES} bytes");
            assert_eq!(made_after(1_000).await, made, "nobody reads");
            client.read_exact(&mut [0; 4 * CHUNK_BYTES]).await.unwrap();
            assert!((made + 1..=made + 8).contains(&made_after(1_000).await), "some was read");
            // An open body keeps its connection; one that is not read does not.
            let mut buffer = [0; 64 << 10];
            for round in 0..100 {
                watchdog.check_all(&timeouts);
                client.read_exact(&mut buffer).await.unwrap();
                assert_eq!(watched.activity.order(), ConnectionOrder::Continue, "{round}");
            }
            let rounds = (1..100).find(|_| {
                watchdog.check_all(&timeouts);
                watched.activity.order() == ConnectionOrder::Abort
            });
            assert!(rounds.is_some_and(|rounds| rounds <= 3 * 8), "{rounds:?}");
            served.await.unwrap();
        });
    }

    #[test]
    fn the_future_of_an_answer_is_small() {
        let bytes = size_of::<Answering<PanickingHandler>>();
        println!("future of an answer: {bytes} bytes");
        assert!(bytes <= 1 << 10, "{bytes}");
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
        let timeouts =
            ConnectionTimeouts { head: 30 * second, idle: 30 * second, body: 30 * second };
        let protocol =
            Arc::new(HttpProtocol::new(PanickingHandler, timeouts, Arc::default(), Arc::default()));
        let (workers, _ended) = Workers::start("test", 1, &protocol, None).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(30 * second)).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let place = runtime.block_on(ConnectionCaps::new(1, 1).admit(peer.ip())).unwrap();
        let stream = crate::listeners::socket::AcceptedStream::Tcp(stream);
        runtime.block_on(workers.assign(NewConnection { stream, peer, permit: place }));

        let rows = [
            ("/bug", 500),
            ("/", 200),
            ("/bug", 500),
            ("/at-once", 500),
            ("/body", 500),
            ("/waiting", 500),
            ("/", 200),
        ];
        for (path, want) in rows {
            let want = format!("HTTP/1.1 {want}");
            let body = if path == "/body" { "content-length: 1\r\n\r\nx" } else { "\r\n" };
            write!(client, "GET {path} HTTP/1.1\r\nhost: a\r\n{body}").unwrap();
            let mut said = vec![0; 1_024];
            let length = client.read(&mut said).unwrap();
            let said = String::from_utf8_lossy(&said[..length]);
            assert!(said.starts_with(&want), "{path}: {said}");
        }
    }
}
