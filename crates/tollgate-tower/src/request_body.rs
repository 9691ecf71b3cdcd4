//! `RequestBodyLayer`: reads the bodies of requests whose cost is estimated by them, before the gate decides.
//!
//! It goes around the [`RateLimitLayer`](crate::RateLimitLayer) that made it. Requests that no such rule applies to pass
//! through untouched. Others are refused unread if all that does not need their body refuses them already. If not, they wait
//! until their body has been read, and go on with the same bytes. A body that is too long is not read to its end: the
//! rule says if it is refused, or if the estimate falls back and the rest of it streams. A body that never arrives is answered
//! with 408, and nothing is charged. Bodies under rules that count bytes are charged and paced as they stream.
//!
//! The server's part in this, such as bounds on time and memory, is a [`RequestBodyHost`](crate::RequestBodyHost).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response, Version, request};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::GatedBody;
use crate::body_host::{BodyReadEnd, BodyReadFailure};
use crate::body_pace::RequestPace;
use crate::future::RoomFuture;
use crate::gate::{
    BodyDemand, BodyDemandAnswer, BoxFuture, GateRequest, GateVerdict, RequestBodyReader,
};
use crate::layer::LayerConfig;
use crate::replayed_body::BufferedBody;
use crate::service::{NextStep, next_step};

pub use crate::replayed_body::{REQUEST_BODY_BYTES_MAX, ReplayedBody};

/// Reads request bodies for a rate limit layer; made by
/// [`RateLimitLayer::request_body`](crate::RateLimitLayer::request_body).
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Limit, Limiter};
/// # use tollgate_tower::{KeyedGate, RateLimitLayer};
/// use tower::{Layer, service_fn};
///
/// # let limit = Limit::per_minute(60).name("api").build()?;
/// # let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(1_000)), [limit])?;
/// let limits = RateLimitLayer::new(gate); // usually a gatekeeper with rules
/// let service = limits.request_body().layer(limits.layer(service_fn(handler)));
/// # async fn handler(_: http::Request<()>) -> Result<http::Response<String>, String> { Ok(http::Response::default()) }
/// # drop(service);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestBodyLayer {
    config: Arc<LayerConfig>,
}

impl RequestBodyLayer {
    pub(crate) fn new(config: Arc<LayerConfig>) -> RequestBodyLayer {
        RequestBodyLayer { config }
    }
}

impl<S> Layer<S> for RequestBodyLayer {
    type Service = RequestBodyService<S>;

    fn layer(&self, inner: S) -> RequestBodyService<S> {
        RequestBodyService { inner, config: Arc::clone(&self.config) }
    }
}

/// A service that reads request bodies; made by [`RequestBodyLayer`].
#[derive(Clone, Debug)]
pub struct RequestBodyService<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S, B, R> Service<Request<B>> for RequestBodyService<S>
where
    S: Service<Request<ReplayedBody<B>>, Response = Response<GatedBody<R>>> + Clone,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RequestBodyFuture<S, B, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let has_body = !request.body().is_end_stream();
        let pace = (has_body && self.config.paces_bodies()).then(|| {
            let pace = Box::new(RequestPace::new(&self.config));
            request.extensions_mut().insert(pace.slot());
            pace
        });
        let (head, body) = request.into_parts();
        if !has_body || !self.config.reads_bodies() || self.config.exempts(&head) {
            let request = Request::from_parts(head, ReplayedBody::direct(body, pace));
            return RequestBodyFuture {
                state: BodyState::Calling { future: self.inner.call(request) },
            };
        }
        let mut question = self.config.gate_request(head);
        let demand = self.config.body_demand(&mut question);
        let clone = self.inner.clone();
        let held = HeldRequest {
            // The service that `poll_ready` found ready; a clone of it may not be.
            inner: std::mem::replace(&mut self.inner, clone),
            config: Arc::clone(&self.config),
            body,
            pace,
        };
        let state = match demand {
            BodyDemandAnswer::Now(demand) => held.obey(question, demand),
            BodyDemandAnswer::Later(answer) => {
                BodyState::Asking { answer, held: Some(Box::new(held)) }
            }
        };
        RequestBodyFuture { state }
    }
}

pin_project! {
    /// The response to a request whose body may have to be read first.
    pub struct RequestBodyFuture<S, B: Body, F> {
        #[pin]
        state: BodyState<S, B, F>,
    }
}

pin_project! {
    // The state of nearly all requests is `Calling`. The others are boxed, because servers move the future.
    #[project = BodyStateProjected]
    enum BodyState<S, B: Body, F> {
        // The gate looks at the request before its body is read.
        Asking { answer: BoxFuture<(GateRequest, BodyDemand)>, held: Option<Box<HeldRequest<S, B>>> },
        // The body is being read.
        Reading { reading: Option<Box<ReadingRequest<S, B>>> },
        // The server makes room for the request.
        Resuming { room: RoomFuture, read: Option<Box<ReadRequest<S, B>>> },
        // The inner service is running.
        Calling { #[pin] future: F },
        // The request is refused.
        Responding { response: Option<Box<Response<Bytes>>> },
    }
}

/// A request of which the gate has not said yet if its body is needed.
struct HeldRequest<S, B: Body> {
    inner: S,
    config: Arc<LayerConfig>,
    body: B,
    pace: Option<Box<RequestPace>>,
}

/// A request whose body is being read.
struct ReadingRequest<S, B: Body> {
    request: ReadRequest<S, B>,
    reader: Box<dyn RequestBodyReader>,
    /// True once the server knows that the body has yet to arrive.
    is_waiting: bool,
}

/// A request whose body has been read.
struct ReadRequest<S, B: Body> {
    inner: S,
    config: Arc<LayerConfig>,
    head: request::Parts,
    body: BufferedBody<B>,
    pace: Option<Box<RequestPace>>,
}

impl<S, B> HeldRequest<S, B>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body,
{
    /// The state that follows the gate's demand.
    fn obey(self, mut question: GateRequest, demand: BodyDemand) -> BodyState<S, B, S::Future> {
        let HeldRequest { mut inner, config, body, pace } = self;
        match demand {
            BodyDemand::Read(reader) => {
                let head = question.head;
                let memory = config.host().map(|host| host.begin(&head));
                let body = BufferedBody::new(body, memory);
                let request = ReadRequest { inner, config, head, body, pace };
                return ReadingRequest { request, reader, is_waiting: false }.begin();
            }
            BodyDemand::Refuse(verdict) => {
                if let Some(response) = refusal_of(&config, &mut question.head, verdict) {
                    return BodyState::responding(response);
                }
            }
            BodyDemand::None => {}
        }
        let request = Request::from_parts(question.head, ReplayedBody::direct(body, pace));
        BodyState::Calling { future: inner.call(request) }
    }
}

/// The response to a request that is refused unread.
fn refusal_of(
    config: &Arc<LayerConfig>,
    head: &mut request::Parts,
    verdict: GateVerdict,
) -> Option<Response<Bytes>> {
    match next_step(config, head, verdict) {
        NextStep::Respond(response) => Some(response),
        NextStep::CallInner(_) | NextStep::CallInnerAfter(..) => None,
    }
}

impl<S, B> ReadingRequest<S, B>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body,
{
    /// The state of a request whose body is wanted.
    fn begin(mut self) -> BodyState<S, B, S::Future> {
        // All requests of an HTTP/2 connection that have arrived begin before the first of them is polled, and what has arrived
        // of their bodies is there. The body of HTTP/1.1 is there at the first poll.
        if self.request.head.version == Version::HTTP_2
            && let Poll::Ready(end) = self.poll_read(&mut Context::from_waker(Waker::noop()))
        {
            return self.end(end);
        }
        BodyState::Reading { reading: Some(Box::new(self)) }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyReadEnd, BodyReadFailure>> {
        if self.request.body.states_too_long() {
            return Poll::Ready(Ok(BodyReadEnd::TooLong));
        }
        let end = self.request.body.poll_read(&mut *self.reader, cx);
        // A body that is already there makes nobody wait.
        if end.is_pending() && !std::mem::replace(&mut self.is_waiting, true) {
            self.request.config.tell_wait(&self.request.head);
        }
        end
    }

    /// The state that follows the end of the reading.
    fn end(self, end: Result<BodyReadEnd, BodyReadFailure>) -> BodyState<S, B, S::Future> {
        let ReadingRequest { mut request, reader, .. } = self;
        let found = end.and_then(|end| reader.finish(end, &mut request.head.extensions));
        if let Err(reason) = found {
            return BodyState::responding(request.config.unread(&request.head, reason));
        }
        match request.config.resume(&request.head) {
            Some(room) => BodyState::Resuming { room, read: Some(Box::new(request)) },
            None => request.call(),
        }
    }
}

impl<S, B> ReadRequest<S, B>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body,
{
    fn call(self) -> BodyState<S, B, S::Future> {
        let ReadRequest { mut inner, head, body, pace, .. } = self;
        let request = Request::from_parts(head, ReplayedBody::buffered(body, pace));
        BodyState::Calling { future: inner.call(request) }
    }
}

impl<S, B: Body, F> BodyState<S, B, F> {
    fn responding(response: Response<Bytes>) -> Self {
        BodyState::Responding { response: Some(Box::new(response)) }
    }
}

impl<S, B, R> Future for RequestBodyFuture<S, B, S::Future>
where
    S: Service<Request<ReplayedBody<B>>, Response = Response<GatedBody<R>>>,
    B: Body,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                BodyStateProjected::Calling { future } => return future.poll(cx),
                BodyStateProjected::Asking { answer, held } => {
                    let (question, demand) = ready!(answer.as_mut().poll(cx));
                    held.take().expect(POLLED_ONCE).obey(question, demand)
                }
                BodyStateProjected::Reading { reading } => {
                    let end = ready!(reading.as_mut().expect(POLLED_ONCE).poll_read(cx));
                    reading.take().expect(POLLED_ONCE).end(end)
                }
                BodyStateProjected::Resuming { room, read } => match ready!(room.as_mut().poll(cx))
                {
                    Ok(()) => read.take().expect(POLLED_ONCE).call(),
                    Err(response) => BodyState::responding(response),
                },
                BodyStateProjected::Responding { response } => {
                    let response = *response.take().expect(POLLED_ONCE);
                    return Poll::Ready(Ok(response.map(GatedBody::own)));
                }
            };
            state.set(next);
        }
    }
}

/// The assumption behind each `expect` here.
const POLLED_ONCE: &str = "a future is not polled again once it is ready";

impl<S, B: Body, F> fmt::Debug for RequestBodyFuture<S, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBodyFuture").finish_non_exhaustive()
    }
}
