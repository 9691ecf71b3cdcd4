//! `ResponseFuture`: a request on its way through the layer.
//!
//! Dropped before the inner service was called, a request gives back what it was charged. After that its
//! charge stands: the work was begun, and a client that leaves early must not work for free.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::GatedBody;
use crate::gate::{Answered, BoxFuture, Question};
use crate::layer::Config;
use crate::service::{Held, Next, next};

pin_project! {
    /// The response of a [`RateLimit`](crate::RateLimit) in front of a service `S`, for requests with the
    /// body `B`; `F` is the inner service's future and `R` its body.
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        state: State<S, B, F, R>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<S, B, F, R> {
        // The gate has yet to answer.
        Deciding { answer: BoxFuture<(Question, Answered)>, deferred: Option<Deferred<S, B>> },
        // A queue holds the request back.
        Waiting { sleep: BoxFuture<()>, waiting: Waiting<S, B> },
        // The inner service is at work.
        Inner { #[pin] future: F, held: Held },
        // A store is being told the true cost.
        Settling { settling: BoxFuture<()>, response: Option<Response<GatedBody<R>>> },
        // Refused.
        Answered { response: Option<Response<Bytes>> },
    }
}

/// What a request needs once it is decided.
pub(crate) struct Deferred<S, B> {
    /// Ready.
    pub(crate) inner: S,
    pub(crate) config: Arc<Config>,
    pub(crate) body: B,
}

/// A request that is held back. Dropped, it gives back what it was charged.
struct Waiting<S, B> {
    request: Option<(Request<B>, S)>,
    held: Held,
}

impl<S, B> Drop for Waiting<S, B> {
    fn drop(&mut self) {
        self.held.give_back();
    }
}

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    pub(crate) fn deciding(
        answer: BoxFuture<(Question, Answered)>,
        deferred: Deferred<S, B>,
    ) -> Self {
        ResponseFuture { state: State::Deciding { answer, deferred: Some(deferred) } }
    }

    pub(crate) fn waiting(sleep: BoxFuture<()>, request: Request<B>, held: Held, inner: S) -> Self {
        ResponseFuture { state: State::waiting(sleep, request, held, inner) }
    }

    pub(crate) fn inner(future: F, held: Held) -> Self {
        ResponseFuture { state: State::Inner { future, held } }
    }

    pub(crate) fn answered(response: Response<Bytes>) -> Self {
        ResponseFuture { state: State::Answered { response: Some(response) } }
    }
}

impl<S, B, F, R> State<S, B, F, R> {
    fn waiting(sleep: BoxFuture<()>, request: Request<B>, held: Held, inner: S) -> Self {
        let waiting = Waiting { request: Some((request, inner)), held };
        State::Waiting { sleep, waiting }
    }
}

impl<S, B, R> State<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    /// What follows once the gate has answered.
    fn decided(deferred: Deferred<S, B>, (mut question, answered): (Question, Answered)) -> Self {
        let Deferred { mut inner, config, body } = deferred;
        match next(&config, &mut question.head, answered) {
            Next::Go(held) => {
                let request = Request::from_parts(question.head, body);
                State::Inner { future: inner.call(request), held }
            }
            Next::Wait(sleep, held) => {
                let request = Request::from_parts(question.head, body);
                State::waiting(sleep, request, held, inner)
            }
            Next::Answer(response) => State::Answered { response: Some(response) },
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<GatedBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjected::Deciding { answer, deferred } => {
                    let answered = ready!(answer.as_mut().poll(cx));
                    State::decided(deferred.take().expect(ONCE), answered)
                }
                StateProjected::Waiting { sleep, waiting } => {
                    ready!(sleep.as_mut().poll(cx));
                    let (request, mut inner) = waiting.request.take().expect(ONCE);
                    let held = std::mem::take(&mut waiting.held);
                    State::Inner { future: inner.call(request), held }
                }
                StateProjected::Inner { future, held } => {
                    let response = ready!(future.poll(cx))?;
                    let (response, settling) = std::mem::take(held).finish(response);
                    let Some(settling) = settling else { return Poll::Ready(Ok(response)) };
                    State::Settling { settling, response: Some(response) }
                }
                StateProjected::Settling { settling, response } => {
                    ready!(settling.as_mut().poll(cx));
                    return Poll::Ready(Ok(response.take().expect(ONCE)));
                }
                StateProjected::Answered { response } => {
                    return Poll::Ready(Ok(response.take().expect(ONCE).map(GatedBody::own)));
                }
            };
            state.set(next);
        }
    }
}

/// The belief behind each `expect` here.
const ONCE: &str = "a future is not polled again once it is ready";

impl<S, B, F, R> fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Deciding { .. } => "Deciding",
            State::Waiting { .. } => "Waiting",
            State::Inner { .. } => "Inner",
            State::Settling { .. } => "Settling",
            State::Answered { .. } => "Answered",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
