//! The forwarder: sends a request to one server of an upstream and returns the head of its response. If a server fails,
//! another one is tried, where that can do no harm.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::upgrade::OnUpgrade;

use super::balancer::{self, TriedServers};
use super::body::{BodyProgress, OutgoingBody, UpstreamBody};
use super::clock;
use super::connector::{self, WantedVersion};
use super::error::ForwardError;
use super::exchange::UpstreamExchange;
use super::http1::{Http1Connection, SendFailure};
use super::http2::{Http2Connection, Http2Stream};
use super::pool::{self, PoolPermit};
use super::registry::UpstreamState;
use super::server::UpstreamServer;
use super::server_state::FailureReason;

/// Most connections from the pool that one attempt tries: a server may have closed them while they were idle.
const POOLED_TRIES_MAX: usize = 3;

/// Longest wait until a connection from the pool is ready.
const POOLED_READY_MAX: Duration = Duration::from_millis(100);

/// Sends requests to upstreams. This is the seam: nobody else knows how upstreams are reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarder;

/// A function that is called before some of a request may be sent.
type OnSendFn<'a> = &'a (dyn Fn() + Sync);

/// The response of an upstream, and the connection if it switched protocols.
pub(crate) struct ForwardedResponse {
    pub(crate) response: Response<UpstreamBody>,
    /// Number of the server in its upstream.
    pub(crate) server: usize,
    /// The other end of the tunnel, and its connection, which must be kept until the tunnel ends.
    pub(crate) tunnel: Option<(OnUpgrade, Http1Connection)>,
}

/// The failure of a request at all servers that were tried.
pub(crate) struct ForwardFailure {
    /// The error of the last attempt.
    pub(crate) error: ForwardError,
    /// True if a server had some of the request in any attempt, and may have done the work.
    pub(crate) was_sent: bool,
}

/// A connection that can take a request.
enum ReadyConnection {
    Http1(Http1Connection),
    Http2(Http2Stream),
}

/// The failure of an attempt.
struct AttemptFailure {
    error: ForwardError,
    /// The request, if nothing of it was sent.
    unsent: Option<Request<OutgoingBody>>,
    /// True if the connection was an idle one of HTTP/1.1: the server may have closed it for that reason alone.
    was_pooled: bool,
    /// True if the server is not to blame, because the client chose the protocol that failed.
    is_clients_choice: bool,
}

impl AttemptFailure {
    /// Returns true if the server closed a connection that was idle.
    fn has_closed_idle(&self) -> bool {
        self.was_pooled && self.error == ForwardError::Reset
    }

    fn is_failure_of_server(&self) -> bool {
        self.error.is_failure_of_server() && !self.has_closed_idle() && !self.is_clients_choice
    }
}

impl Forwarder {
    /// Sends a request and waits for the head of its response. A request is sent again only if nothing of it was sent, or
    /// if its method is safe and it has no body; and only within the budget of the upstream. `on_send` is called before some of it
    /// may be sent.
    pub(crate) async fn forward(
        self,
        upstream: &Arc<UpstreamState>,
        mut request: Request<OutgoingBody>,
        on_send: OnSendFn<'_>,
    ) -> Result<ForwardedResponse, ForwardFailure> {
        let mut tried = TriedServers::default();
        let mut retries_left = upstream.settings.retries;
        let (mut is_retry, mut pooled_tries) = (false, POOLED_TRIES_MAX);
        let mut was_sent = false;
        loop {
            let Some(number) = choose(upstream, &tried) else {
                return Err(ForwardFailure { error: ForwardError::NoUpstream, was_sent });
            };
            tried.insert(number);
            let copy = if retries_left > 0 { copy_of(&request) } else { None };
            let exchange = UpstreamExchange::begin(upstream, number, is_retry);
            let attempted =
                attempt(upstream, number, request, exchange, pooled_tries, on_send).await;
            let failure = match attempted {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            was_sent |= failure.unsent.is_none();
            let has_closed_idle = failure.has_closed_idle();
            if failure.is_failure_of_server() {
                let reason = FailureReason::Request(failure.error);
                upstream.record_failure(number, reason, clock::now_ms());
            }
            let again = failure.unsent.or(copy);
            let may_retry = || retries_left > 0 && upstream.take_retry(has_closed_idle);
            let Some(again) = again.filter(|_| may_retry()) else {
                return Err(ForwardFailure { error: failure.error, was_sent });
            };
            // Where one idle connection was closed, others were as well.
            if has_closed_idle {
                pooled_tries = 0;
            }
            request = again;
            retries_left -= 1;
            is_retry = true;
        }
    }
}

/// Chooses a server of an upstream.
fn choose(upstream: &UpstreamState, tried: &TriedServers) -> Option<usize> {
    let choice = balancer::choose(&upstream.servers, tried, balancer::random(), &clock::now_ms)?;
    if choice.is_panic {
        upstream.counters.panics.fetch_add(1, Ordering::Relaxed);
    }
    Some(choice.number)
}

/// A copy of a request that may be sent twice: its method is safe, and it has no body.
fn copy_of(request: &Request<OutgoingBody>) -> Option<Request<OutgoingBody>> {
    let is_safe =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(request.method());
    if !is_safe || !matches!(request.body(), OutgoingBody::Empty) {
        return None;
    }
    let mut copy = Request::new(OutgoingBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

/// Sends a request to one server. A connection from the pool that turns out to be closed is replaced by another.
async fn attempt(
    upstream: &Arc<UpstreamState>,
    number: usize,
    mut request: Request<OutgoingBody>,
    exchange: UpstreamExchange,
    pooled_tries: usize,
    on_send: OnSendFn<'_>,
) -> Result<ForwardedResponse, AttemptFailure> {
    let mut exchange = Some(exchange);
    let server = &upstream.servers[number];
    let (mut wanted, mut is_clients_choice) =
        WantedVersion::of(upstream.settings.version, server, &request);
    for tries in 0.. {
        let may_be_pooled = tries < pooled_tries;
        let connected = connection_to(upstream, number, wanted, may_be_pooled).await;
        let (connection, was_pooled) = match connected {
            Ok(connected) => connected,
            // gRPC to a server that speaks HTTP/1.1 is a request like others.
            Err(error) if is_clients_choice && lacks_http2(server, wanted, error) => {
                (wanted, is_clients_choice) = (WantedVersion::Http1, false);
                continue;
            }
            Err(error) => {
                let is_clients_choice = is_clients_choice && error == ForwardError::TlsFailed;
                let unsent = Some(request);
                return Err(AttemptFailure { error, unsent, was_pooled: false, is_clients_choice });
            }
        };
        let this =
            exchange.take().unwrap_or_else(|| UpstreamExchange::begin(upstream, number, true));
        let is_http1 = matches!(connection, ReadyConnection::Http1(_));
        on_send();
        let failure = match send(upstream, connection, request, this).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        match failure.unsent {
            Some(unsent) if was_pooled => request = unsent,
            unsent => {
                let was_pooled = was_pooled && is_http1;
                let (error, is_clients_choice) = (failure.error, false);
                return Err(AttemptFailure { error, unsent, was_pooled, is_clients_choice });
            }
        }
    }
    unreachable!("a new connection ends the loop")
}

/// Returns true if a server that was asked to speak HTTP/2 seems to lack it. One that answered by another protocol certainly
/// does; one that closed or kept silent may be down, unless it spoke HTTP/2 before.
fn lacks_http2(server: &UpstreamServer, wanted: WantedVersion, error: ForwardError) -> bool {
    if wanted != WantedVersion::Http2 {
        return false;
    }
    match error {
        ForwardError::LacksHttp2 => {
            server.remember_no_http2(clock::now_ms());
            true
        }
        ForwardError::Reset | ForwardError::ConnectTimeout => {
            !server.speaks_http2.load(Ordering::Relaxed)
        }
        _ => false,
    }
}

/// Sends a request on a connection and waits for the head of its response.
async fn send(
    upstream: &UpstreamState,
    connection: ReadyConnection,
    request: Request<OutgoingBody>,
    exchange: UpstreamExchange,
) -> Result<ForwardedResponse, SendFailure> {
    let (progress, timeout) = (request.body().progress(), upstream.settings.response_timeout);
    match connection {
        ReadyConnection::Http1(connection) => {
            in_time(connection.send(request, exchange), progress, timeout).await
        }
        ReadyConnection::Http2(stream) => {
            in_time(stream.send(request, exchange), progress, timeout).await
        }
    }
}

/// Waits for the head of a response. The time begins again for as long as the server takes pieces of the request's body,
/// so it is measured from the end of the request, and is at most twice as long.
async fn in_time(
    answer: impl Future<Output = Result<ForwardedResponse, SendFailure>>,
    progress: Option<Arc<BodyProgress>>,
    timeout: Duration,
) -> Result<ForwardedResponse, SendFailure> {
    let mut answer = pin!(answer);
    let mut pieces = 0;
    loop {
        if let Ok(answer) = tokio::time::timeout(timeout, answer.as_mut()).await {
            // hyper reports a body that failed as an error of the connection.
            let has_failed = progress.is_some_and(|progress| progress.has_failed());
            return answer.map_err(|failure| match has_failed {
                true => SendFailure { error: ForwardError::RequestBody, unsent: None },
                false => failure,
            });
        }
        let pieces_now = progress.as_ref().map_or(0, |progress| progress.pieces());
        if pieces_now == pieces {
            let is_client = progress.is_some_and(|progress| progress.is_held_up_by_client());
            let error =
                if is_client { ForwardError::RequestBody } else { ForwardError::ResponseTimeout };
            return Err(SendFailure { error, unsent: None });
        }
        pieces = pieces_now;
    }
}

/// A connection to a server: one of the pool, if it may be, or a new one. Returns true beside it if it is from the pool.
async fn connection_to(
    upstream: &UpstreamState,
    number: usize,
    wanted: WantedVersion,
    may_be_pooled: bool,
) -> Result<(ReadyConnection, bool), ForwardError> {
    let server = &upstream.servers[number];
    let is_http2 = match wanted {
        WantedVersion::Http1 => false,
        WantedVersion::Http2 => true,
        WantedVersion::Either => server.speaks_http2.load(Ordering::Relaxed),
    };
    let take_stream = || pool::take_stream(server).filter(|_| may_be_pooled);
    if is_http2 && let Some(stream) = take_stream() {
        return Ok((ReadyConnection::Http2(stream), true));
    }
    let settings = &upstream.settings;
    // Requests that come while the first connection opens share it.
    let opening = is_http2.then(|| pool::opening(server));
    let _opening = match &opening {
        None => None,
        Some(opening) => {
            let opened = tokio::time::timeout(settings.connect_timeout, opening.lock()).await;
            // Those in front of it wait for a stream or a connection.
            let opened = opened.map_err(|_| ForwardError::UpstreamBusy)?;
            if let Some(stream) = take_stream() {
                return Ok((ReadyConnection::Http2(stream), true));
            }
            Some(opened)
        }
    };
    let permit = pool::permit(server, settings.connections_max, settings.connect_timeout).await?;
    while !is_http2
        && may_be_pooled
        && let Some(mut idle) = pool::take(server)
    {
        // A server that answered early may have stopped reading: its connection never becomes ready.
        let is_usable = tokio::time::timeout(POOLED_READY_MAX, idle.is_usable()).await;
        if is_usable == Ok(true) {
            idle.permit = Some(permit);
            return Ok((ReadyConnection::Http1(idle), true));
        }
    }
    let opened = open(upstream, number, wanted, Some(permit));
    let opened = tokio::time::timeout(settings.connect_timeout, opened).await;
    opened.map_err(|_| ForwardError::ConnectTimeout)?.map(|connection| (connection, false))
}

/// Opens a connection.
async fn open(
    upstream: &UpstreamState,
    number: usize,
    wanted: WantedVersion,
    permit: Option<PoolPermit>,
) -> Result<ReadyConnection, ForwardError> {
    let server = &upstream.servers[number];
    let (stream, is_http2) = connector::connect(upstream, server, wanted).await?;
    if !is_http2 {
        return Http1Connection::open(stream, server, permit).await.map(ReadyConnection::Http1);
    }
    let connection = Http2Connection::open(stream, permit).await?;
    server.speaks_http2.store(true, Ordering::Relaxed);
    let stream = Http2Stream::begin(&connection).ok_or(ForwardError::UpstreamBusy)?;
    pool::put_http2(server, connection);
    Ok(ReadyConnection::Http2(stream))
}

/// Sends a request on a connection of its own and returns the status of the response: for active health checks.
pub(super) async fn check(
    upstream: &UpstreamState,
    number: usize,
    request: Request<OutgoingBody>,
) -> Result<http::StatusCode, ForwardError> {
    let server = &upstream.servers[number];
    let (wanted, _) = WantedVersion::of(upstream.settings.version, server, &request);
    let (stream, is_http2) = connector::connect(upstream, server, wanted).await?;
    let answer = if is_http2 {
        let connection = Http2Connection::open(stream, None).await?;
        let stream = Http2Stream::begin(&connection).ok_or(ForwardError::UpstreamBusy)?;
        stream.send_only(request, server).await
    } else {
        Http1Connection::open(stream, server, None).await?.send_only(request).await
    };
    answer.map(|response| response.status()).map_err(|failure| failure.error)
}
