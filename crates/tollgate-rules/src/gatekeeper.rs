//! `Gatekeeper`: decides requests by rules, with one store and one clock. Every listener calls it
//! with facts and gets an answer.
//!
//! Methods that end in `_by` are async, work with every store, and take the version of the rules to
//! use. Methods that end in `_at_once` decide without a future if the store never waits. Methods with
//! neither ending are for a store in this process.

mod bans;
mod deciding;
mod preflights;
mod request_strides;
mod run_time_overrides;
mod shadow_bans;
mod store_call;

use arc_swap::ArcSwap;
use std::convert::Infallible;
use std::fmt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate::{
    Check, Clock, Decision, MemoryStore, Micros, Now, Outcome, Refusal, Store, SystemClock,
};

use crate::answer::{Answer, PlanDecision};
use crate::changes::Changes;
use crate::descriptors::StatedLimitTable;
use crate::facts::Facts;
use crate::observer::{DecidedRequest, RuleVerdicts, RulesObserver};
use crate::overflow::OverflowTable;
use crate::plan::RequestPlan;
use crate::reservation::{Reservations, SettlementTally};
use crate::rule_set::{Override, RuleSet};
use crate::waiting::WaitingTables;

use run_time_overrides::RunTimeOverrides;

pub(crate) use shadow_bans::{SHADOW_BLOCK, SHADOW_REFUSALS};
pub(crate) use store_call::StoreCall;
pub use store_call::expect_ready;

/// Decides by rules. Share it: all methods take `&self`.
pub struct Gatekeeper<S = MemoryStore, C = SystemClock> {
    rules: ArcSwap<RuleSet>,
    /// Overrides set at run time. Locked while rules are changed.
    overrides: Mutex<RunTimeOverrides>,
    store: S,
    clock: C,
    pub(crate) reservations: Reservations,
    /// Requests that wait their turn.
    pub(crate) waiting: Arc<WaitingTables>,
    pub(crate) settlements: SettlementTally,
    /// Limits stated in requests of descriptors.
    pub(crate) stated: StatedLimitTable,
    overflow: OverflowTable,
    counts: Arc<GatekeeperCounters>,
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
    shadow_bans: AtomicU64,
    shadow_refusals_lost: AtomicU64,
}

/// Number of events beside decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatekeeperStats {
    /// Rules that did not apply because a fact of their key was missing.
    pub without_fact: u64,
    /// Requests that got an error, because a fact of the key was missing for every rule that could
    /// have refused.
    pub unanswered: u64,
    /// Limits in shadow or soft ones that were left out because more than [`MAX_LIMITS`](tollgate::decision::MAX_LIMITS) applied.
    pub left_out: u64,
    /// Keys blocked after refusals.
    pub bans: u64,
    /// Keys that were not blocked because the table of blocks was full.
    pub bans_without_room: u64,
    /// Keys that rules in shadow would have blocked after refusals.
    pub shadow_bans: u64,
    /// Refusals that rules in shadow would have given and that did not count towards their bans, because the store had too
    /// much to do without a caller, or because rules were replaced meanwhile.
    pub shadow_refusals_lost: u64,
    /// Open reservations.
    pub reservations: usize,
    /// Requests that wait their turn or are delayed.
    pub waiting: usize,
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

impl Gatekeeper {
    /// A gatekeeper with a table in memory for `max_keys` keys, on the system's clock.
    pub fn in_memory(rules: RuleSet, max_keys: usize) -> Gatekeeper {
        Gatekeeper::new(rules, MemoryStore::new(max_keys), SystemClock)
    }
}

impl<S: LocalStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a request under all rules that apply to it: all limits are charged, or none is.
    pub fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.decide_locally(ask, self.clock_instant(self.now()))
    }

    /// The same at an instant of your choosing.
    pub fn decide_at(&self, ask: &Ask<'_>, now: Micros) -> Answer {
        self.decide_locally(ask, now.into())
    }

    #[inline]
    fn decide_locally(&self, ask: &Ask<'_>, now: Now<'_>) -> Answer {
        let at_once = self.decide_at_once(self.rules(), ask, now);
        at_once.unwrap_or_else(|rules| expect_ready(self.decide_by(rules, ask, now)))
    }

    /// Returns the answer that [`Gatekeeper::decide`] would give; charges nothing.
    pub fn peek(&self, ask: &Ask<'_>) -> Answer {
        let now = self.clock_instant(self.now());
        expect_ready(self.peek_by(self.rules(), ask, now))
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
    pub fn new(mut rules: RuleSet, store: S, clock: C) -> Gatekeeper<S, C> {
        rules.date_numbers(None, clock.now());
        let waiting = Arc::<WaitingTables>::default();
        Gatekeeper {
            rules: ArcSwap::from_pointee(rules),
            overrides: Mutex::default(),
            store,
            clock,
            reservations: Reservations::new(&waiting),
            waiting,
            settlements: SettlementTally::default(),
            stated: StatedLimitTable::default(),
            overflow: OverflowTable::default(),
            counts: Arc::default(),
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
    /// with, and those that wait their turn are decided by the new one. Counts stay for limits that stay; so do overrides set at run time, and the tallies of
    /// rules that keep their name.
    pub fn replace(&self, mut rules: RuleSet) -> Changes {
        let mut overrides = self.lock_overrides();
        let before = self.rules.load();
        let changes = Changes::between(&before, &rules);
        rules.inherit(&before);
        let now = self.now();
        rules.date_numbers(Some(&before), now);
        let active = overrides.active_at(now);
        overrides.change(active, &before, now);
        overrides.end_file_overrides(&before, &rules, now);
        if !overrides.is_empty() {
            rules = overrides.applied_to(&rules);
        }
        self.rules.store(Arc::new(rules));
        self.store.limits_changed();
        self.waiting.rules_changed(&self.rules(), self.now());
        // An override changes nothing but limits, for all who wait at one place.
        self.waiting.wake_all();
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
        let mut changed = overrides.active_at(now);
        let done = change(&mut changed)?;
        let rules = self.rules.load();
        overrides.change(changed, &rules, now);
        self.rules.store(Arc::new(overrides.applied_to(&rules)));
        self.store.limits_changed();
        self.waiting.rules_changed(&self.rules(), now);
        Ok(done)
    }

    /// The overrides set at run time that have not ended, including those of removed rules, which
    /// apply again if their rule comes back.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        self.lock_overrides().active_at(self.now())
    }

    /// Locks the overrides: only one thread at a time changes rules or overrides. A panic leaves no
    /// partial change behind, because the list is replaced as a whole.
    fn lock_overrides(&self) -> MutexGuard<'_, RunTimeOverrides> {
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
            shadow_bans: count(&self.counts.shadow_bans),
            shadow_refusals_lost: count(&self.counts.shadow_refusals_lost),
            reservations: self.reservations.len(),
            waiting: self.waiting.len(),
        }
    }

    /// Counts a decision and notifies the observer.
    pub(crate) fn notify(&self, plan: &RequestPlan<'_>, decided: &PlanDecision) {
        let mut verdicts = RuleVerdicts::new();
        let decided = DecidedRequest::new(plan, decided, &mut verdicts);
        decided.tally();
        if let Some(observer) = &self.observer {
            observer.decided(&decided);
        }
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
