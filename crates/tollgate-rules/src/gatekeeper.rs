//! `Gatekeeper`: decides requests by rules, with one store and one clock. Every listener calls it
//! with facts and gets an answer.
//!
//! Methods that end in `_by` are async, work with every store, and take the version of the rules to
//! use. The same methods without `_by` are for a store in this process and return at once.

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tollgate::decision::MAX_LIMITS;
use tollgate::{
    Act, Check, Clock, Consistency, DecidedBy, Decision, KeyBuf, MemoryStore, Micros, Now, Outcome,
    Refusal, Store, SystemClock, Terms, Wait,
};

use crate::answer::{Answer, Binding, PlanDecision};
use crate::changes::Changes;
use crate::descriptors::StatedLimitTable;
use crate::facts::Facts;
use crate::observer::{DecidedRequest, RulesObserver};
use crate::overflow::OverflowTable;
use crate::plan::{Enforcement, RequestPlan};
use crate::reservation::Reservations;
use crate::rule::{Ban, Rule};
use crate::rule_set::{Override, RuleSet};
use tollgate::store::join::{join_all, join_both};

/// Decides by rules. Share it: all methods take `&self`.
pub struct Gatekeeper<S = MemoryStore, C = SystemClock> {
    rules: ArcSwap<RuleSet>,
    /// Overrides set at run time, which outlive a reload. Locked while rules are changed. Bound:
    /// [`RUN_TIME_OVERRIDES_MAX`].
    overrides: Mutex<Vec<Arc<Override>>>,
    store: S,
    clock: C,
    pub(crate) reservations: Reservations,
    /// Limits stated in requests of descriptors.
    pub(crate) stated: StatedLimitTable,
    overflow: OverflowTable,
    counts: GatekeeperCounters,
    observer: Option<Arc<dyn RulesObserver>>,
}

/// The most overrides that can be set at run time: permanent ones belong in a file.
pub const RUN_TIME_OVERRIDES_MAX: usize = 10_000;

/// One version of the rules. Hold it briefly: it is not freed as long as it is held.
pub type RulesVersion = arc_swap::Guard<Arc<RuleSet>>;

/// The input of a decision: the facts of a request, and how to decide it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The facts.
    pub facts: Facts<'a>,
    /// The cost, instead of the one in the rules; 0 only peeks.
    pub cost: Option<u64>,
    /// True if the caller cannot delay a request: where a queue would delay it, it is refused.
    pub cannot_wait: bool,
    /// True if missing facts are an error: where rules were skipped and no other could refuse, the
    /// answer is a refusal with [`missing_facts`](Answer::missing_facts), and observers see no
    /// decision.
    pub needs_facts: bool,
}

/// Counters of events beside decisions.
#[derive(Debug, Default)]
struct GatekeeperCounters {
    without_fact: AtomicU64,
    unanswered: AtomicU64,
    left_out: AtomicU64,
    bans: AtomicU64,
    bans_without_room: AtomicU64,
}

/// Number of events beside decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatekeeperStats {
    /// Rules that did not apply because a fact of their key was missing.
    pub without_fact: u64,
    /// Requests that got an error, because a fact of the key was missing for every rule that could
    /// have refused.
    pub unanswered: u64,
    /// Limits in shadow or soft ones that were left out because more than [`MAX_LIMITS`] applied.
    pub left_out: u64,
    /// Keys blocked after refusals.
    pub bans: u64,
    /// Keys that were not blocked because the table of blocks was full.
    pub bans_without_room: u64,
    /// Open reservations.
    pub reservations: usize,
}

impl<S, C> fmt::Debug for Gatekeeper<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gatekeeper").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// A store that never fails.
pub trait InfallibleStore: Store<Error = Infallible> {}
impl<S: Store<Error = Infallible>> InfallibleStore for S {}

/// A store in this process: all its futures are ready on their first poll.
pub trait LocalStore: InfallibleStore {}
impl LocalStore for MemoryStore {}
impl<S: LocalStore> LocalStore for Arc<S> {}

/// Returns the result of a future that never waits, such as those of a gatekeeper whose store is in
/// this process.
///
/// # Panics
///
/// If the future is not ready.
#[inline]
pub fn expect_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in this process answers at once"),
    }
}

impl Gatekeeper {
    /// A gatekeeper with a table in memory for `max_keys` keys, on the system's clock.
    pub fn in_memory(rules: RuleSet, max_keys: usize) -> Gatekeeper {
        Gatekeeper::new(rules, MemoryStore::new(max_keys), SystemClock)
    }
}

impl<S: LocalStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a request under all rules that apply to it: all limits are charged, or none is.
    pub fn decide(&self, ask: &Ask<'_>) -> Answer {
        expect_ready(self.decide_by(self.rules(), ask, self.clock_instant(self.now())))
    }

    /// The same at an instant of your choosing.
    pub fn decide_at(&self, ask: &Ask<'_>, now: Micros) -> Answer {
        expect_ready(self.decide_by(self.rules(), ask, now))
    }

    /// Returns the answer that [`Gatekeeper::decide`] would give; charges nothing.
    pub fn peek(&self, ask: &Ask<'_>) -> Answer {
        expect_ready(self.peek_by(self.rules(), ask, self.clock_instant(self.now())))
    }

    /// Refunds the cost of a request like this one, as if charged now; the answer has the state
    /// after the refund.
    pub fn refund(&self, ask: &Ask<'_>) -> Answer {
        expect_ready(self.refund_by(self.rules(), ask, self.clock_instant(self.now())))
    }

    /// The same at an instant of your choosing.
    pub fn refund_at(&self, ask: &Ask<'_>, now: Micros) -> Answer {
        expect_ready(self.refund_by(self.rules(), ask, now))
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// A gatekeeper that decides by these rules, with state in `store` and the time of `clock`.
    pub fn new(rules: RuleSet, store: S, clock: C) -> Gatekeeper<S, C> {
        Gatekeeper {
            rules: ArcSwap::from_pointee(rules),
            overrides: Mutex::default(),
            store,
            clock,
            reservations: Reservations::default(),
            stated: StatedLimitTable::default(),
            overflow: OverflowTable::default(),
            counts: GatekeeperCounters::default(),
            observer: None,
        }
    }

    /// Sets the observer of every decided request.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn RulesObserver>) -> Gatekeeper<S, C> {
        Gatekeeper { observer: Some(observer), ..self }
    }

    /// The rules in force.
    pub fn rules(&self) -> RulesVersion {
        self.rules.load()
    }

    /// Replaces all rules. Nothing waits: requests in progress end under the version they began
    /// with. Counts stay for limits that stay; so do overrides set at run time, and the tallies of
    /// rules that keep their name.
    pub fn replace(&self, mut rules: RuleSet) -> Changes {
        let mut overrides = self.lock_overrides();
        overrides.retain(|one| one.is_active_at(self.now()));
        let before = self.rules.load();
        let changes = Changes::between(&before, &rules);
        rules.inherit(&before);
        if !overrides.is_empty() {
            rules = rules.with_overrides(&overrides);
        }
        self.rules.store(Arc::new(rules));
        self.store.limits_changed();
        changes
    }

    /// Changes the overrides set at run time, and drops those that have ended. `Err` changes
    /// nothing.
    pub(crate) fn change_overrides<T, E>(
        &self,
        now: Micros,
        change: impl FnOnce(&mut Vec<Arc<Override>>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut overrides = self.lock_overrides();
        let mut changed = overrides.clone();
        changed.retain(|one| one.is_active_at(now));
        let done = change(&mut changed)?;
        self.rules.store(Arc::new(self.rules.load().with_overrides(&changed)));
        *overrides = changed;
        self.store.limits_changed();
        Ok(done)
    }

    /// The overrides set at run time that have not ended, including those of removed rules, which
    /// apply again if their rule comes back.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        let (overrides, now) = (self.lock_overrides(), self.now());
        overrides.iter().filter(|one| one.is_active_at(now)).cloned().collect()
    }

    /// Locks the overrides: only one thread at a time changes rules or overrides. A panic leaves no
    /// partial change behind, because the list is replaced as a whole.
    fn lock_overrides(&self) -> MutexGuard<'_, Vec<Arc<Override>>> {
        self.overrides.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store. Private to the crate: listeners ask the gatekeeper, and operators keep an `Arc` of
    /// the store that they handed in.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Number of events beside decisions so far.
    pub fn stats(&self) -> GatekeeperStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GatekeeperStats {
            without_fact: count(&self.counts.without_fact),
            unanswered: count(&self.counts.unanswered),
            left_out: count(&self.counts.left_out),
            bans: count(&self.counts.bans),
            bans_without_room: count(&self.counts.bans_without_room),
            reservations: self.reservations.len(),
        }
    }

    /// Decides a request without waiting. `Err` gives the rules back if the store has to be waited for:
    /// nothing is charged, and [`decide_by`](Gatekeeper::decide_by) decides.
    #[inline]
    pub fn decide_at_once<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<Answer, RulesVersion> {
        self.act_at_once(rules, ask, Act::Take, now.into())
    }

    /// Peeks without waiting. `Err` gives the rules back if the store has to be waited for.
    pub fn peek_at_once<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<Answer, RulesVersion> {
        self.act_at_once(rules, ask, Act::Peek, now.into())
    }

    /// Decides a request under the version of the rules that identified its caller, so that one
    /// request sees one version.
    pub async fn decide_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Take, now.into()).await
    }

    /// Returns the answer that [`decide_by`](Gatekeeper::decide_by) would give; charges nothing.
    pub async fn peek_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Peek, now.into()).await
    }

    /// Refunds the cost of a request like this one, as if charged now; the answer has the state
    /// after the refund.
    pub async fn refund_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        // Refunding and peeking is one operation, with one deadline.
        let asked_at = self.begin_operation(now.into());
        let mut plan = RequestPlan::new(&rules, ask, asked_at.instant());
        let costs = plan.take_costs();
        let mut checks = ArrayVec::<_, MAX_LIMITS>::new();
        if !plan.is_unanswered() {
            let refund = |(one, cost)| plan.check(one, Act::Take).cost(cost);
            checks.extend(plan.limits.iter().zip(costs).map(refund));
        }
        let back = checks.iter().map(|check| self.store.refund(check, None, asked_at));
        // The store gets the calls in this order, and both are awaited together.
        let (_, answer) = join_both(join_all(back), self.ask(&plan, Act::Peek, asked_at)).await;
        let skipped = plan.skipped;
        drop(checks);
        drop(plan);
        Answer::new(rules, answer).with_skipped_rule(skipped)
    }

    fn act_at_once(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        act: Act,
        now: Now<'_>,
    ) -> Result<Answer, RulesVersion> {
        if !self.answers_at_once() {
            return Err(rules);
        }
        let plan = RequestPlan::new(&rules, ask, now.instant());
        let decided = self.ask_at_once(&plan, act, now);
        let skipped = plan.skipped;
        drop(plan);
        Ok(Answer::new(rules, decided).with_skipped_rule(skipped))
    }

    async fn act_by(&self, rules: RulesVersion, ask: &Ask<'_>, act: Act, now: Now<'_>) -> Answer {
        let plan = RequestPlan::new(&rules, ask, now.instant());
        let answer = self.ask(&plan, act, now).await;
        let skipped = plan.skipped;
        drop(plan);
        Answer::new(rules, answer).with_skipped_rule(skipped)
    }

    /// Asks the store about a plan, and notifies the observer of a take.
    pub(crate) async fn ask(&self, plan: &RequestPlan<'_>, act: Act, now: Now<'_>) -> PlanDecision {
        if self.answers_at_once() {
            return self.ask_at_once(plan, act, now);
        }
        self.count_skipped(plan, now.instant());
        if plan.is_unanswered() {
            return self.refuse_unanswered(now.instant());
        }
        let decided = self.ask_store(plan, act, now).await;
        self.notify_of_take(plan, act, &decided);
        decided
    }

    /// The same for a store that answers at once.
    #[inline]
    fn ask_at_once(&self, plan: &RequestPlan<'_>, act: Act, now: Now<'_>) -> PlanDecision {
        self.count_skipped(plan, now.instant());
        if plan.is_unanswered() {
            return self.refuse_unanswered(now.instant());
        }
        let decided = self.ask_store_at_once(plan, act, now);
        self.notify_of_take(plan, act, &decided);
        decided
    }

    fn notify_of_take(&self, plan: &RequestPlan<'_>, act: Act, decided: &PlanDecision) {
        if act == Act::Take && !plan.peek_only {
            self.notify(plan, decided);
        }
    }

    /// Counts a decision and notifies the observer.
    pub(crate) fn notify(&self, plan: &RequestPlan<'_>, decided: &PlanDecision) {
        let decided = DecidedRequest::new(plan, decided);
        decided.tally();
        if let Some(observer) = &self.observer {
            observer.decided(&decided);
        }
    }

    /// Asks a store that answers at once. The usual request needs no future; one under a block, or refused
    /// under a rule that bans, takes the same way as with other stores.
    pub(crate) fn ask_store_at_once(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> PlanDecision {
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        if plan.too_many_limits || self.store.any_block(now.instant()) {
            return expect_ready(self.ask_store(plan, act, now));
        }
        let outcomes = &mut outcomes[..plan.limits.len()];
        let decision = self.store.decide_at_once(&plan.checks(act), now, outcomes);
        let mut decision = decision.expect("this store answers at once");
        if decision.refusal() == Some(Refusal::OverLimit) && plan.has_ban() {
            decision = expect_ready(self.apply_bans(plan, act, (decision, outcomes), now));
        }
        PlanDecision::new(plan, decision, outcomes)
    }

    /// Asks the store, with the blocks before it and the bans after it.
    pub(crate) async fn ask_store(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> PlanDecision {
        if plan.too_many_limits {
            // To leave some out would switch them off, for anybody who knows how to match enough rules.
            return PlanDecision::refused(Refusal::TooManyLimits, now.instant());
        }
        // Counting a refusal towards a ban shares the deadline of the decision.
        let bans = act == Act::Take && plan.has_ban();
        let now = if bans { self.begin_operation(now) } else { now };
        let store = &self.store;
        if store.any_block(now.instant())
            && let Some(refusal) = self.refuse_blocked(plan, now).await
        {
            return refusal;
        }
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        let outcomes = &mut outcomes[..plan.limits.len()];
        let Ok(decision) = store.decide_each(&plan.checks(act), now, outcomes).await;
        if let ([only], [outcome]) = (&plan.limits[..], &mut *outcomes)
            && only.enforcement == Enforcement::Enforced
        {
            // A shared store that refuses an empty key leaves the outcome at its default.
            *outcome = decision.outcome();
        }
        let decision = self.apply_bans(plan, act, (decision, outcomes), now).await;
        PlanDecision::new(plan, decision, outcomes)
    }

    /// Counts a refusal towards bans. If a block follows, the wait is at least as long as the
    /// block.
    #[inline]
    async fn apply_bans(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        (decision, outcomes): (Decision, &[Outcome]),
        now: Now<'_>,
    ) -> Decision {
        if decision.refusal() == Some(Refusal::OverLimit)
            && act == Act::Take
            && let Some(block) = self.ban(plan, (&decision, outcomes), now).await
        {
            let retry_after = decision.retry_after().max(block);
            let outcome = Outcome { retry_after, ..decision.outcome() };
            return decision.refused_for(Refusal::OverLimit, decision.capacity(), outcome);
        }
        decision
    }

    /// The refusal, if the caller is blocked under one of the rules.
    #[cold]
    async fn refuse_blocked(
        &self,
        plan: &RequestPlan<'_>,
        asked_at: Now<'_>,
    ) -> Option<PlanDecision> {
        let (store, now) = (&self.store, asked_at.instant());
        let mut waits = [None; MAX_LIMITS];
        for (planned, wait) in plan.limits.iter().zip(&mut waits) {
            if planned.enforcement == Enforcement::Enforced {
                let key = plan.rule(planned).scoped("block", plan.caller(planned));
                *wait = store.blocked((&key).into(), now);
            }
        }
        // Reversed, so that of equals the first wins.
        let binding = (0..plan.limits.len()).rev().max_by_key(|index| waits[*index])?;
        let wait = waits[binding]?;
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        let outcomes = &mut outcomes[..plan.limits.len()];
        let Ok(_) = store.decide_each(&plan.checks(Act::Peek), asked_at, outcomes).await;
        for (outcome, wait) in outcomes.iter_mut().zip(waits) {
            if let Some(wait) = wait {
                *outcome = Decision::refused(Refusal::Blocked, wait, now).outcome();
            }
        }
        let capacity = plan.limit(&plan.limits[binding]).capacity();
        let decision = Decision::refused(Refusal::Blocked, wait, now);
        let decision = decision.refused_for(Refusal::Blocked, capacity, decision.outcome());
        let (binding, entries) = (Some(Binding::Limit(binding)), Answer::entries(plan, outcomes));
        Some(PlanDecision { decision, binding, entries })
    }

    /// Counts a refusal towards the bans of the rules that refused. Returns the longest block.
    #[cold]
    async fn ban(
        &self,
        plan: &RequestPlan<'_>,
        (decision, outcomes): (&Decision, &[Outcome]),
        now: Now<'_>,
    ) -> Option<Wait> {
        let mut last = None;
        let mut longest = None;
        for (index, (planned, outcome)) in plan.limits.iter().zip(outcomes).enumerate() {
            let rule = plan.rule(planned);
            // A decision refused for lack of room violates no limit.
            let refused = planned.enforcement == Enforcement::Enforced && decision.violates(index);
            let counts = refused && counts_towards_bans(outcome.decided_by);
            let Some(ban) = rule.ban.as_ref().filter(|_| counts) else { continue };
            // Several limits of one rule that refuse a key count as one refusal.
            let counted = (planned.limit_ref.rule, planned.descriptor, planned.caller);
            if last.replace(counted) == Some(counted) {
                continue;
            }
            let check = plan.check(planned, Act::Take);
            let (caller, terms) = (plan.caller(planned), check.requested_terms());
            longest = longest.max(self.count_refusal(rule, ban, caller, terms, now).await);
        }
        longest
    }

    /// Counts one refusal. Returns the duration of the block if this was one too many.
    async fn count_refusal(
        &self,
        rule: &Rule,
        ban: &Ban,
        key: &KeyBuf,
        terms: Terms,
        now: Now<'_>,
    ) -> Option<Wait> {
        let counted_under = rule.scoped("refusals", key);
        let check = Check::new(&ban.refusals, &counted_under);
        let terms = Terms { consistency: Consistency::Strict, ..terms };
        let store = &self.store;
        let Ok(counted): Result<Decision, Infallible> =
            store.decide_each(&[check.terms(terms)], now, &mut [Outcome::default()]).await;
        if !counts_towards_bans(counted.decided_by()) || counted.remaining() > 0 {
            return None;
        }
        let (wait, now) = (Wait::at_least(ban.block), counted.at());
        let block = rule.scoped("block", key);
        let Ok(blocked) = store.block((&block).into(), now.after(wait), now).await;
        let counter = if blocked { &self.counts.bans } else { &self.counts.bans_without_room };
        counter.fetch_add(1, Ordering::Relaxed);
        blocked.then_some(wait)
    }

    /// Refuses a request that lacks facts, so that no rule could be asked.
    #[cold]
    fn refuse_unanswered(&self, now: Micros) -> PlanDecision {
        self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
        PlanDecision::refused(Refusal::EmptyKey, now)
    }

    /// Counts the rules without a fact and the limits that a plan leaves out, and notifies the
    /// observer of skipped rules.
    pub(crate) fn count_skipped(&self, plan: &RequestPlan<'_>, now: Micros) {
        if let (Some(skipped), Some(observer)) = (plan.skipped, &self.observer) {
            observer.missing_facts(&skipped.facts(plan.rules()), now);
        }
        for (counter, by) in [
            (&self.counts.without_fact, plan.rules_without_fact),
            (&self.counts.left_out, plan.limits_left_out),
        ] {
            if by > 0 {
                counter.fetch_add(by.into(), Ordering::Relaxed);
            }
        }
    }

    /// Returns true if every future of this gatekeeper is ready when it is first polled, because its
    /// store is in this process.
    #[inline]
    pub fn answers_at_once(&self) -> bool {
        self.store.answers_at_once()
    }

    /// Decides one check under a limit that the caller brings. No rule applies.
    #[inline]
    pub async fn decide_check<'n>(&self, check: &Check<'_>, now: impl Into<Now<'n>>) -> Decision {
        let outcomes = &mut [Outcome::default()];
        let Ok(decision) =
            self.store.decide_each(slice::from_ref(check), now.into(), outcomes).await;
        decision
    }

    /// Decides many checks under limits that the caller brings, as if in order at one instant. No rule
    /// applies. `decisions` is emptied and filled in the same order.
    #[inline]
    pub async fn decide_batch<'n>(
        &self,
        checks: &[Check<'_>],
        now: impl Into<Now<'n>>,
        decisions: &mut Vec<Decision>,
    ) {
        let Ok(()) = self.store.decide_batch(checks, now.into(), decisions).await;
    }

    /// Decides one check in a small table of this process, for a limit that the caller brings and
    /// that the store has no room for. No rule applies.
    pub fn decide_in_overflow<'n>(&self, check: &Check<'_>, now: impl Into<Now<'n>>) -> Decision {
        self.overflow.decide(check, now.into())
    }

    /// Reads the clock, for several operations at one instant.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Begins an operation of several calls to the store within one deadline. The time is read only
    /// if the store may have to be waited for.
    pub(crate) fn begin_operation<'n>(&self, now: Now<'n>) -> Now<'n> {
        if self.answers_at_once() { now } else { now.begin_operation() }
    }

    /// An instant that was read from the gatekeeper's clock, in contrast to one that the caller
    /// chooses.
    pub fn clock_instant(&self, now: Micros) -> Now<'_> {
        Now::read(now, &self.clock)
    }
}

/// Returns true if the key itself caused the refusal. An overflow state refuses for what other keys
/// did, and without its store an instance refuses by its share or everything.
fn counts_towards_bans(decided_by: DecidedBy) -> bool {
    use DecidedBy::{Lease, Memory, Redis, RefusalCache};
    matches!(decided_by, Memory | Redis | Lease | RefusalCache)
}
