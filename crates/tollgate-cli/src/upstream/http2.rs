//! HTTP/2 connections to upstreams. Requests of one worker share them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{self, Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

use super::body::{BodyStreamError, OutgoingBody, UpstreamBody};
use super::connector::UpstreamStream;
use super::error::ForwardError;
use super::exchange::UpstreamExchange;
use super::first_frame::{FirstFrame, FirstFrameStream};
use super::forwarder::ForwardedResponse;
use super::http1::SendFailure;
use super::pool::PoolPermit;
use super::server::UpstreamServer;

/// Most requests on one connection at once. A server that allows fewer lets them wait.
const STREAMS_MAX: usize = 100;

/// Interval of pings on a connection with open streams, and the longest wait for the answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the head of a response.
const HEAD_BYTES_MAX: u32 = 64 << 10;

/// Bytes of a response that a server may send before they are taken, on a stream.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The same for all streams of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// A connection to a server. Dropping the last reference closes the connection.
pub(super) struct Http2Connection {
    sender: SendRequest<OutgoingBody>,
    task: AbortHandle,
    /// Requests under way. Bound: [`STREAMS_MAX`].
    streams: AtomicUsize,
    /// True if a request began since the last sweep.
    was_used: AtomicBool,
    _permit: Option<PoolPermit>,
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Http2Connection {
    /// Speaks HTTP/2 on a new connection. Without TLS nothing is sent before the server has shown that it speaks HTTP/2.
    pub(super) async fn open(
        stream: UpstreamStream,
        permit: Option<PoolPermit>,
    ) -> Result<Arc<Http2Connection>, ForwardError> {
        let (mut first_frame, connection) = match stream {
            UpstreamStream::Plain(stream) => {
                let (stream, first_frame) = FirstFrameStream::new(stream);
                (Some(first_frame), Http2Connection::start(stream).await?)
            }
            UpstreamStream::Tls(stream) => (None, Http2Connection::start(stream).await?),
        };
        let (sender, task) = connection;
        let (streams, was_used) = (AtomicUsize::new(0), AtomicBool::new(true));
        let connection = Http2Connection { sender, task, streams, was_used, _permit: permit };
        match &mut first_frame {
            None => Ok(Arc::new(connection)),
            Some(first_frame) => match first_frame.await {
                Ok(FirstFrame::Settings) => Ok(Arc::new(connection)),
                Ok(FirstFrame::Other) => Err(ForwardError::LacksHttp2),
                Err(_) => Err(ForwardError::Reset),
            },
        }
    }

    async fn start<S>(stream: S) -> Result<(SendRequest<OutgoingBody>, AbortHandle), ForwardError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        builder.max_header_list_size(HEAD_BYTES_MAX);
        // A server that vanished without closing is noticed.
        builder.timer(TokioTimer::new());
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let (sender, driver) = builder.handshake(TokioIo::new(stream)).await?;
        Ok((sender, tokio::spawn(async { drop(driver.await) }).abort_handle()))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns true if nothing used the connection since the last call.
    pub(super) fn was_idle(&self) -> bool {
        let was_used = self.was_used.swap(false, Ordering::Relaxed);
        !was_used && self.streams.load(Ordering::Relaxed) == 0
    }
}

/// Room for one request on a connection. Dropping it makes room for another.
pub(super) struct Http2Stream(Arc<Http2Connection>);

impl Http2Stream {
    /// Begins a stream; `None` if the connection has no room.
    pub(super) fn begin(connection: &Arc<Http2Connection>) -> Option<Http2Stream> {
        if connection.streams.load(Ordering::Relaxed) >= STREAMS_MAX {
            return None;
        }
        connection.streams.fetch_add(1, Ordering::Relaxed);
        connection.was_used.store(true, Ordering::Relaxed);
        Some(Http2Stream(connection.clone()))
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send_only(
        &self,
        mut request: Request<OutgoingBody>,
        server: &UpstreamServer,
    ) -> Result<Response<Incoming>, SendFailure> {
        let has_host = to_http2(&mut request, server);
        let sent = self.0.sender.clone().try_send_request(request);
        sent.await.map_err(|mut failed| SendFailure {
            unsent: failed.take_message().map(|request| to_http1(request, has_host)),
            error: failed.into_error().into(),
        })
    }

    /// The same. The stream ends with the response's body.
    pub(super) async fn send(
        self,
        request: Request<OutgoingBody>,
        exchange: UpstreamExchange,
    ) -> Result<ForwardedResponse, SendFailure> {
        let response = self.send_only(request, exchange.server()).await?;
        let (head, incoming) = response.into_parts();
        let server = exchange.number();
        let body = match incoming.is_end_stream() {
            true => {
                exchange.record_success();
                UpstreamBody::Whole(Bytes::new())
            }
            false => UpstreamBody::Http2(Http2Body { incoming, exchange, _stream: self }),
        };
        Ok(ForwardedResponse { response: Response::from_parts(head, body), server, tunnel: None })
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Turns a request into one for HTTP/2: the host becomes a part of the target, and fields of connections go. Returns true
/// if the request has a `Host` of its own.
fn to_http2(request: &mut Request<OutgoingBody>, server: &UpstreamServer) -> bool {
    let fields = request.headers_mut();
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        fields.remove(name);
    }
    let host = fields.remove(HOST);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut target = uri::Parts::default();
    target.scheme = Some(if server.url.tls { Scheme::HTTPS } else { Scheme::HTTP });
    target.authority = authority.or_else(|| Authority::try_from(server.host.as_bytes()).ok());
    target.path_and_query = Some(path_of(request));
    if let Ok(target) = Uri::from_parts(target) {
        *request.uri_mut() = target;
    }
    *request.version_mut() = Version::HTTP_2;
    host.is_some()
}

/// Undoes [`to_http2`] for a request that was not sent.
fn to_http1(mut request: Request<OutgoingBody>, has_host: bool) -> Request<OutgoingBody> {
    let host = request.uri().authority().filter(|_| has_host);
    if let Some(Ok(host)) = host.map(|host| HeaderValue::from_str(host.as_str())) {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = Uri::from(path_of(&request));
    *request.version_mut() = Version::HTTP_11;
    request
}

fn path_of(request: &Request<OutgoingBody>) -> PathAndQuery {
    request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"))
}

/// The body of a response.
pub(crate) struct Http2Body {
    incoming: Incoming,
    exchange: UpstreamExchange,
    _stream: Http2Stream,
}

impl Http2Body {
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &frame {
            Some(Ok(_)) if !self.incoming.is_end_stream() => {}
            Some(Ok(_)) | None => self.exchange.record_success(),
            Some(Err(_)) => self.exchange.record_broken_body(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
