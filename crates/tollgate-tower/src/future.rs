//! `ResponseFuture`: a request on its way through the layer.
//!
//! A future that is dropped before the inner service was called refunds its charge, and so does a server that has no room for a
//! request when its turn has come. After that the charge stands: the work was begun, and a client that disconnects early must
//! not get it for free. A server that sends requests on says when it begins.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::GatedBody;
use crate::gate::{BoxFuture, GateRequest, GateVerdict};
use crate::layer::LayerConfig;
use crate::service::{AdmittedRequest, NextStep, next_step};
use crate::settlement::PendingSettlement;

pin_project! {
    /// The response of a [`RateLimit`](crate::RateLimit) in front of a service `S`, for requests with the
    /// body `B`; `F` is the inner service's future and `R` its body.
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        state: RequestState<S, B, F, R>,
    }
}

pin_project! {
    // The state of nearly all requests is `Inner`. The others are boxed, because servers move the future.
    #[project = StateProjected]
    enum RequestState<S, B, F, R> {
        // The gate has not answered yet.
        Deciding { answer: BoxFuture<(GateRequest, GateVerdict)>, deferred: Option<Box<DeferredRequest<S, B>>> },
        // A queue delays the request.
        Waiting { sleep: BoxFuture<()>, waiting: Box<DelayedRequest<S, B>> },
        // The server makes room for a request whose turn has come.
        Resuming { room: RoomFuture, waiting: Box<DelayedRequest<S, B>> },
        // The inner service is running.
        Inner { #[pin] future: F, held: AdmittedRequest },
        // The true cost is being sent to a store.
        Settling { settling: PendingSettlement, response: Option<Box<Response<GatedBody<R>>>> },
        // The request was refused.
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

/// The parts of a request that are needed after its decision.
pub(crate) struct DeferredRequest<S, B> {
    /// The inner service, which `poll_ready` found ready.
    pub(crate) inner: S,
    pub(crate) config: Arc<LayerConfig>,
    pub(crate) body: B,
}

/// A wait until the server has room for a request. `Err` is the response if there is none.
pub(crate) type RoomFuture = BoxFuture<Result<(), Response<Bytes>>>;

/// An admitted request that waits. Dropping it refunds its charge.
pub(crate) struct DelayedRequest<S, B> {
    request: Option<(request::Parts, B, S)>,
    held: AdmittedRequest,
    config: Arc<LayerConfig>,
}

impl<S, B> DelayedRequest<S, B> {
    pub(crate) fn new(
        request: (request::Parts, B, S),
        held: AdmittedRequest,
        config: &Arc<LayerConfig>,
    ) -> Box<DelayedRequest<S, B>> {
        Box::new(DelayedRequest { request: Some(request), held, config: Arc::clone(config) })
    }
}

impl<S, B> Drop for DelayedRequest<S, B> {
    fn drop(&mut self) {
        self.held.give_back();
    }
}

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    pub(crate) fn deciding(
        answer: BoxFuture<(GateRequest, GateVerdict)>,
        deferred: DeferredRequest<S, B>,
    ) -> Self {
        let deferred = Some(Box::new(deferred));
        ResponseFuture { state: RequestState::Deciding { answer, deferred } }
    }

    pub(crate) fn waiting(sleep: BoxFuture<()>, waiting: Box<DelayedRequest<S, B>>) -> Self {
        ResponseFuture { state: RequestState::Waiting { sleep, waiting } }
    }

    pub(crate) fn resuming(room: RoomFuture, waiting: Box<DelayedRequest<S, B>>) -> Self {
        ResponseFuture { state: RequestState::Resuming { room, waiting } }
    }

    pub(crate) fn inner(future: F, held: AdmittedRequest) -> Self {
        ResponseFuture { state: RequestState::Inner { future, held } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        ResponseFuture { state: RequestState::refused(response) }
    }
}

impl<S, B, F, R> RequestState<S, B, F, R> {
    fn refused(response: Response<Bytes>) -> Self {
        RequestState::Refused { response: Some(Box::new(response)) }
    }
}

impl<S, B, R> RequestState<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    /// The state that follows the gate's answer.
    fn decided(
        deferred: DeferredRequest<S, B>,
        (mut question, answered): (GateRequest, GateVerdict),
    ) -> Self {
        let DeferredRequest { inner, config, body } = deferred;
        match next_step(&config, &mut question.head, answered) {
            NextStep::CallInner(held) => {
                RequestState::go_on((question.head, body, inner), held, &config)
            }
            NextStep::CallInnerAfter(sleep, held) => {
                let waiting = DelayedRequest::new((question.head, body, inner), held, &config);
                RequestState::Waiting { sleep, waiting }
            }
            NextStep::Respond(response) => RequestState::refused(response),
        }
    }

    /// The state of a request whose turn has come: the server may have to make room for it.
    fn go_on(
        request: (request::Parts, B, S),
        held: AdmittedRequest,
        config: &Arc<LayerConfig>,
    ) -> Self {
        match config.resume(&request.0) {
            Some(room) => {
                let waiting = DelayedRequest::new(request, held, config);
                RequestState::Resuming { room, waiting }
            }
            None => RequestState::begin(request, held),
        }
    }

    /// The state of a request whose work begins.
    fn begin((head, body, mut inner): (request::Parts, B, S), mut held: AdmittedRequest) -> Self {
        held.begin();
        RequestState::Inner { future: inner.call(Request::from_parts(head, body)), held }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Output = Result<Response<GatedBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjected::Deciding { answer, deferred } => {
                    let answered = ready!(answer.as_mut().poll(cx));
                    RequestState::decided(*deferred.take().expect(POLLED_ONCE), answered)
                }
                StateProjected::Waiting { sleep, waiting } => {
                    ready!(sleep.as_mut().poll(cx));
                    let request = waiting.request.take().expect(POLLED_ONCE);
                    let held = std::mem::take(&mut waiting.held);
                    RequestState::go_on(request, held, &waiting.config)
                }
                StateProjected::Resuming { room, waiting } => {
                    match ready!(room.as_mut().poll(cx)) {
                        Ok(()) => {
                            let request = waiting.request.take().expect(POLLED_ONCE);
                            RequestState::begin(request, std::mem::take(&mut waiting.held))
                        }
                        // Dropping the request refunds its charge.
                        Err(response) => RequestState::refused(response),
                    }
                }
                StateProjected::Inner { future, held } => {
                    let polled = future.poll(cx);
                    held.look_at_mark();
                    let response = ready!(polled)?;
                    let (response, settling) = std::mem::take(held).finish(response);
                    let Some(settling) = settling else { return Poll::Ready(Ok(response)) };
                    RequestState::Settling { settling, response: Some(Box::new(response)) }
                }
                StateProjected::Settling { settling, response } => {
                    ready!(Pin::new(settling).poll(cx));
                    return Poll::Ready(Ok(*response.take().expect(POLLED_ONCE)));
                }
                StateProjected::Refused { response } => {
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

impl<S, B, F, R> fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            RequestState::Deciding { .. } => "Deciding",
            RequestState::Waiting { .. } => "Waiting",
            RequestState::Resuming { .. } => "Resuming",
            RequestState::Inner { .. } => "Inner",
            RequestState::Settling { .. } => "Settling",
            RequestState::Refused { .. } => "Refused",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
