//! `RateLimit`: the service in front of the inner one.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request, response};
use http_body::Body;
use tower_service::Service;

use crate::body::GatedBody;
use crate::decision::GateDecision;
use crate::future::{Deferred, ResponseFuture};
use crate::gate::{Answered, Asked, BoxFuture, Finding, Pass};
use crate::layer::Config;
use crate::refusal;

/// A service with a gate in front of it; made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, config: Arc<Config>) -> RateLimit<S> {
        RateLimit { inner, config }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    R::Data: From<Bytes>,
{
    type Response = Response<GatedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, S::Future, R>;

    /// The inner service's: the layer refuses, it does not push back.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        if self.config.exempts(&head) {
            let request = Request::from_parts(head, body);
            return ResponseFuture::inner(self.inner.call(request), Held::default());
        }
        let mut question = self.config.question(head);
        match self.config.ask(&mut question) {
            Asked::Now(answered) => match next(&self.config, &mut question.head, answered) {
                Next::Go(held) => {
                    let request = Request::from_parts(question.head, body);
                    ResponseFuture::inner(self.inner.call(request), held)
                }
                Next::Wait(sleep, held) => {
                    let request = Request::from_parts(question.head, body);
                    ResponseFuture::waiting(sleep, request, held, self.take_ready())
                }
                Next::Answer(response) => ResponseFuture::answered(response),
            },
            Asked::Later(answer) => {
                let (inner, config) = (self.take_ready(), Arc::clone(&self.config));
                ResponseFuture::deciding(answer, Deferred { inner, config, body })
            }
        }
    }
}

impl<S: Clone> RateLimit<S> {
    /// The inner service that `poll_ready` has found ready: a clone of it may not be.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

/// What follows from an answer.
pub(crate) enum Next {
    /// The request goes to the inner service.
    Go(Held),
    /// The same, after a while.
    Wait(BoxFuture<()>, Held),
    /// Back to the client.
    Answer(Response<Bytes>),
}

/// The head of a request is large: it stays where it is until it goes on.
pub(crate) fn next(config: &Arc<Config>, head: &mut request::Parts, answered: Answered) -> Next {
    let Answered { finding, pass, warning } = answered;
    if let Some(warning) = warning {
        config.warn(warning);
    }
    let mut held =
        Held { decision: None, pass: pass.map(|pass| Begun { pass, config: Arc::clone(config) }) };
    let decision = match finding {
        Finding::Unlimited => return Next::Go(held),
        Finding::Unclear(header) => return Next::Answer(refusal::unclear(&header, head)),
        Finding::Decided(decision) if !decision.allowed() => {
            return Next::Answer(refusal::refuse(config, &decision, head));
        }
        Finding::Decided(decision) => decision,
    };
    head.extensions.insert(decision.clone());
    let delay = decision.delay().duration().filter(|delay| !delay.is_zero());
    held.decision = Some(decision);
    match delay.and_then(|delay| config.sleep(delay)) {
        Some(sleep) => Next::Wait(sleep, held),
        None => Next::Go(held),
    }
}

/// What is kept of a decision until the response is there.
#[derive(Debug, Default)]
pub(crate) struct Held {
    decision: Option<GateDecision>,
    pass: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    pass: Box<dyn Pass>,
    config: Arc<Config>,
}

impl Held {
    /// The work is never begun.
    pub(crate) fn give_back(&mut self) {
        if let Some(begun) = self.pass.take() {
            begun.pass.give_back();
        }
    }

    /// The response on its way out, and what it has to wait for.
    pub(crate) fn finish<R>(
        self,
        response: Response<R>,
    ) -> (Response<GatedBody<R>>, Option<BoxFuture<()>>) {
        let (mut head, body) = response.into_parts();
        let mut settling = None;
        let pass = self.pass.map(|Begun { mut pass, config }| {
            let cost = config.charge.as_ref().and_then(|charge| charge(&head));
            settling = pass.settle(cost, &head);
            pass
        });
        if let Some(decision) = self.decision {
            tell(&mut head, decision);
        }
        (Response::from_parts(head, GatedBody::inner(body, pass)), settling)
    }
}

/// Tells the client. Of two layers the one that leaves less room is told, whichever is outside; fields that
/// the inner service has written itself stay.
fn tell(head: &mut response::Parts, decision: GateDecision) {
    let inner = head.extensions.get::<GateDecision>();
    let told_outside = decision.is_told_outside() || inner.is_some_and(GateDecision::is_asked_for);
    let told_inside = inner.filter(|inner| inner.has_fields());
    let tighter = told_inside.is_none_or(|inner| decision.is_tighter_than(inner));
    // The inner one's was there for this layer to compare. Refusals keep it, whoever asks.
    let leftover = !told_outside && inner.is_some_and(GateDecision::allowed);
    if tighter {
        decision.write_to(&mut head.headers, told_inside.is_some());
    }
    // The map of extensions is made for this alone: it costs as much as the decision.
    if leftover {
        head.extensions.remove::<GateDecision>();
    } else if tighter && told_outside {
        head.extensions.insert(decision);
    }
}
