//! `Gatekeeper`: rules and limiter together. Facts in, answer out: the heart of every protocol.
//!
//! What can be asked is written once, for every store: methods that end in `_by` wait for it, and
//! name the version of the rules they go by. Those without are of a gatekeeper whose store is in this
//! process, and answer at once.

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

use crate::answer::{Answer, AnswerEntries, Binding, Told};
use crate::changes::Changes;
use crate::descriptors::StatedLimitTable;
use crate::facts::Facts;
use crate::join::{join_all, join_both};
use crate::observer::{DecidedRequest, RulesObserver};
use crate::overflow::OverflowTable;
use crate::plan::{Enforcement, RequestPlan};
use crate::reservation::Reservations;
use crate::rule::{Ban, Rule};
use crate::rule_set::{Override, RuleSet};

/// Decides by rules. Share it: all methods take `&self`.
pub struct Gatekeeper<S = MemoryStore, C = SystemClock> {
    rules: ArcSwap<RuleSet>,
    /// Overrides that were set at run time, whatever the file says: they outlive a reload. Whoever
    /// changes the rules holds this. Bound: [`RUN_TIME_OVERRIDES_MAX`].
    overrides: Mutex<Vec<Arc<Override>>>,
    store: S,
    clock: C,
    pub(crate) reservations: Reservations,
    /// Limits that askers of descriptors state.
    pub(crate) stated: StatedLimitTable,
    overflow: OverflowTable,
    counts: GatekeeperCounters,
    observer: Option<Arc<dyn RulesObserver>>,
}

/// The most overrides that can be set at run time: those that stay belong into a file.
pub const RUN_TIME_OVERRIDES_MAX: usize = 10_000;

/// One version of the rules. Hold it briefly: as long as somebody does, it is not freed.
pub type RulesVersion = arc_swap::Guard<Arc<RuleSet>>;

/// The question: what is known about a request, and what its sender says about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// What is known.
    pub facts: Facts<'a>,
    /// What it costs, instead of what the rules say; 0 only asks.
    pub cost: Option<u64>,
    /// The asker cannot hold a request back: where a queue would delay it, refuse.
    pub cannot_wait: bool,
    /// The asker would rather hear of missing facts than be let pass for want of them: where rules
    /// were skipped and no other could refuse, the answer is a refusal with
    /// [`missing_facts`](Answer::missing_facts), and nobody is told of a decision.
    pub needs_facts: bool,
}

/// What happened beside decisions.
#[derive(Debug, Default)]
struct GatekeeperCounters {
    without_fact: AtomicU64,
    unanswered: AtomicU64,
    left_out: AtomicU64,
    bans: AtomicU64,
    bans_without_room: AtomicU64,
}

/// What happened beside decisions, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatekeeperStats {
    /// Rules that did not apply because a fact of their key was missing.
    pub without_fact: u64,
    /// Questions that got an error, because a fact of the key was missing for every rule that could
    /// have refused.
    pub unanswered: u64,
    /// Limits in shadow or soft ones that were left out because more than [`MAX_LIMITS`] applied.
    pub left_out: u64,
    /// Keys that refusals got blocked.
    pub bans: u64,
    /// Keys that should have been and were not: the table of blocks is full.
    pub bans_without_room: u64,
    /// Reservations that are open.
    pub reservations: usize,
}

impl<S, C> fmt::Debug for Gatekeeper<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gatekeeper").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// A store that answers whatever happens.
pub trait InfallibleStore: Store<Error = Infallible> {}
impl<S: Store<Error = Infallible>> InfallibleStore for S {}

/// A store in this process: all its futures are ready on their first poll.
pub trait LocalStore: InfallibleStore {}
impl LocalStore for MemoryStore {}
impl<S: LocalStore> LocalStore for Arc<S> {}

/// What a future answers that waits for nothing, such as all of a gatekeeper whose store is in this
/// process.
///
/// # Panics
///
/// If it does wait.
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

    /// What [`Gatekeeper::decide`] would answer; charges nothing.
    pub fn peek(&self, ask: &Ask<'_>) -> Answer {
        expect_ready(self.peek_by(self.rules(), ask, self.clock_instant(self.now())))
    }

    /// Gives back what a request like this one costs, as if charged now; the answer tells what is
    /// there after that.
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

    /// Tells `observer` of every request that is decided.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn RulesObserver>) -> Gatekeeper<S, C> {
        Gatekeeper { observer: Some(observer), ..self }
    }

    /// The rules in force.
    pub fn rules(&self) -> RulesVersion {
        self.rules.load()
    }

    /// Replaces the rules whole. Nobody waits: requests under way end under the version they began
    /// with. What callers have used stays, as far as limits do; so do overrides that were set at run
    /// time, and the tallies of rules that keep their name.
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

    /// Changes the overrides that were set at run time; those that have ended go first. `Err` leaves
    /// all as it was.
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

    /// The overrides that were set at run time and have not ended; also those of rules that are gone,
    /// which apply again if their rule comes back.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        let (overrides, now) = (self.lock_overrides(), self.now());
        overrides.iter().filter(|one| one.is_active_at(now)).cloned().collect()
    }

    /// Whoever changes rules or overrides goes alone. What a panic left is whole: it is replaced, not
    /// changed.
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

    /// What happened beside decisions.
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

    /// Decides a request under the version of the rules that its facts were read by: one request sees
    /// one version, from who is calling to what is answered.
    pub async fn decide_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Take, now.into()).await
    }

    /// What [`decide_by`](Gatekeeper::decide_by) would answer; charges nothing.
    pub async fn peek_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        self.act_by(rules, ask, Act::Peek, now.into()).await
    }

    /// Gives back what a request like this one costs, as if charged now; the answer tells what is
    /// there after that.
    pub async fn refund_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> Answer {
        // To give back and to ask again is one operation, with one deadline.
        let asked_at = now.into().begin_operation();
        let now = asked_at.instant();
        let plan = RequestPlan::new(&rules, ask, now);
        let nothing = Ask { cost: Some(0), ..*ask };
        let looking = RequestPlan::new(&rules, &nothing, now);
        let store = &self.store;
        let checks = if plan.is_unanswered() { ArrayVec::new() } else { plan.checks(Act::Take) };
        let back = join_all(checks.iter().map(|check| store.refund(check, None, asked_at)));
        // A store is asked in this order, and waited for once.
        let (_, answer) = join_both(back, self.ask(&looking, Act::Peek, asked_at)).await;
        let skipped = plan.skipped;
        drop(checks);
        drop((looking, plan));
        Answer::new(rules, answer).with_skipped_rule(skipped)
    }

    async fn act_by(&self, rules: RulesVersion, ask: &Ask<'_>, act: Act, now: Now<'_>) -> Answer {
        let plan = RequestPlan::new(&rules, ask, now.instant());
        let answer = self.ask(&plan, act, now).await;
        let skipped = plan.skipped;
        drop(plan);
        Answer::new(rules, answer).with_skipped_rule(skipped)
    }

    /// Puts a plan to the store, and tells whoever wants to know.
    #[inline]
    pub(crate) async fn ask(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> (Told, AnswerEntries) {
        self.count_skipped(plan, now.instant());
        if plan.is_unanswered() {
            return self.refuse_unanswered(now.instant());
        }
        let (told, entries) = self.ask_store(plan, act, now).await;
        if act == Act::Take && !plan.peek_only {
            self.notify(plan, &told, &entries);
        }
        (told, entries)
    }

    /// Tells what was decided.
    pub(crate) fn notify(&self, plan: &RequestPlan<'_>, told: &Told, entries: &AnswerEntries) {
        let decided = DecidedRequest::new(plan, told, entries);
        decided.tally();
        if let Some(observer) = &self.observer {
            observer.decided(&decided);
        }
    }

    pub(crate) async fn ask_store(
        &self,
        plan: &RequestPlan<'_>,
        act: Act,
        now: Now<'_>,
    ) -> (Told, AnswerEntries) {
        if plan.too_many_limits {
            return self.refuse_too_many_limits(now.instant());
        }
        // A refusal that counts towards a ban is told within the deadline of the decision.
        let bans = act == Act::Take && plan.limits.iter().any(|one| plan.rule(one).ban.is_some());
        let now = if bans { now.begin_operation() } else { now };
        let store = &self.store;
        if store.any_block(now.instant())
            && let Some(refusal) = self.refuse_blocked(plan, now).await
        {
            return refusal;
        }
        match &plan.limits[..] {
            // Nearly every request: no list of outcomes to fill, and the store's shortest way.
            [only] if only.enforcement == Enforcement::Enforced => {
                let mut outcome = [Outcome::default()];
                let check = [plan.check(only, act)];
                let Ok(decision) = store.decide_each(&check, now, &mut outcome).await;
                let told = Told::new(&decision, Some(Binding::Limit(0)));
                self.apply_bans(plan, (told, act), (&decision, &[decision.outcome()]), now).await
            }
            several => {
                let mut outcomes = [Outcome::default(); MAX_LIMITS];
                let outcomes = &mut outcomes[..several.len()];
                let Ok(decision) = store.decide_each(&plan.checks(act), now, outcomes).await;
                let enforced = several.iter().any(|one| one.enforcement == Enforcement::Enforced);
                let binding = enforced.then_some(Binding::Limit(decision.binding()));
                let told = Told::new(&decision, binding);
                self.apply_bans(plan, (told, act), (&decision, outcomes), now).await
            }
        }
    }

    /// What follows from a decision: a refusal may count towards a ban.
    #[inline]
    async fn apply_bans(
        &self,
        plan: &RequestPlan<'_>,
        (mut told, act): (Told, Act),
        (decision, outcomes): (&Decision, &[Outcome]),
        now: Now<'_>,
    ) -> (Told, AnswerEntries) {
        if told.refusal == Some(Refusal::OverLimit)
            && act == Act::Take
            && let Some(block) = self.ban(plan, (decision, outcomes), now).await
        {
            told.outcome.retry_after = told.outcome.retry_after.max(block);
        }
        (told, Answer::entries(plan, outcomes))
    }

    /// The refusal, if the caller is blocked under one of the rules.
    #[cold]
    async fn refuse_blocked(
        &self,
        plan: &RequestPlan<'_>,
        asked_at: Now<'_>,
    ) -> Option<(Told, AnswerEntries)> {
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
                *outcome = block_outcome(wait, now);
            }
        }
        let told = Told {
            refusal: Some(Refusal::Blocked),
            decided_by: DecidedBy::Block,
            at: now,
            capacity: plan.limit(&plan.limits[binding]).capacity(),
            outcome: block_outcome(wait, now),
            binding: Some(Binding::Limit(binding)),
        };
        Some((told, Answer::entries(plan, outcomes)))
    }

    /// Counts a refusal towards the bans of the rules that refused; the longest block that it earned.
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
            // A decision that found no room refuses, and no limit is to blame.
            let refused = planned.enforcement == Enforcement::Enforced && decision.violates(index);
            let counts = refused && counts_towards_bans(outcome.decided_by);
            let Some(ban) = rule.ban.as_ref().filter(|_| counts) else { continue };
            // A rule whose three limits all refuse a key has refused it once.
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

    /// How long the key is blocked now, if this refusal was one too many.
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

    /// More enforced limits apply than one decision holds. To leave some out would be to switch
    /// them off, for whoever knows how to meet enough others.
    #[cold]
    pub(crate) fn refuse_too_many_limits(&self, now: Micros) -> (Told, AnswerEntries) {
        let outcome = Outcome {
            retry_after: Wait::NEVER,
            reset_after: Wait::NEVER,
            served_at: now,
            ..Outcome::default()
        };
        let told = Told {
            refusal: Some(Refusal::TooManyLimits),
            decided_by: DecidedBy::Memory,
            at: now,
            capacity: 0,
            outcome,
            binding: None,
        };
        (told, AnswerEntries::default())
    }

    /// No rule could be asked. Whoever takes that for an answer is refused.
    #[cold]
    fn refuse_unanswered(&self, now: Micros) -> (Told, AnswerEntries) {
        self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
        let decision = Decision::refused(Refusal::EmptyKey, Wait::NEVER, now);
        (Told::new(&decision, None), AnswerEntries::default())
    }

    /// Counts what a plan leaves out, and tells of rules that were skipped.
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

    /// Decides one check under a limit that the caller brings and that is beyond those the store has room for, in a
    /// small table of this process. No rule applies.
    pub fn decide_in_overflow<'n>(&self, check: &Check<'_>, now: impl Into<Now<'n>>) -> Decision {
        self.overflow.decide(check, now.into())
    }

    /// Reads the clock, for several questions about one instant.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// An instant that was read from the gatekeeper's clock, as against one of the caller's choosing.
    pub fn clock_instant(&self, now: Micros) -> Now<'_> {
        Now::read(now, &self.clock)
    }
}

/// Whether a refusal is the key's own doing. A state that strangers share refuses for what they did; where
/// a store does not answer, an instance refuses whoever is over its share, or everybody.
fn counts_towards_bans(decided_by: DecidedBy) -> bool {
    use DecidedBy::{Lease, Memory, Redis, RefusalCache};
    matches!(decided_by, Memory | Redis | Lease | RefusalCache)
}

/// What a limit says of a key that is blocked under its rule.
fn block_outcome(wait: Wait, at: Micros) -> Outcome {
    Outcome {
        retry_after: wait,
        reset_after: wait,
        decided_by: DecidedBy::Block,
        served_at: at,
        ..Outcome::default()
    }
}
