//! Reservations: work whose cost is known only afterwards, and how much of it may go on at once.
//!
//! A reservation charges an estimate and returns a one-use id. A commit with the true cost gives
//! back or charges the difference; a cancellation gives back everything, because the work was not
//! done. After its deadline the charge stands, so that a client that never returns holds nothing
//! open.

mod adaptive_bounds;
mod body_charges;
mod plan_answer;
mod request_bytes;
mod settlement;
mod table;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::{
    Act, Check, Clock, KeyBuf, Limit, Micros, Now, Outcome, Receipt, Refusal, Terms, Wait,
};

use crate::answer::{Answer, Binding, PlanDecision};
use crate::cost_source::ActualCost;
use crate::facts::Facts;
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, LocalStore, RulesVersion, expect_ready};
use crate::matcher::asks_for_websocket;
use crate::plan::RequestPlan;
use crate::rule::{Cost, Rule};
use crate::waiting::{BottleneckId, Departure, WaitingTables};
use crate::websocket_limits::WebSocketLimits;
use body_charges::ByteTreatment;
use request_bytes::CountedEstimate;
use table::{
    OpenReservation, ReservationRefusal, ReservationRequest, ReservationSecrets, ReservationTable,
    SharedKeys,
};
use tollgate::store::join::join_all;

pub use body_charges::BodyCharges;
pub(crate) use plan_answer::PlanAnswer;
pub use request_bytes::RequestByteCharges;

pub use adaptive_bounds::{ADAPTIVE_KEYS_MAX, AdaptiveBoundReport, WorkOutcome};
pub use settlement::{
    MeteredCharges, ResponseCharges, ResponseFacts, SettlementCharges, SettlementOutcome,
    SettlementTally,
};
pub use table::{RESERVATIONS_MAX, RESERVATIONS_PER_CALLER_MAX};

/// The longest time that a reservation may stay open.
pub const EXPIRES_IN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The wait after a refusal for concurrency: nobody knows when work ends.
pub(crate) const BUSY_RETRY: Wait = Wait::from_micros(1_000_000);

/// The id of a reservation: unguessable, usable once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(u128);

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ReservationId {
    type Err = SettleError;

    fn from_str(text: &str) -> Result<ReservationId, SettleError> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| plain);
        number.map(ReservationId).ok_or(SettleError::Unknown)
    }
}

/// The answer to a request for a reservation.
#[derive(Debug)]
pub struct ReservationAnswer {
    /// The decision.
    pub answer: Answer,
    /// The id to settle it by; `None` when refused.
    pub id: Option<ReservationId>,
    /// True if the reservation is for a request that leaves before its work begins: the [`end`](Gatekeeper::end) of the reservation
    /// comes with the beginning of the work.
    pub ends_at_begin: bool,
    /// True if a number in the body of the response decides the cost, so that it must not be compressed.
    pub reads_response: bool,
    /// True if the time that the work takes decides how much of it may go on at once; see [`Gatekeeper::measure`].
    pub measures_latency: bool,
    /// The departure to wait for before the work begins, if a limit delays the request.
    pub departure: Option<Departure>,
    /// The limits of the WebSocket that the request wants to open, by rule; empty for other requests. Bound: as many
    /// as rules apply.
    pub websocket: Vec<Arc<WebSocketLimits>>,
}

/// The decision about a plan, and the id to settle it by.
pub(crate) type PlanAdmission = (PlanDecision, Option<ReservationId>);

/// The reason why nothing can be reserved, whatever the limits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// No more reservations can be open.
    TableFull,
    /// The request states a cost of 0: there is nothing to reserve.
    NoCost,
}

/// The reason why a reservation cannot be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleError {
    /// The id is unknown, or the reservation has been settled.
    Unknown,
    /// Its deadline has passed; the charge stands.
    Expired,
}

/// All open reservations of a process.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    table: Mutex<ReservationTable>,
    secrets: ReservationSecrets,
    /// Requests that wait for a place.
    waiting: Arc<WaitingTables>,
}

/// The charge of one limit.
#[derive(Debug)]
struct ReservedCharge {
    /// The limit at the time of the charge. Not its whole rule set, which may be replaced many
    /// times before a reservation ends.
    limit: Arc<Limit>,
    /// One copy for all limits of a reservation that count it: keys can be long.
    key: Arc<KeyBuf>,
    receipt: Receipt,
    /// True if the true cost replaces this charge.
    settled: bool,
    /// True if the charge is the estimate of a rule with `reserve`.
    is_estimate: bool,
    /// The place in the response that has the true cost.
    actual: Option<Arc<ActualCost>>,
    /// The treatment of the bytes of the bodies, if they are counted.
    by_bytes: Option<ByteTreatment>,
    /// The estimate, if the bytes of the request's body are part of it and have yet to pass.
    counted: Option<Arc<CountedEstimate>>,
    terms: Terms,
}

impl Reservations {
    pub(crate) fn new(waiting: &Arc<WaitingTables>) -> Reservations {
        Reservations { waiting: Arc::clone(waiting), ..Reservations::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.table().len()
    }

    /// The work of a rule and key that is in progress, and the most that may be; `None` if the rule
    /// has no `concurrency`.
    pub(crate) fn work_in_progress(&self, rule: &Rule, key: &KeyBuf) -> Option<(u32, u32)> {
        rule.concurrency.as_ref()?;
        self.table().work_in_progress(rule, self.secrets.in_flight_hash(rule, key))
    }

    /// The refusals that the rules of a plan would give for their `concurrency`.
    pub(crate) fn possible_refusals<'p>(
        &'p self,
        plan: &'p RequestPlan<'_>,
    ) -> impl Iterator<Item = ConcurrencyRefusal> + 'p {
        plan.enforced().filter_map(|(number, rule, key)| {
            let max = rule.concurrency.as_ref()?.max;
            let bottleneck = Some(BottleneckId(self.secrets.in_flight_hash(rule, key)));
            Some(ConcurrencyRefusal { bound: Some(Binding::Concurrency(number)), bottleneck, max })
        })
    }

    /// The refusal of the first rule of a plan whose `concurrency` is reached.
    pub(crate) fn reached_bound(&self, plan: &RequestPlan<'_>) -> Option<ConcurrencyRefusal> {
        plan.enforced().find_map(|(number, rule, key)| {
            let (in_progress, max) = self.work_in_progress(rule, key)?;
            let bottleneck = Some(BottleneckId(self.secrets.in_flight_hash(rule, key)));
            let bound = Some(Binding::Concurrency(number));
            (in_progress >= max).then_some(ConcurrencyRefusal { bound, bottleneck, max })
        })
    }

    /// Holds a place for the charges of a plan, or returns the reason why there is none.
    fn hold(
        &self,
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        deadline: Micros,
        now: Micros,
    ) -> Result<PendingReservation<'_>, ReservationRefusal> {
        let request = ReservationRequest::new(plan, &ask.facts, &self.secrets);
        let id = Some(self.table().hold(&request, deadline, now)?);
        Ok(PendingReservation { reservations: self, id })
    }

    /// Closes a reservation and returns its charges, if it is open and in time.
    fn close(&self, id: ReservationId, now: Micros) -> Result<Vec<ReservedCharge>, SettleError> {
        match self.secrets.deadline_without_charges(id) {
            Some(deadline) if deadline > now => Ok(Vec::new()),
            Some(_) => Err(SettleError::Expired),
            None => {
                let open = self.table().close(id, now)?;
                self.freed(&open);
                Ok(open.charges)
            }
        }
    }

    /// Ends a reservation, and lets those try who wait for its place.
    fn remove(&self, id: ReservationId) {
        let open = self.table().remove(id);
        if let Some(open) = open {
            self.freed(&open);
        }
    }

    /// Records the end of measured work, and lets those try who wait for its place.
    fn measure(&self, id: ReservationId, outcome: Option<WorkOutcome>, now: Micros) {
        let measured = self.table().measure(id, outcome, now);
        self.waiting.free(measured.into_iter().map(BottleneckId));
    }

    fn freed(&self, open: &OpenReservation) {
        self.waiting.free(open.bounds().map(BottleneckId));
    }

    /// A panic under the lock leaves at worst one incomplete reservation.
    fn table(&self) -> std::sync::MutexGuard<'_, ReservationTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: LocalStore, C: Clock> Gatekeeper<S, C> {
    /// Decides as [`decide`](Gatekeeper::decide), and keeps the charges open to be settled, for
    /// `expires_in` but at most [`EXPIRES_IN_MAX`].
    pub fn reserve(
        &self,
        ask: &Ask<'_>,
        expires_in: Duration,
    ) -> Result<ReservationAnswer, ReserveError> {
        let now = self.clock_instant(self.now());
        expect_ready(self.reserve_by(self.rules(), ask, expires_in, now))
    }

    /// The same at an instant of your choosing.
    pub fn reserve_at(
        &self,
        ask: &Ask<'_>,
        expires_in: Duration,
        now: Micros,
    ) -> Result<ReservationAnswer, ReserveError> {
        expect_ready(self.reserve_by(self.rules(), ask, expires_in, now))
    }

    /// Settles a reservation with the true cost: what was too much is given back, what was too
    /// little is charged, if need be into debt.
    pub fn commit(&self, id: ReservationId, cost: u64) -> Result<(), SettleError> {
        expect_ready(self.commit_by(id, cost, self.clock_instant(self.now())))
    }

    /// The same at an instant of your choosing.
    pub fn commit_at(&self, id: ReservationId, cost: u64, now: Micros) -> Result<(), SettleError> {
        expect_ready(self.commit_by(id, cost, now))
    }

    /// Gives back all that a reservation charged: the work did not happen.
    pub fn cancel(&self, id: ReservationId) -> Result<(), SettleError> {
        self.cancel_at(id, self.now())
    }

    /// The same at an instant of your choosing.
    pub fn cancel_at(&self, id: ReservationId, now: Micros) -> Result<(), SettleError> {
        expect_ready(self.cancel_by(id, now))
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides as [`decide_by`](Gatekeeper::decide_by), and keeps the charges open to be settled,
    /// for `expires_in` but at most [`EXPIRES_IN_MAX`].
    pub async fn reserve_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        expires_in: Duration,
        now: impl Into<Now<'n>>,
    ) -> Result<ReservationAnswer, ReserveError> {
        let now = now.into();
        self.call_store(self.reserve_and_wait(rules, ask, expires_in, now)).await
    }

    async fn reserve_and_wait(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        expires_in: Duration,
        asked_at: Now<'_>,
    ) -> Result<ReservationAnswer, ReserveError> {
        let now = asked_at.instant();
        if ask.cost == Some(0) {
            return Err(ReserveError::NoCost);
        }
        let plan = Box::new(RequestPlan::new(&rules, ask, now));
        let deadline = now.after(Wait::at_least(expires_in.min(EXPIRES_IN_MAX)));
        let watch = self.watch_decision(&plan);
        let (decided, id) = if plan.limits.is_empty() && plan.unlimited.is_empty() {
            // Nothing is charged, so nothing is kept: the id itself contains the deadline.
            let decided = self.ask(&plan, Act::Take, asked_at).await;
            let name = || self.reservations.secrets.id_without_charges(deadline);
            let id = decided.decision.allowed().then(name);
            (decided, id)
        } else {
            let held = match self.reservations.hold(&plan, ask, deadline, now) {
                Ok(held) => Ok(held),
                Err(ReservationRefusal::Busy(busy)) => Err(busy),
                Err(ReservationRefusal::Full) => {
                    watch.end();
                    return Err(ReserveError::TableFull);
                }
            };
            self.ask_pending(&plan, held.map(Some), ask, asked_at).await
        };
        watch.end();
        let answer = PlanAnswer::new(&plan, ask, (decided, id), None);
        drop(plan);
        Ok(answer.by(rules))
    }

    /// Settles a reservation with the true cost: what was too much is given back, what was too
    /// little is charged, if need be into debt.
    pub async fn commit_by<'n>(
        &self,
        id: ReservationId,
        cost: u64,
        now: impl Into<Now<'n>>,
    ) -> Result<(), SettleError> {
        let now = self.begin_operation(now.into());
        self.reservations.measure(id, None, now.instant());
        let charges = self.reservations.close(id, now.instant())?;
        let settled = charges.into_iter().filter(|charge| charge.settled);
        join_all(settled.map(|charge| self.settle_charge(charge, cost, now))).await;
        Ok(())
    }

    /// Refunds or charges the difference to the true cost.
    async fn settle_charge(&self, charge: ReservedCharge, cost: u64, now: Now<'_>) {
        let store = self.store();
        let check = Check::new(&charge.limit, &*charge.key).terms(charge.terms);
        let estimate = charge.receipt.granted();
        if cost < estimate {
            let back = check.cost(estimate - cost);
            let Ok(()) = store.refund(&back, Some(charge.receipt), now).await;
            self.waiting.free_limit(&charge.limit, &charge.key);
        } else if cost > estimate {
            let force = [check.cost(cost - estimate).act(Act::Force)];
            let Ok(_) = store.decide_each(&force, now, &mut [Outcome::default()]).await;
        }
    }

    /// Decides as [`decide_by`](Gatekeeper::decide_by), for callers that see the work end, and
    /// keeps open all that is known only then: under a rule with `concurrency` the work counts
    /// until [`Gatekeeper::end`], under an adaptive one until [`Gatekeeper::measure`], and an estimate
    /// waits for the response, for [`Gatekeeper::take_due`].
    /// Without such a rule there is no `id` and nothing left to do, unless the caller `settles`
    /// everything itself; if no limit applies, there is never an `id`. If the table is full, the
    /// request is refused as [`Refusal::Busy`].
    pub async fn admit_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        settles: bool,
        now: impl Into<Now<'n>>,
    ) -> ReservationAnswer {
        self.call_store(self.admit_and_wait(rules, ask, settles, now.into())).await
    }

    async fn admit_and_wait(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        settles: bool,
        asked_at: Now<'_>,
    ) -> ReservationAnswer {
        let plan = Box::new(RequestPlan::new(&rules, ask, asked_at.instant()));
        let watch = self.watch_decision(&plan);
        let admission = self.admit_plan(&plan, ask, settles, asked_at).await;
        watch.end();
        let answer = PlanAnswer::new(&plan, ask, admission, None);
        drop(plan);
        answer.by(rules)
    }

    /// Admits or refuses a plan.
    pub(crate) async fn admit_plan(
        &self,
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        settles: bool,
        now: Now<'_>,
    ) -> PlanAdmission {
        let held = self.hold_place(plan, ask, settles, now.instant());
        self.ask_pending(plan, held, ask, now).await
    }

    /// Holds a place in the table, if something of the request is known only later.
    pub(crate) fn hold_place(
        &self,
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        settles: bool,
        now: Micros,
    ) -> Result<Option<PendingReservation<'_>>, ConcurrencyRefusal> {
        if !Self::keeps_open(plan, ask, settles) {
            return Ok(None);
        }
        let deadline = now.after(Wait::at_least(EXPIRES_IN_MAX));
        match self.reservations.hold(plan, ask, deadline, now) {
            Ok(held) => Ok(Some(held)),
            Err(ReservationRefusal::Busy(busy)) => Err(busy),
            Err(ReservationRefusal::Full) => Err(ConcurrencyRefusal::TABLE_FULL),
        }
    }

    /// Returns true if something of the request is known only later, so that units that it takes may come back.
    pub(crate) fn keeps_open(plan: &RequestPlan<'_>, ask: &Ask<'_>, settles: bool) -> bool {
        let ends = |rule: &Rule| {
            rule.concurrency.is_some()
                // An estimate is given back if the request is not sent on.
                || rule.reserve().is_some()
                || rule.cost == Cost::Bytes
                || websocket_limits(rule, &ask.facts).is_some()
        };
        // A request that is delayed may leave, and is refunded then.
        let settles = settles || plan.may_delay();
        // A request that no limit charges has nothing to settle, so a full table must not refuse
        // it.
        plan.limits.iter().any(|planned| settles || ends(plan.rule(planned)))
            || plan.enforced().any(|(_, rule, _)| ends(rule))
    }

    /// Holds a place for a request that has waited and needs none otherwise: it may leave before its work begins. If there is no
    /// place, its charge stands then.
    pub(crate) fn hold_until_begin(
        &self,
        plan: &RequestPlan<'_>,
        ask: &Ask<'_>,
        now: Micros,
    ) -> Option<PendingReservation<'_>> {
        if plan.limits.is_empty() {
            return None;
        }
        let deadline = now.after(Wait::at_least(EXPIRES_IN_MAX));
        self.reservations.hold(plan, ask, deadline, now).ok()
    }

    /// Decides a plan whose place in the table is held, if it needs one. Without its place it charges
    /// nothing and refuses.
    async fn ask_pending(
        &self,
        plan: &RequestPlan<'_>,
        held: Result<Option<PendingReservation<'_>>, ConcurrencyRefusal>,
        ask: &Ask<'_>,
        now: Now<'_>,
    ) -> PlanAdmission {
        match held {
            Err(busy) => {
                let mut decided = self.ask(plan, Act::Peek, now).await;
                if decided.decision.allowed() {
                    busy.apply_to(&mut decided);
                }
                self.notify(plan, &decided);
                (decided, None)
            }
            Ok(held) => self.take_held(plan, held, ask, now).await,
        }
    }

    /// Takes the units of a plan, and keeps the charges in its place.
    pub(crate) async fn take_held(
        &self,
        plan: &RequestPlan<'_>,
        held: Option<PendingReservation<'_>>,
        ask: &Ask<'_>,
        now: Now<'_>,
    ) -> PlanAdmission {
        let decided = self.ask(plan, Act::Take, now).await;
        let id = held.filter(|_| decided.decision.allowed()).map(|held| {
            let outcomes = decided.entries.outcomes().iter();
            held.store_charges(charges(plan, ask.cost.is_some(), outcomes))
        });
        (decided, id)
    }

    /// Records the outcome of work that [`measures_latency`](ReservationAnswer::measures_latency). From then on adaptive
    /// bounds count it no more, so a second outcome is ignored; fixed bounds count it until its
    /// [`end`](Gatekeeper::end). A time begins when the work does, after all waiting and delays.
    pub fn measure(&self, id: ReservationId, outcome: WorkOutcome, now: Micros) {
        self.reservations.measure(id, Some(outcome), now);
    }

    /// The bounds of rules with `concurrency: adaptive` whose keys are in use, by rule. Bound: [`ADAPTIVE_KEYS_MAX`].
    pub fn adaptive_bounds(&self) -> Vec<AdaptiveBoundReport> {
        self.reservations.table().adaptive_bounds(self.now())
    }

    /// Ends the work; a charge that was not settled stands.
    pub fn end(&self, id: ReservationId) {
        self.reservations.remove(id);
    }

    /// Gives back all that a reservation charged: the work did not happen.
    pub async fn cancel_by(&self, id: ReservationId, now: Micros) -> Result<(), SettleError> {
        let charges = self.reservations.close(id, now)?;
        let now = self.begin_operation(Now::at(now));
        join_all(charges.into_iter().map(|charge| self.settle_charge(charge, 0, now))).await;
        Ok(())
    }
}

/// A place in the table for a reservation whose store has yet to answer. Dropping it frees the
/// place, also if the caller stops waiting for the answer.
pub(crate) struct PendingReservation<'a> {
    reservations: &'a Reservations,
    id: Option<ReservationId>,
}

impl PendingReservation<'_> {
    fn store_charges(mut self, charges: Vec<ReservedCharge>) -> ReservationId {
        let id = self.id.take().expect("kept once");
        self.reservations.table().store_charges(id, charges);
        id
    }
}

impl Drop for PendingReservation<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.reservations.remove(id);
        }
    }
}

/// The bound on work in progress that is reached.
#[derive(Clone, Copy)]
pub(crate) struct ConcurrencyRefusal {
    /// `None`: too many reservations are open, of this caller or in the table.
    bound: Option<Binding>,
    /// The place to wait until work of the rule and key ends.
    pub(crate) bottleneck: Option<BottleneckId>,
    max: u32,
}

impl ConcurrencyRefusal {
    const TABLE_FULL: ConcurrencyRefusal =
        ConcurrencyRefusal { bound: None, bottleneck: None, max: 0 };

    /// Turns the admission by the limits into a refusal.
    pub(crate) fn apply_to(&self, decided: &mut PlanDecision) {
        let outcome = Outcome {
            remaining: 0,
            retry_after: BUSY_RETRY,
            reset_after: BUSY_RETRY,
            delay: Wait::ZERO,
            ..decided.decision.outcome()
        };
        decided.binding = self.bound;
        decided.decision = decided.decision.refused_for(Refusal::Busy, self.max.into(), outcome);
    }
}

/// The limits of a rule on the WebSocket that a request wants to open.
fn websocket_limits<'r>(rule: &'r Rule, facts: &Facts<'_>) -> Option<&'r Arc<WebSocketLimits>> {
    rule.websocket.as_ref().filter(|_| asks_for_websocket(facts))
}

/// The limits of all enforced rules on the WebSocket that a request opens; empty without a reservation, which holds its
/// place among the connections.
pub(crate) fn websocket_limits_of(
    plan: &RequestPlan<'_>,
    facts: &Facts<'_>,
    id: Option<ReservationId>,
) -> Vec<Arc<WebSocketLimits>> {
    if id.is_none() {
        return Vec::new();
    }
    plan.enforced().filter_map(|(_, rule, _)| websocket_limits(rule, facts).cloned()).collect()
}

/// The charges of a request.
fn charges<'o>(
    plan: &RequestPlan<'_>,
    explicit_cost: bool,
    outcomes: impl Iterator<Item = &'o Outcome>,
) -> Vec<ReservedCharge> {
    let (settled, key_of) = (plan.settled(explicit_cost), SharedKeys::new(plan).copied());
    // A refusal by a shadow limit was not charged, so it is not settled.
    let charged = plan.limits.iter().zip(outcomes).filter(|(_, outcome)| outcome.allowed);
    charged
        .map(|(planned, outcome)| ReservedCharge {
            limit: Arc::clone(plan.shared_limit(planned)),
            key: key_of(plan.key_for(planned)),
            receipt: outcome.receipt(),
            settled: settled(planned),
            is_estimate: !explicit_cost && plan.rule(planned).reserve().is_some(),
            actual: plan.rule(planned).actual_cost().cloned(),
            by_bytes: ByteTreatment::of(plan, planned).filter(|_| !explicit_cost),
            counted: CountedEstimate::of(plan, planned).filter(|_| !explicit_cost),
            terms: plan.rule(planned).terms,
        })
        .collect()
}
