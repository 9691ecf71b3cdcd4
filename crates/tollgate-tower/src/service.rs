//! `RateLimit`: the service in front of the inner one.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, request, response};
use http_body::Body;
use tower_service::Service;

use crate::body::GatedBody;
use crate::decision::GateDecision;
use crate::future::{DeferredRequest, ResponseFuture};
use crate::gate::{Admission, BoxFuture, GateAnswer, GateVerdict, VerdictKind};
use crate::layer::LayerConfig;
use crate::refusal;

/// A service with a gate in front of it; made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, config: Arc<LayerConfig>) -> RateLimit<S> {
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
            return ResponseFuture::inner(self.inner.call(request), AdmittedRequest::default());
        }
        let mut question = self.config.gate_request(head);
        match self.config.ask(&mut question) {
            GateAnswer::Now(answered) => {
                match next_step(&self.config, &mut question.head, answered) {
                    NextStep::CallInner(held) => {
                        let request = Request::from_parts(question.head, body);
                        ResponseFuture::inner(self.inner.call(request), held)
                    }
                    NextStep::CallInnerAfter(sleep, held) => {
                        let request = Request::from_parts(question.head, body);
                        ResponseFuture::waiting(sleep, request, held, self.take_ready())
                    }
                    NextStep::Respond(response) => ResponseFuture::refused(response),
                }
            }
            GateAnswer::Later(answer) => {
                let (inner, config) = (self.take_ready(), Arc::clone(&self.config));
                ResponseFuture::deciding(answer, DeferredRequest { inner, config, body })
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
pub(crate) enum NextStep {
    /// The request goes to the inner service.
    CallInner(AdmittedRequest),
    /// The same, after a while.
    CallInnerAfter(BoxFuture<()>, AdmittedRequest),
    /// Back to the client.
    Respond(Response<Bytes>),
}

/// The head of a request is large: it stays where it is until it goes on.
pub(crate) fn next_step(
    config: &Arc<LayerConfig>,
    head: &mut request::Parts,
    answered: GateVerdict,
) -> NextStep {
    let GateVerdict { kind: finding, admission: pass, warning } = answered;
    if let Some(warning) = warning {
        config.warn(warning);
    }
    let mut held = AdmittedRequest {
        decision: None,
        admission: pass
            .map(|pass| SettlingAdmission { admission: pass, config: Arc::clone(config) }),
    };
    let decision = match finding {
        VerdictKind::Unlimited => return NextStep::CallInner(held),
        VerdictKind::AmbiguousHeader(header) => {
            return NextStep::Respond(refusal::ambiguous_header(&header, head));
        }
        VerdictKind::Decided(decision) if !decision.allowed() => {
            return NextStep::Respond(refusal::refuse(config, &decision, head));
        }
        VerdictKind::Decided(decision) => decision,
    };
    head.extensions.insert(decision.clone());
    let delay = decision.delay().duration().filter(|delay| !delay.is_zero());
    held.decision = Some(decision);
    match delay.and_then(|delay| config.sleep(delay)) {
        Some(sleep) => NextStep::CallInnerAfter(sleep, held),
        None => NextStep::CallInner(held),
    }
}

/// What is kept of a decision until the response is there.
#[derive(Debug, Default)]
pub(crate) struct AdmittedRequest {
    decision: Option<GateDecision>,
    admission: Option<SettlingAdmission>,
}

#[derive(Debug)]
struct SettlingAdmission {
    admission: Box<dyn Admission>,
    config: Arc<LayerConfig>,
}

impl AdmittedRequest {
    /// The work is never begun.
    pub(crate) fn give_back(&mut self) {
        if let Some(begun) = self.admission.take() {
            begun.admission.give_back();
        }
    }

    /// The response on its way out, and what it has to wait for.
    pub(crate) fn finish<R>(
        self,
        response: Response<R>,
    ) -> (Response<GatedBody<R>>, Option<BoxFuture<()>>) {
        let (mut head, body) = response.into_parts();
        let mut settling = None;
        let pass = self.admission.map(|SettlingAdmission { admission: mut pass, config }| {
            let cost = config.charge.as_ref().and_then(|charge| charge(&head));
            settling = pass.settle(cost, &head);
            pass
        });
        if let Some(decision) = self.decision {
            write_headers(&mut head, decision);
        }
        (Response::from_parts(head, GatedBody::inner(body, pass)), settling)
    }
}

/// Tells the client. Of two layers the one that leaves less room is told, whichever is outside; fields that
/// the inner service has written itself stay.
fn write_headers(head: &mut response::Parts, decision: GateDecision) {
    let inner = head.extensions.get::<GateDecision>();
    let told_outside =
        decision.is_reported_outside() || inner.is_some_and(GateDecision::is_wanted_in_response);
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
