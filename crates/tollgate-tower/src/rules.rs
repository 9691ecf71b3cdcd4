//! A whole gatekeeper as a gate: rules from a file, over any store that always answers.
//!
//! The facts are the request's method, path and header fields; the rules' `identify` finds the caller from them and
//! from the peer's address. A slot of a rule's `concurrency` is held until the body of the response has ended, at
//! most 24 hours; for an upgraded connection, as long as the server keeps its [`AdmissionGuard`](crate::AdmissionGuard).
//! A slot of an adaptive `concurrency` is held until the head of the response, where the measured time ends.
//! A cost in a header field is settled when the head of the response is ready, a cost in the body when the body has
//! ended. An estimate by the body of the request needs a [`RequestBodyLayer`](crate::RequestBodyLayer).

mod identified_caller;
mod request_bodies;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::uri::Authority;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, request};
use tollgate::headers::escape_non_utf8;
use tollgate::{Clock, Micros, Wait};
use tollgate_rules::identify::AddressSource;
use tollgate_rules::{
    Answer, Ask, BodyCharges, BodyEnd, Facts, Gatekeeper, Headers, Identify, Identity,
    InfallibleStore, MeteredCharges, OwnRefusal, RequestJson, ReservationAnswer, ReservationId,
    ResponseFacts, RuleSet, SettlementCharges, WaitingRequest, WebSocketLimits, WorkOutcome,
    expect_ready, normalize_host,
};

use crate::charge::{ChargeStands, UnsentRequest};
use crate::gate::{
    Admission, AdmittedResponse, BodyDemandAnswer, BodyPacer, BoxFuture, DecisionDetails, Gate,
    GateAnswer, GateRequest, GateVerdict, PieceAnswer, PieceTurn, SleepFn,
};
use crate::header_text::{host_of_target, single_value};
use crate::layer::is_bodiless_preflight;
use crate::refusal::CustomRefusal;
use crate::warning::Warning;
pub use identified_caller::IdentifiedCaller;
use request_bodies::{RequestBytePacer, find_demand};

/// ```
/// use std::sync::Arc;
/// use tollgate_rules::{Gatekeeper, Source, compile};
/// use tollgate_tower::RateLimitLayer;
///
/// let file = Source::from_text("rules.yaml", "
/// rules:
///   - { name: login, match: { path: /login, method: POST }, key: '{ip}', limits: [5/minute] }
/// ");
/// let compiled = compile(&[file]);
/// let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
/// let gatekeeper = Arc::new(Gatekeeper::in_memory(rules, 100_000));
/// let layer = RateLimitLayer::new(Arc::clone(&gatekeeper)); // `gatekeeper.replace(…)` changes the rules
/// # drop(layer);
/// ```
impl<S, C> Gate for Arc<Gatekeeper<S, C>>
where
    S: InfallibleStore + 'static,
    C: Clock + 'static,
{
    fn ask(&self, question: &mut GateRequest) -> GateAnswer {
        if self.answers_at_once() {
            return GateAnswer::Now(expect_ready(decide(self, question)));
        }
        GateAnswer::of(question, |question| {
            let gatekeeper = Arc::clone(self);
            async move {
                let answered = decide(&gatekeeper, &question).await;
                (question, answered)
            }
        })
    }

    fn ask_in_turn(&self, question: &mut GateRequest, sleep: &Arc<SleepFn>) -> GateAnswer {
        if !self.rules().can_wait() {
            return self.ask(question);
        }
        let (gatekeeper, sleep) = (Arc::clone(self), Arc::clone(sleep));
        if !self.answers_at_once() {
            return GateAnswer::of(question, |question| {
                decide_in_turn(gatekeeper, question, sleep)
            });
        }
        match expect_ready(decide_or_queue(self, question, &sleep)) {
            Ok(verdict) => GateAnswer::Now(verdict),
            Err(queued) => {
                let question = question.take();
                GateAnswer::Later(Box::pin(wait_for_turn(gatekeeper, question, queued, sleep)))
            }
        }
    }

    fn reads_bodies(&self) -> bool {
        self.rules().reads_request_json()
    }

    fn body_demand(&self, question: &mut GateRequest) -> BodyDemandAnswer {
        if self.answers_at_once() {
            return BodyDemandAnswer::Now(expect_ready(find_demand(self, question)));
        }
        let (gatekeeper, mut question) = (Arc::clone(self), question.take());
        BodyDemandAnswer::Later(Box::pin(async move {
            let demand = find_demand(&gatekeeper, &mut question).await;
            (question, demand)
        }))
    }

    fn paces_bodies(&self) -> bool {
        let rules = self.rules();
        rules.counts_bytes() || rules.estimates_by_bytes()
    }
}

/// Decides about a request that cannot wait.
async fn decide<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
) -> GateVerdict {
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let fields = LayerHeaders::of(&question.head);
    let (identity, warning) = match identify(&rules, question, &fields, now) {
        Ok(identified) => identified,
        Err(header) => return question.ambiguous_header(header),
    };
    let facts = facts(&question.head, &fields, &identity, rules.estimates_costs());
    if let Some(refused) = blocked_preflight(gatekeeper, question, facts, now).await {
        return refused.warning(warning);
    }
    let ask = Ask { facts, cost: question.cost, cannot_wait: true, ..Ask::default() };
    let read = gatekeeper.clock_instant(now);
    let reserved = gatekeeper.admit_by(rules, &ask, question.settles, read).await;
    verdict(gatekeeper, question, reserved, None).warning(warning)
}

/// Decides about a request that can wait, or queues it.
async fn decide_or_queue<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
    sleep: &Arc<SleepFn>,
) -> Result<GateVerdict, WaitingRequest> {
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let fields = LayerHeaders::of(&question.head);
    let (identity, warning) = match identify(&rules, question, &fields, now) {
        Ok(identified) => identified,
        Err(header) => return Ok(question.ambiguous_header(header)),
    };
    let facts = facts(&question.head, &fields, &identity, rules.estimates_costs());
    if let Some(refused) = blocked_preflight(gatekeeper, question, facts, now).await {
        return Ok(refused.warning(warning));
    }
    let ask = Ask { facts, cost: question.cost, ..Ask::default() };
    let patience = || question.patience().unwrap_or_default();
    let (settles, read) = (question.settles, gatekeeper.clock_instant(now));
    let reserved = gatekeeper.admit_or_queue(rules, &ask, settles, &patience, read).await?;
    Ok(verdict(gatekeeper, question, reserved, Some(sleep)).warning(warning))
}

/// Refuses a CORS preflight that a block stops, although no rule counts it.
async fn blocked_preflight<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
    facts: Facts<'_>,
    now: Micros,
) -> Option<GateVerdict> {
    let (ask, now) = (Ask { facts, ..Ask::default() }, gatekeeper.clock_instant(now));
    let refused = gatekeeper.refuse_preflight_by(gatekeeper.rules(), &ask, now).await;
    refused.map(|answer| tell(question, &answer))
}

/// Decides about a queued request when it is its turn.
async fn wait_for_turn<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: Arc<Gatekeeper<S, C>>,
    question: GateRequest,
    mut queued: WaitingRequest,
    sleep: Arc<SleepFn>,
) -> (GateRequest, GateVerdict) {
    question.tell_wait();
    loop {
        match turn_of(&gatekeeper, &question, queued, &sleep).await {
            Ok(verdict) => return (question, verdict),
            Err(rejudged) => queued = rejudged,
        }
    }
}

/// Decides about a queued request by the rules that it waits under. `Err` if they are replaced meanwhile.
async fn turn_of<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
    queued: WaitingRequest,
    sleep: &Arc<SleepFn>,
) -> Result<GateVerdict, WaitingRequest> {
    let (rules, now) = (Arc::clone(queued.rules()), gatekeeper.now());
    let fields = LayerHeaders::of(&question.head);
    let (identity, warning) = match identify(&rules, question, &fields, now) {
        Ok(identified) => identified,
        Err(header) => return Ok(question.ambiguous_header(header)),
    };
    let facts = facts(&question.head, &fields, &identity, rules.estimates_costs());
    let ask = Ask { facts, cost: question.cost, ..Ask::default() };
    let reserved = gatekeeper.admit_in_turn(queued, &ask, question.settles, &**sleep).await?;
    Ok(verdict(gatekeeper, question, reserved, Some(sleep)).warning(warning))
}

/// Decides about a request over a store that has to be waited for.
async fn decide_in_turn<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: Arc<Gatekeeper<S, C>>,
    question: GateRequest,
    sleep: Arc<SleepFn>,
) -> (GateRequest, GateVerdict) {
    match decide_or_queue(&gatekeeper, &question, &sleep).await {
        Ok(verdict) => (question, verdict),
        Err(queued) => Box::pin(wait_for_turn(gatekeeper, question, queued, sleep)).await,
    }
}

/// The verdict for an answer, with what the request holds.
fn verdict<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
    reserved: ReservationAnswer,
    sleep: Option<&Arc<SleepFn>>,
) -> GateVerdict {
    let ReservationAnswer { answer, id, ends_at_begin, reads_response, departure, .. } = reserved;
    let (measures_latency, websocket) = (reserved.measures_latency, reserved.websocket);
    let departure = departure.zip(sleep).map(|(departure, sleep)| {
        let (gatekeeper, sleep) = (Arc::clone(gatekeeper), Arc::clone(sleep));
        let departing = async move { departure.wait(gatekeeper.clock(), &*sleep).await };
        Box::pin(departing) as BoxFuture<()>
    });
    let counts_bytes = answer.rules().counts_bytes();
    // A layer that reports the cost of responses settles all charges itself.
    let counts_requests = answer.rules().estimates_by_bytes() && !question.settles;
    let websocket = WebSocketRules(websocket);
    let pass = id.map(|id| {
        let gatekeeper = Arc::clone(gatekeeper);
        let by_bytes = counts_bytes.then(|| RulesPacer::new(&gatekeeper, id)).flatten();
        let counter = counts_requests.then(|| gatekeeper.take_request_bytes(id)).flatten();
        let by_request = counter.map(|bytes| {
            let (gatekeeper, pacer) = (Arc::clone(&gatekeeper), by_bytes.clone());
            Arc::new(RequestBytePacer { gatekeeper, bytes, pacer })
        });
        let began_at = measures_latency.then(|| gatekeeper.now());
        let admission = RulesAdmission {
            gatekeeper,
            id,
            ends_at_begin,
            reads_response,
            metered: None,
            by_bytes,
            by_request,
            began_at,
            websocket,
        };
        Box::new(admission) as Box<dyn Admission>
    });
    tell(question, &answer).holding(pass).departing(departure)
}

/// Identifies the caller, unless that has been done before the body was read, and looks for signs of misuse. `Err` is a header
/// field that names the caller in two ways.
fn identify<'a>(
    rules: &Arc<RuleSet>,
    question: &'a GateRequest,
    fields: &'a LayerHeaders<'a>,
    now: Micros,
) -> Result<(Identity<'a>, Option<Warning>), HeaderName> {
    let settings = &rules.settings().identify;
    if rules.reads_request_json()
        && let Some(caller) = IdentifiedCaller::by(rules, &question.head)
    {
        return Ok((caller.identity(), signs_of_misuse(settings, question)));
    }
    let trusts = |peer: IpAddr| settings.trusts(peer.to_canonical());
    match fields.ambiguous_key_header(rules, question.peer.is_some_and(trusts)) {
        Some(header) => Err(header.clone()),
        None => {
            let identity = identity(settings, question, fields, now);
            Ok((identity, signs_of_misuse(settings, question)))
        }
    }
}

/// Identifies the caller.
fn identity<'a>(
    identify: &Identify,
    question: &GateRequest,
    fields: &'a LayerHeaders<'a>,
    now: Micros,
) -> Identity<'a> {
    match question.peer {
        Some(peer) => identify.identify(peer, fields, now),
        // No client has this address, so only credentials that callers prove themselves count.
        None => {
            let nobody = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            Identity { ip: None, ..identify.identify(nobody, fields, now) }
        }
    }
}

fn facts<'a>(
    head: &'a request::Parts,
    fields: &'a LayerHeaders<'a>,
    identity: &'a Identity<'a>,
    estimates_costs: bool,
) -> Facts<'a> {
    Facts {
        method: Some(head.method.as_str()),
        path: Some(head.uri.path()),
        // Without one, the field `Host` counts.
        host: head.uri.authority().map(Authority::as_str),
        ip: identity.ip,
        user: identity.user.as_deref(),
        tier: identity.tier.as_deref(),
        api_key: identity.api_key.as_deref(),
        headers: Some(fields as &dyn Headers),
        is_preflight: is_bodiless_preflight(head),
        request_bytes: estimates_costs.then(|| content_length(head)).flatten(),
        request_json: estimates_costs.then(|| head.extensions.get::<RequestJson>()).flatten(),
        ..Facts::default()
    }
}

/// Returns a warning if the peer is missing, or if a peer that is not trusted sent a forwarding header: a proxy
/// missing from the rules, or a client that forged it.
fn signs_of_misuse(identify: &Identify, question: &GateRequest) -> Option<Warning> {
    if !question.watching {
        return None;
    }
    let Some(peer) = question.peer else { return Some(Warning::NoPeer) };
    let header = match identify.address {
        AddressSource::XForwardedFor => "x-forwarded-for",
        AddressSource::Forwarded => "forwarded",
        AddressSource::Peer | AddressSource::Header(_) => return None,
    };
    let ignored =
        question.head.headers.contains_key(header) && !identify.trusts(peer.to_canonical());
    ignored.then_some(Warning::ForwardedIgnored)
}

fn tell(question: &GateRequest, answer: &Answer) -> GateVerdict {
    let binding = answer.binding();
    let warnings: Vec<_> = answer.warnings().collect();
    if answer.allowed() && binding.is_none() && warnings.is_empty() {
        // Without a limit `remaining` is 0, which handlers must not mistake for an exhausted limit.
        return question.unlimited();
    }
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    question.decided(&DecisionDetails {
        reply: &reply,
        dialects: answer.dialects(),
        decided_by: answer.decided_by(),
        delay: answer.delay(),
        policy: binding.as_ref().map(|limit| limit.policy),
        rule: binding.map(|limit| limit.rule),
        refusal: answer.own_refusal().and_then(custom_refusal).as_ref(),
        warnings: &warnings,
    })
}

/// A rule's own refusal. The compiler of rules has checked its status and content type.
#[cold]
fn custom_refusal(own: &OwnRefusal) -> Option<CustomRefusal> {
    Some(CustomRefusal {
        status: StatusCode::from_u16(own.status).ok()?,
        content_type: HeaderValue::from_str(&own.content_type).ok()?,
        body: Bytes::from_owner(Arc::clone(&own.body)),
    })
}

/// The hold of a request under rules that settle a cost or limit concurrency.
struct RulesAdmission<S: InfallibleStore + 'static, C: Clock + 'static> {
    gatekeeper: Arc<Gatekeeper<S, C>>,
    id: ReservationId,
    /// True if nothing has to be kept once the request cannot leave unpaid any more.
    ends_at_begin: bool,
    reads_response: bool,
    /// Charges that the body settles.
    metered: Option<MeteredCharges>,
    /// Charges of both bodies.
    by_bytes: Option<Arc<RulesPacer<S, C>>>,
    /// Charges of the body of the request.
    by_request: Option<Arc<RequestBytePacer<S, C>>>,
    /// Beginning of the work, if its time is to be measured and was not yet.
    began_at: Option<Micros>,
    websocket: WebSocketRules,
}

/// The limits on the WebSocket that a request opens, by rule, in the extensions of its response. The layer does not see the
/// frames: the server that runs the connection enforces them.
#[derive(Clone, Debug, Default)]
pub struct WebSocketRules(pub Vec<Arc<WebSocketLimits>>);

impl<S: InfallibleStore + 'static, C: Clock + 'static> RulesAdmission<S, C> {
    /// Reports the outcome of measured work, once.
    fn measure(&mut self, outcome: impl FnOnce(Wait) -> WorkOutcome) {
        let Some(began_at) = self.began_at.take() else { return };
        let now = self.gatekeeper.now();
        self.gatekeeper.measure(self.id, outcome(began_at.until(now)), now);
    }

    /// Gives the estimates of a request back that was never sent on: those that are due, and that by the bytes of its body.
    fn give_back_estimates(
        &self,
        due: Option<SettlementCharges>,
        now: Micros,
    ) -> Option<BoxFuture<()>> {
        let (gatekeeper, by_request) = (Arc::clone(&self.gatekeeper), self.by_request.clone());
        poll_once(async move {
            if let Some(RequestBytePacer { bytes, .. }) = by_request.as_deref() {
                gatekeeper.cancel_request_bytes(bytes, gatekeeper.clock_instant(now)).await;
            }
            if let Some(due) = due {
                gatekeeper.settle_by(due, gatekeeper.clock_instant(now)).await;
            }
        })
    }

    /// Settles charges: at once over a store in this process, otherwise by the returned future.
    fn settle_charges(&self, due: SettlementCharges, now: Micros) -> Option<BoxFuture<()>> {
        let gatekeeper = Arc::clone(&self.gatekeeper);
        poll_once(async move { gatekeeper.settle_by(due, gatekeeper.clock_instant(now)).await })
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> Admission for RulesAdmission<S, C> {
    fn reads_response(&self) -> bool {
        self.reads_response
    }

    fn begin(&mut self) {
        self.began_at = self.began_at.map(|_| self.gatekeeper.now());
    }

    fn note_sent(&mut self) {
        if std::mem::take(&mut self.ends_at_begin) {
            self.gatekeeper.end(self.id);
        }
    }

    fn settle(&mut self, response: &AdmittedResponse<'_>) -> Option<BoxFuture<()>> {
        // Whoever is answered has not left.
        self.note_sent();
        let AdmittedResponse { head, cost, is_tunnel, .. } = *response;
        self.measure(|waited| work_outcome(head.status, is_tunnel, waited));
        if cost.is_none() && head.extensions.get::<ChargeStands>().is_some() {
            return None;
        }
        let fields = ResponseFields(&head.headers);
        let is_unsent = head.extensions.get::<UnsentRequest>().is_some();
        let status = head.status.as_u16();
        let response = ResponseFacts { status, headers: &fields, is_tunnel, is_unsent };
        let now = self.gatekeeper.now();
        let due = self.gatekeeper.take_due(self.id, cost, &response, now);
        if is_unsent {
            return self.give_back_estimates(due.ok().map(|due| due.known), now);
        }
        // If the reservation has expired, the charge stands.
        let due = due.ok()?;
        self.metered = due.metered;
        self.settle_charges(due.known, now)
    }

    fn describe_tunnel(&mut self, extensions: &mut Extensions) {
        if !self.websocket.0.is_empty() {
            extensions.insert(std::mem::take(&mut self.websocket));
        }
    }

    fn wants_body(&self) -> bool {
        self.metered.is_some()
    }

    fn see(&mut self, bytes: &[u8]) {
        if let Some(metered) = &mut self.metered {
            metered.feed(bytes);
        }
    }

    fn skip(&mut self, bytes: u64) {
        if let Some(metered) = &mut self.metered {
            metered.skip(bytes);
        }
    }

    fn end_body(&mut self, is_complete: bool) -> Option<BoxFuture<()>> {
        let end = if is_complete { BodyEnd::Complete } else { BodyEnd::Broken };
        let due = self.gatekeeper.finish_body(self.metered.take()?, end);
        self.settle_charges(due, self.gatekeeper.now())
    }

    fn body_pacer(&self) -> Option<Arc<dyn BodyPacer>> {
        self.by_bytes.clone().map(|pacer| pacer as Arc<dyn BodyPacer>)
    }

    fn request_pacer(&self) -> Option<Arc<dyn BodyPacer>> {
        match &self.by_request {
            Some(pacer) => Some(Arc::clone(pacer) as Arc<dyn BodyPacer>),
            None => self.body_pacer(),
        }
    }

    fn give_back(mut self: Box<Self>) -> Option<BoxFuture<()>> {
        self.began_at = None;
        let (gatekeeper, id) = (Arc::clone(&self.gatekeeper), self.id);
        let (now, by_request) = (gatekeeper.now(), self.by_request.take());
        poll_once(async move {
            if let Some(RequestBytePacer { bytes, .. }) = by_request.as_deref() {
                gatekeeper.cancel_request_bytes(bytes, gatekeeper.clock_instant(now)).await;
            }
            // If the reservation has expired, the charge stands.
            let _ = gatekeeper.cancel_by(id, now).await;
        })
    }
}

/// The outcome of work by the status of its response. A failure that is not due to load has no meaningful time, and
/// neither has a tunnel.
fn work_outcome(status: StatusCode, is_tunnel: bool, waited: Wait) -> WorkOutcome {
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => WorkOutcome::Overloaded,
        StatusCode::TOO_MANY_REQUESTS => WorkOutcome::Unmeasured,
        status if status.is_server_error() || is_tunnel => WorkOutcome::Unmeasured,
        _ => WorkOutcome::Answered(waited),
    }
}

/// Starts a future, and returns it unless it is ready at once.
fn poll_once(future: impl Future<Output = ()> + Send + 'static) -> Option<BoxFuture<()>> {
    let mut future: BoxFuture<()> = Box::pin(future);
    let done = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    (!done).then_some(future)
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> Drop for RulesAdmission<S, C> {
    fn drop(&mut self) {
        self.measure(WorkOutcome::Abandoned);
        self.gatekeeper.end(self.id);
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> fmt::Debug for RulesAdmission<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesAdmission").finish_non_exhaustive()
    }
}

/// Charges the bodies of a request under rules that count bytes.
struct RulesPacer<S: InfallibleStore + 'static, C: Clock + 'static> {
    gatekeeper: Arc<Gatekeeper<S, C>>,
    charges: BodyCharges,
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> RulesPacer<S, C> {
    fn new(gatekeeper: &Arc<Gatekeeper<S, C>>, id: ReservationId) -> Option<Arc<Self>> {
        let charges = gatekeeper.body_charges(id)?;
        Some(Arc::new(RulesPacer { gatekeeper: Arc::clone(gatekeeper), charges }))
    }

    async fn turn(&self, bytes: u64, can_wait: bool) -> PieceTurn {
        let now = self.gatekeeper.clock_instant(self.gatekeeper.now());
        let decision = self.gatekeeper.charge_piece(&self.charges, bytes, can_wait, now).await;
        match decision.allowed() {
            true => PieceTurn::PassAfter(decision.delay()),
            false => PieceTurn::AskAgainAfter(decision.retry_after()),
        }
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> BodyPacer for RulesPacer<S, C> {
    fn piece_bytes_max(&self) -> u64 {
        self.charges.piece_bytes_max()
    }

    fn charge(self: Arc<Self>, bytes: u64, can_wait: bool) -> PieceAnswer {
        if self.gatekeeper.answers_at_once() {
            return PieceAnswer::Now(expect_ready(self.turn(bytes, can_wait)));
        }
        PieceAnswer::Later(Box::pin(async move { self.turn(bytes, can_wait).await }))
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> fmt::Debug for RulesPacer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesPacer").field("charges", &self.charges).finish_non_exhaustive()
    }
}

/// The length of a request's body, if the client states it.
fn content_length(head: &request::Parts) -> Option<u64> {
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The header fields of a request, in the form that rules read.
struct LayerHeaders<'a> {
    headers: &'a HeaderMap,
    uri: &'a Uri,
}

impl<'a> LayerHeaders<'a> {
    fn of(head: &'a request::Parts) -> LayerHeaders<'a> {
        LayerHeaders { headers: &head.headers, uri: &head.uri }
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let mut values = self.headers.get_all(name).iter().map(HeaderValue::as_bytes).peekable();
        let elsewhere = match values.peek() {
            None => host_of_target(name, self.uri).map(str::as_bytes),
            Some(_) => None,
        };
        values.chain(elsewhere)
    }

    /// Finds a header field that is used in keys and appears twice with different values, or one whose name a server
    /// could take for that of a field that rules look at. `trusted` says if the peer is a trusted proxy.
    fn ambiguous_key_header(&self, rules: &RuleSet, trusted: bool) -> Option<&HeaderName> {
        let is_mistakable = |name: &&HeaderName| rules.is_mistakable_header(name.as_str());
        if rules.reads_headers()
            && let Some(name) = self.headers.keys().find(is_mistakable)
        {
            return Some(name);
        }
        let unclear = |name: &HeaderName| match name {
            // HTTP/2 may split it; its lines count joined.
            &COOKIE => false,
            &HOST => single_value(self.headers, self.uri, name).is_err() && !self.names_one_host(),
            name => single_value(self.headers, self.uri, name).is_err(),
        };
        // Nearly all requests have each field once, and no `host` field that differs from the target.
        if self.headers.len() == self.headers.keys_len() && !unclear(&HOST) {
            return None;
        }
        let makes_keys = |name: &HeaderName| rules.makes_keys_of(name.as_str(), trusted);
        self.headers.keys().find(|name| makes_keys(name) && unclear(name))
    }

    /// Returns true if the target and the fields `Host` name the same host, each in its spelling.
    fn names_one_host(&self) -> bool {
        let fields = self.headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
        let target = self.uri.authority().map(|target| target.as_str().as_bytes());
        let mut hosts = fields.chain(target).map(|host| {
            let host = escape_non_utf8(host);
            normalize_host(&host).map(Cow::into_owned)
        });
        let first = hosts.next();
        hosts.all(|host| Some(&host) == first.as_ref())
    }
}

impl Headers for LayerHeaders<'_> {
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>)) {
        self.values(name).for_each(|value| each(escape_non_utf8(value)));
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut lines = self.values(name).map(String::from_utf8_lossy);
        let first = lines.next()?;
        Some(lines.fold(first, |list, line| Cow::Owned(format!("{list},{line}"))))
    }
}

/// The header fields of a response, in the form that rules read.
struct ResponseFields<'a>(&'a HeaderMap);

impl Headers for ResponseFields<'_> {
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>)) {
        let lines = self.0.get_all(name).iter();
        lines.for_each(|value| each(escape_non_utf8(value.as_bytes())));
    }

    /// Only the first line: two costs are no list.
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0.get(name).map(|value| escape_non_utf8(value.as_bytes()))
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.0.get_all(name).iter().map(|value| escape_non_utf8(value.as_bytes()));
        let first = values.next()?;
        Some(values.fold(first, |list, next| Cow::Owned(format!("{list},{next}"))))
    }
}
