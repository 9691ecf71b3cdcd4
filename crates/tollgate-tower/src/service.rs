//! `RateLimit`: the service in front of the inner one.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, Method, Request, Response, StatusCode, request, response};
use http_body::Body;
use tower_service::Service;

use crate::body::{BodyPass, GatedBody};
use crate::body_host::SendMark;
use crate::body_pace::{BodyPace, PacerSlot};
use crate::decision::GateDecision;
use crate::future::{DeferredRequest, DelayedRequest, ResponseFuture};
use crate::gate::{Admission, AdmittedResponse, BoxFuture, GateAnswer, GateVerdict, VerdictKind};
use crate::inner_fields::InnerLimitFields;
use crate::layer::LayerConfig;
use crate::refusal;
use crate::settlement::{AdmissionGuard, BodySettlement, PendingSettlement};

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

    /// Polls the inner service: the layer refuses requests and applies no backpressure.
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
                    NextStep::CallInner(held) => match self.config.resume(&question.head) {
                        None => {
                            let request = Request::from_parts(question.head, body);
                            ResponseFuture::inner(self.inner.call(request), held)
                        }
                        Some(room) => {
                            let request = (question.head, body, self.take_ready());
                            let waiting = DelayedRequest::new(request, held, &self.config);
                            ResponseFuture::resuming(room, waiting)
                        }
                    },
                    NextStep::CallInnerAfter(sleep, held) => {
                        let request = (question.head, body, self.take_ready());
                        let waiting = DelayedRequest::new(request, held, &self.config);
                        ResponseFuture::waiting(sleep, waiting)
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
    /// Takes the inner service that `poll_ready` found ready; a clone of it may not be ready.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

/// The next step for a request, by the gate's verdict.
pub(crate) enum NextStep {
    /// The request goes to the inner service.
    CallInner(AdmittedRequest),
    /// The request goes to the inner service after a delay.
    CallInnerAfter(BoxFuture<()>, AdmittedRequest),
    /// The response goes back to the client.
    Respond(Response<Bytes>),
}

/// Turns a verdict into the next step. The head of a request is large, so it is borrowed and not moved.
pub(crate) fn next_step(
    config: &Arc<LayerConfig>,
    head: &mut request::Parts,
    answered: GateVerdict,
) -> NextStep {
    let GateVerdict { kind: finding, admission: pass, warning, departure } = answered;
    if let Some(warning) = warning {
        config.warn(warning);
    }
    let admission = pass.map(|admission| {
        if admission.reads_response() {
            // A compressed body cannot be read on its way.
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(slot) = head.extensions.remove::<PacerSlot>()
            && let Some(pacer) = admission.request_pacer()
        {
            slot.fill(pacer);
        }
        let is_connect = head.method == Method::CONNECT;
        let mark = config.host().and_then(|host| host.send_mark(head));
        SettlingAdmission { admission, config: Arc::clone(config), is_connect, mark }
    });
    let mut held = AdmittedRequest { decision: None, admission };
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
    match departure.or_else(|| delay.and_then(|delay| config.sleep(delay))) {
        Some(sleep) => {
            config.tell_wait(head);
            NextStep::CallInnerAfter(sleep, held)
        }
        None => NextStep::CallInner(held),
    }
}

/// The decision and admission of a request, kept until its response is ready. Dropping it refunds the charge if the work has not
/// begun.
#[derive(Default)]
pub(crate) struct AdmittedRequest {
    decision: Option<GateDecision>,
    admission: Option<SettlingAdmission>,
}

impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        let mark = self.admission.as_ref().and_then(|settling| settling.mark.as_ref());
        if mark.is_some_and(|mark| !mark.is_sent()) {
            self.give_back();
        }
    }
}

struct SettlingAdmission {
    admission: Box<dyn Admission>,
    config: Arc<LayerConfig>,
    /// True if a response of 2xx makes the connection a tunnel.
    is_connect: bool,
    /// The mark of the request until it is seen set; `None` from the start if the work begins when the inner service is called.
    mark: Option<SendMark>,
}

impl AdmittedRequest {
    /// Notes that the work begins after a wait. A request with a mark may still leave without paying.
    pub(crate) fn begin(&mut self) {
        if let Some(settling) = &mut self.admission {
            settling.admission.begin();
            if settling.mark.is_none() {
                settling.admission.note_sent();
            }
        }
    }

    /// Looks at the mark, and notes if some of the request may have been sent since.
    pub(crate) fn look_at_mark(&mut self) {
        if let Some(settling) = &mut self.admission
            && settling.mark.take_if(|mark| mark.is_sent()).is_some()
        {
            settling.admission.note_sent();
        }
    }

    /// Refunds the charge, because the work is never begun.
    pub(crate) fn give_back(&mut self) {
        if let Some(SettlingAdmission { admission, config, .. }) = self.admission.take()
            && let Some(refund) = admission.give_back()
        {
            config.run_in_background(refund);
        }
    }

    /// Settles the charge and writes the headers. Returns the response, and a settlement to await before it is
    /// sent.
    pub(crate) fn finish<R: Body>(
        mut self,
        response: Response<R>,
    ) -> (Response<GatedBody<R>>, Option<PendingSettlement>) {
        let (mut head, body) = response.into_parts();
        let (mut pass, mut pending, mut pace) = (BodyPass::None, None, None);
        if let Some(settling) = self.admission.take() {
            pace = settling.body_pace();
            (pass, pending) = settling.finish_head(&mut head, &body);
        }
        if let Some(decision) = self.decision.take() {
            write_headers(&mut head, decision);
        }
        (Response::from_parts(head, GatedBody::inner(body, pass).paced(pace)), pending)
    }
}

impl SettlingAdmission {
    /// The pace of the body of the response, if its bytes are charged.
    fn body_pace(&self) -> Option<Box<BodyPace>> {
        let pacer = self.admission.body_pacer()?;
        Some(Box::new(BodyPace::new(pacer, Arc::clone(&self.config))))
    }

    /// Settles by the head of the response. Returns what the body holds, and a settlement to await.
    fn finish_head(
        self,
        head: &mut response::Parts,
        body: &impl Body,
    ) -> (BodyPass, Option<PendingSettlement>) {
        let SettlingAdmission { mut admission, config, is_connect, .. } = self;
        let is_tunnel = head.status == StatusCode::SWITCHING_PROTOCOLS
            || is_connect && head.status.is_success();
        let cost = config.charge.as_ref().and_then(|charge| charge(head));
        let settling = admission.settle(&AdmittedResponse { head, cost, is_tunnel });
        let pending = settling.map(|future| PendingSettlement::new(future, &config));
        let wants_body = admission.wants_body();
        if is_tunnel {
            let ending = wants_body.then(|| admission.end_body(true)).flatten();
            admission.describe_tunnel(&mut head.extensions);
            head.extensions.insert(AdmissionGuard::new(admission));
            return (
                BodyPass::None,
                pending.or(ending.map(|end| PendingSettlement::new(end, &config))),
            );
        }
        if !wants_body {
            return (BodyPass::Held { _admission: admission }, pending);
        }
        let mut metered = BodySettlement::new(admission, config, body.size_hint().exact());
        if body.is_end_stream() || metered.is_at_end() {
            metered.end(true);
        }
        (BodyPass::Metered(Box::new(metered)), pending)
    }
}

/// Writes the header fields for the client. Of two nested layers, the decision that leaves less room is reported.
/// Fields that the inner service wrote itself are treated as the response or the layer says.
fn write_headers(head: &mut response::Parts, decision: GateDecision) {
    let inner = head.extensions.get::<GateDecision>();
    let told_outside =
        decision.is_reported_outside() || inner.is_some_and(GateDecision::is_wanted_in_response);
    let told_inside = inner.filter(|inner| inner.has_fields());
    let tighter = told_inside.is_none_or(|inner| decision.is_tighter_than(inner));
    // The inner layer's decision was there only for this layer to compare. Refusals keep theirs.
    let leftover = !told_outside && inner.is_some_and(GateDecision::allowed);
    if tighter {
        let told_inside = told_inside.is_some();
        // Fields of an inner layer were written over those of the service behind it.
        if !told_inside && decision.has_fields() {
            let chosen = head.extensions.get::<InnerLimitFields>().copied();
            chosen.unwrap_or_else(|| decision.inner_fields()).apply(&mut head.headers);
        }
        decision.write_to(&mut head.headers, told_inside);
    }
    // Inserting allocates the map of extensions, which costs as much as the decision.
    if leftover {
        head.extensions.remove::<GateDecision>();
    } else if tighter && told_outside {
        head.extensions.insert(decision);
    }
}
