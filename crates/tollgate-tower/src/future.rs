//! `ResponseFuture`: a request on its way through the layer.
//!
//! A future that is dropped before the inner service was called refunds its charge. After that the charge
//! stands: the work was begun, and a client that disconnects early must not get it for free.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
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

/// A delayed request. Dropping it refunds its charge.
struct DelayedRequest<S, B> {
    request: Option<(Request<B>, S)>,
    held: AdmittedRequest,
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

    pub(crate) fn waiting(
        sleep: BoxFuture<()>,
        request: Request<B>,
        held: AdmittedRequest,
        inner: S,
    ) -> Self {
        ResponseFuture { state: RequestState::waiting(sleep, request, held, inner) }
    }

    pub(crate) fn inner(future: F, held: AdmittedRequest) -> Self {
        ResponseFuture { state: RequestState::Inner { future, held } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        ResponseFuture { state: RequestState::refused(response) }
    }
}

impl<S, B, F, R> RequestState<S, B, F, R> {
    fn waiting(sleep: BoxFuture<()>, request: Request<B>, held: AdmittedRequest, inner: S) -> Self {
        let waiting = Box::new(DelayedRequest { request: Some((request, inner)), held });
        RequestState::Waiting { sleep, waiting }
    }

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
        let DeferredRequest { mut inner, config, body } = deferred;
        match next_step(&config, &mut question.head, answered) {
            NextStep::CallInner(held) => {
                let request = Request::from_parts(question.head, body);
                RequestState::Inner { future: inner.call(request), held }
            }
            NextStep::CallInnerAfter(sleep, held) => {
                let request = Request::from_parts(question.head, body);
                RequestState::waiting(sleep, request, held, inner)
            }
            NextStep::Respond(response) => RequestState::refused(response),
        }
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
                    let (request, mut inner) = waiting.request.take().expect(POLLED_ONCE);
                    let mut held = std::mem::take(&mut waiting.held);
                    held.begin();
                    RequestState::Inner { future: inner.call(request), held }
                }
                StateProjected::Inner { future, held } => {
                    let response = ready!(future.poll(cx))?;
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
            RequestState::Inner { .. } => "Inner",
            RequestState::Settling { .. } => "Settling",
            RequestState::Refused { .. } => "Refused",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
