//! `consistency: local_sync`: this instance decides by itself, and tells the store every so often.
//!
//! A key's first request goes to the store, which returns its state. From then on it is decided in
//! the table of this process, by the whole limit. The units that pass are counted in the key's
//! slot, together for each *period*: a window, or a part of the limit's period. Once an interval
//! they are sent to the store, each period with its own instant, so that units of one window are
//! never charged to the next. The state that comes back, with the units that passed meanwhile,
//! replaces the local one. So each instance knows the usage of the others with a delay of one
//! interval.
//!
//! A store that cannot be told is not trusted to be asked either: until it answers again, the key's
//! questions go to it, fail, and are answered as the check's terms say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Algorithm, Check, Consistency, Limit, Micros, Now, Outcome, Precision, Receipt};

use crate::late_units;
use crate::remote_store::{CallTiming, LateKind, LateUnits, RemoteError, RemoteStore, StateName};

use super::detached_work::DetachedWork;
use super::retained_check::RetainedCheck;
use super::unit_table::{SLOT_FACTS, UNITS_MAX, UnitSlot, UnitTable};
use super::{BACKGROUND_TICK, SharedStats, SharedStoreInner};

/// Bound: so many keys, 4 MB of them at most; one more, or a longer one, is decided by the store.
const SYNCED_KEYS_MAX: usize = 4_096;
/// Number of flushes in flight at once.
const FLUSHES_MAX: usize = 256;
/// After so many intervals without anything to tell, a key is asked about at the store again.
const IDLE_INTERVALS: u32 = 2;
/// Number of periods in the memory of a limit without windows.
const PERIODS_PER_MEMORY: u64 = 16;

/// The facts of a place: by which numbers decisions may be made here (0 by none), when the present
/// stretch begins and ends, and the latest instant of its units. By the store's clock.
const READY_NUMBERS: usize = 0;
const PERIOD_FROM: usize = 1;
const PERIOD_TILL: usize = 2;
const LAST_CHARGE: usize = 3;

/// A fingerprint of the numbers of a limit.
fn numbers_fingerprint(limit: &Limit) -> u64 {
    limit.fingerprint() | 1
}

/// Keys that are decided here.
#[derive(Debug)]
pub(super) struct LocalSyncTable {
    table: UnitTable<LocalSyncKey>,
    flush_failures: AtomicU64,
    units_uncertain: AtomicU64,
    without_room: AtomicU64,
}

#[derive(Debug)]
struct LocalSyncKey {
    /// The tag of its key.
    tag: u64,
    retained: Arc<RetainedCheck>,
    /// The time of the next flush.
    flush_at: Instant,
    idle_intervals: u32,
    /// Units admitted in past periods.
    past_periods: ChargePeriods,
}

/// Units that passed in one stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChargePeriod {
    from: u64,
    /// Its end, which is not part of it.
    till: u64,
    /// The latest instant of its units.
    last_charge_at: u64,
    units: u64,
}

/// Bound: `PERIODS_MAX`, twice as many as matter to any limit; the oldest of more is of a time that it has
/// forgotten.
type ChargePeriods = Vec<ChargePeriod>;
const PERIODS_MAX: usize = 2 * PERIODS_PER_MEMORY as usize;

impl ChargePeriod {
    /// The stretch that begins with a charge of so many units. `at` is the instant it was asked at.
    pub(super) fn of(limit: &Limit, outcome: &Outcome, at: Micros, units: u64) -> ChargePeriod {
        let from = outcome.served_at.as_u64();
        let till = match (limit.algorithm(), limit.precision()) {
            // Until the window ends: waits count from the caller's clock.
            (Algorithm::FixedWindow, _) => at.after(outcome.reset_after).as_u64(),
            (Algorithm::SlidingWindowCounter, Precision::Estimate) => {
                (from / limit.period_us() + 1).saturating_mul(limit.period_us())
            }
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, _) => {
                from.saturating_add(limit.full_refill_us() / PERIODS_PER_MEMORY)
            }
            _ => from.saturating_add(limit.period_us() / PERIODS_PER_MEMORY),
        };
        ChargePeriod { from, till: till.max(from + 1), last_charge_at: from, units }
    }

    fn contains(&self, instant: u64) -> bool {
        (self.from..self.till).contains(&instant)
    }

    /// Units as the store gets them. Within a window all instants are equal, and the first may have
    /// opened it; elsewhere the latest may refuse a little more and never admits more.
    fn late_units(&self, limit: &Limit, kind: LateKind) -> LateUnits {
        let at = match limit.algorithm() {
            Algorithm::FixedWindow => self.from,
            _ => self.last_charge_at.clamp(self.from, self.till - 1),
        };
        LateUnits { units: self.units, at: Micros::new(at), kind }
    }
}

impl LocalSyncKey {
    /// Writes down a stretch that is over.
    fn add_past(&mut self, stretch: ChargePeriod) {
        if stretch.units == 0 {
            return;
        }
        if let Some(same) = self.past_periods.iter_mut().find(|one| one.contains(stretch.from)) {
            same.units = same.units.saturating_add(stretch.units);
            same.last_charge_at = same.last_charge_at.max(stretch.last_charge_at);
            return;
        }
        if self.past_periods.len() >= PERIODS_MAX {
            self.past_periods.remove(0);
        }
        self.past_periods.push(stretch);
    }

    /// Takes up to `units` out of what passed at an instant, or at any; how many.
    fn take_back(&mut self, units: u64, at: Option<u64>) -> u64 {
        let mut left = units;
        let of_it = |one: &&mut ChargePeriod| at.is_none_or(|at| one.contains(at));
        for stretch in self.past_periods.iter_mut().rev().filter(of_it) {
            let taken = left.min(stretch.units);
            stretch.units -= taken;
            left -= taken;
        }
        self.past_periods.retain(|stretch| stretch.units > 0);
        units - left
    }

    fn units(&self) -> u64 {
        self.past_periods.iter().map(|stretch| stretch.units).sum()
    }
}

/// The stretch that a place is in, with so many units.
fn current_period(facts: &[AtomicU64; SLOT_FACTS], units: u64) -> ChargePeriod {
    let [from, till, last] =
        [PERIOD_FROM, PERIOD_TILL, LAST_CHARGE].map(|fact| facts[fact].load(Ordering::Relaxed));
    ChargePeriod { from, till: till.max(from + 1), last_charge_at: last, units }
}

/// Ends the present stretch of a place, and begins another or none. Call with its owner locked.
fn end_period(
    place: &UnitSlot<LocalSyncKey>,
    owner: &mut LocalSyncKey,
    next: Option<ChargePeriod>,
) {
    place.renew(|left, facts| {
        owner.add_past(current_period(facts, left));
        let mut new = [0; SLOT_FACTS];
        new[READY_NUMBERS] = facts[READY_NUMBERS].load(Ordering::Relaxed);
        if let Some(ChargePeriod { from, till, last_charge_at: last, .. }) = next {
            (new[PERIOD_FROM], new[PERIOD_TILL], new[LAST_CHARGE]) = (from, till, last);
        }
        (new, next.map_or(0, |next| next.units))
    });
}

impl LocalSyncTable {
    pub(super) fn new() -> LocalSyncTable {
        LocalSyncTable {
            table: UnitTable::new(SYNCED_KEYS_MAX),
            flush_failures: AtomicU64::new(0),
            units_uncertain: AtomicU64::new(0),
            without_room: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns true if a key is decided in this process.
    #[inline]
    pub(super) fn is_ready(&self, tag: u64, limit: &Limit) -> bool {
        let ready =
            |place: &UnitSlot<LocalSyncKey>| place.facts[READY_NUMBERS].load(Ordering::Acquire);
        self.table.find(tag).is_some_and(|place| ready(place) == numbers_fingerprint(limit))
    }

    /// Writes down what the store is to be told. `false`: the key has no place any more.
    #[inline]
    pub(super) fn add(&self, tag: u64, stretch: ChargePeriod) -> bool {
        let Some(place) = self.table.find(tag) else { return false };
        add_to_current(place, tag, &stretch) || begin_period(place, tag, stretch)
    }

    /// Forgets what the store was to be told: the key begins anew.
    pub(super) fn drop_unsent(&self, tag: u64) {
        if let Some(place) = self.table.find(tag)
            && let Some(owner) = place.owner().as_mut().filter(|owner| owner.tag == tag)
        {
            place.drain(tag);
            owner.past_periods.clear();
        }
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        for (_, place) in self.table.occupied() {
            let owner = place.owner();
            stats.sync_keys += 1;
            stats.sync_units_unsent +=
                place.units() + owner.as_ref().map_or(0, LocalSyncKey::units);
        }
        stats.sync_failures = self.flush_failures.load(Ordering::Relaxed);
        stats.sync_units_uncertain = self.units_uncertain.load(Ordering::Relaxed);
        stats.sync_without_room = self.without_room.load(Ordering::Relaxed);
    }
}

/// Adds units to the stretch that a place is in, if they are of it.
#[inline]
fn add_to_current(place: &UnitSlot<LocalSyncKey>, tag: u64, stretch: &ChargePeriod) -> bool {
    place.add(tag, stretch.units, |facts| {
        let of_it = current_period(facts, 0).contains(stretch.from);
        if of_it && facts[LAST_CHARGE].load(Ordering::Relaxed) < stretch.from {
            facts[LAST_CHARGE].fetch_max(stretch.from, Ordering::Relaxed);
        }
        of_it
    })
}

/// Ends the stretch that a place is in, and begins another.
#[cold]
fn begin_period(place: &UnitSlot<LocalSyncKey>, tag: u64, stretch: ChargePeriod) -> bool {
    let mut owner = place.owner();
    let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return false };
    if stretch.units > UNITS_MAX {
        return false;
    }
    if add_to_current(place, tag, &stretch) {
        // Another has begun it meanwhile.
    } else if stretch.from < place.facts[PERIOD_FROM].load(Ordering::Relaxed) {
        owner.add_past(stretch);
    } else {
        end_period(place, owner, Some(stretch));
    }
    true
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Decides a usual take here, if its key is one that is decided here.
    #[inline]
    pub(super) fn decide_local_sync(
        &self,
        check: &Check<'_>,
        tag: u64,
        now: Now<'_>,
    ) -> Option<Outcome> {
        if !self.local_sync.is_ready(tag, check.limit()) {
            return None;
        }
        let at = self.store_for(check).to_store_now(now);
        let outcome = self.local.decide_one(check, at).outcome();
        let units = match outcome.allowed {
            true => outcome.charged,
            false if check.counts_denied() => check.units(),
            false => 0,
        };
        let stretch = || ChargePeriod::of(check.limit(), &outcome, at.instant(), units);
        if units > 0 && !self.local_sync.add(tag, stretch()) {
            // The place was given up in this very moment: the store decides.
            let receipt = Outcome { charged: units, ..outcome }.receipt();
            self.local.refund(check.limit(), check.key(), Some(receipt), units, at.instant());
            return None;
        }
        Some(outcome)
    }

    /// Decides a key here from now on: its state has just come from the store.
    pub(super) fn start_local_sync(&self, check: &Check<'_>, tag: u64) {
        let owner = || LocalSyncKey {
            tag,
            retained: Arc::new(RetainedCheck::retain(check)),
            flush_at: next_flush_at(check, Instant::now()),
            idle_intervals: 0,
            past_periods: ChargePeriods::new(),
        };
        let room = RetainedCheck::fits_key(check)
            .then(|| self.local_sync.table.claim(tag, owner))
            .flatten();
        let Some(place) = room else {
            self.local_sync.without_room.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // It may have been given up and to another since.
        if place.owner().as_ref().is_some_and(|owner| owner.tag == tag) {
            place.facts[READY_NUMBERS].store(numbers_fingerprint(check.limit()), Ordering::Release);
        }
        self.wake.notify_one();
    }

    /// Gives back what was charged here; the units that the store knows of already are left to it.
    pub(super) fn refund_local_sync(
        &self,
        check: &Check<'_>,
        tag: u64,
        receipt: Option<&Receipt>,
        now: Micros,
    ) -> u64 {
        let units = receipt.map_or(u64::MAX, Receipt::granted).min(check.units());
        let charged_at = receipt.map(|receipt| receipt.charged_at().as_u64());
        let at = self.store_for(check).to_store_clock(now);
        self.local.refund(check.limit(), check.key(), receipt.map(copy_receipt), units, at);
        let Some(place) = self.local_sync.table.find(tag) else { return units };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return units };
        let untold = units.min(place.units());
        let of_it = |facts: &[AtomicU64; SLOT_FACTS]| {
            charged_at.is_none_or(|at| current_period(facts, 0).contains(at)).then_some(())
        };
        let taken = place.spend(tag, untold, of_it).map_or(0, |_| untold);
        if taken > 0 && place.units() == 0 {
            // The next charge may open a window of its own.
            end_period(place, owner, None);
        }
        units - taken - owner.take_back(units - taken, charged_at)
    }

    /// Tells the store what was decided here, of keys whose interval is over or of all.
    pub(super) async fn flush_local_sync(self: &Arc<Self>, all: bool) {
        let mut telling = JoinSet::new();
        let now = Instant::now();
        for (_, place) in self.local_sync.table.occupied() {
            match due_charges(place, all, now) {
                DueCharges::Units(tag, kept, passed) => {
                    let inner = Arc::clone(self);
                    telling.spawn(async move { inner.flush_key(tag, &kept, passed, None).await });
                }
                DueCharges::Idle(tag) => {
                    self.local_sync.table.release(tag, |owner| owner.past_periods.is_empty());
                }
                DueCharges::Nothing => {}
            }
            if telling.len() >= FLUSHES_MAX {
                telling.join_next().await;
            }
        }
        while telling.join_next().await.is_some() {}
    }

    /// Sends what was admitted here before the store is asked about the key; the store would grant
    /// it again otherwise. Needed when the store is back after a failed flush, and when the numbers
    /// of the limit have changed, which are kept from then on.
    pub(super) async fn flush_before_check(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        when: CallTiming,
    ) {
        let synced = matches!(check.requested_terms().consistency, Consistency::LocalSync { .. });
        let place = synced.then(|| self.local_sync.table.find(tag)).flatten();
        let Some(place) = place else { return };
        let untold = {
            let mut owner = place.owner();
            owner.as_mut().filter(|owner| owner.tag == tag).map(|owner| {
                end_period(place, owner, None);
                let before = Arc::clone(&owner.retained);
                if !before.has_numbers_of(check.limit()) {
                    place.facts[READY_NUMBERS].store(0, Ordering::Release);
                    owner.retained = Arc::new(RetainedCheck::retain(check));
                    self.refusal_cache.forget(tag);
                }
                (before, std::mem::take(&mut owner.past_periods))
            })
        };
        let Some((before, passed)) = untold else { return };
        if !passed.is_empty() {
            self.flush_in_any_case(tag, before, passed, when).await;
        }
    }

    /// Sends what was admitted here by other numbers, which a check of these would send before it asks the store.
    /// Decisions by the other numbers go on.
    pub(super) async fn send_unsent_units(self: &Arc<Self>, check: &Check<'_>, when: CallTiming) {
        let synced = matches!(check.requested_terms().consistency, Consistency::LocalSync { .. });
        let tag = self.tag(check);
        let place = synced.then(|| self.local_sync.table.find(tag)).flatten();
        let unsent = place.and_then(|place| {
            let mut owner = place.owner();
            let owner = owner.as_mut().filter(|owner| owner.tag == tag)?;
            end_period(place, owner, None);
            Some((Arc::clone(&owner.retained), std::mem::take(&mut owner.past_periods)))
        });
        if let Some((retained, passed)) = unsent.filter(|(_, passed)| !passed.is_empty()) {
            self.flush_in_any_case(tag, retained, passed, when).await;
        }
    }

    /// Charges units that have passed here, even if the caller leaves meanwhile.
    async fn flush_in_any_case(
        self: &Arc<Self>,
        tag: u64,
        retained: Arc<RetainedCheck>,
        passed: ChargePeriods,
        when: CallTiming,
    ) {
        let inner = Arc::clone(self);
        let telling = async move { inner.flush_key(tag, &retained, passed, Some(when)).await };
        DetachedWork::new(&self.runtime, telling).await;
    }

    /// Charges units that have passed here, and learns how the key stands.
    async fn flush_key(
        &self,
        tag: u64,
        kept: &RetainedCheck,
        passed: ChargePeriods,
        when: Option<CallTiming>,
    ) {
        let check = kept.check();
        let asked = self.store_for(&check);
        let limit = check.limit().for_key(check.key().as_bytes());
        let late_of = |stretch: &ChargePeriod| stretch.late_units(&limit, kept.charge_kind());
        let late: Vec<LateUnits> = passed.iter().map(late_of).collect();
        let when = when.unwrap_or_else(|| asked.call_timing(self.caller_clock.now().into()));
        let state = StateName { key: asked.store.hash(check.key()), twin: 0 };
        match asked.store.apply_late_units(state, &limit, &late, when).await {
            Ok(Some((mut state, at))) => {
                // What passed while the store was being told is not in its state yet.
                for stretch in self.copy_unsent(tag) {
                    late_units::apply(&limit, &mut state, late_of(&stretch), at);
                }
                self.local.seed(check.limit(), check.key(), &state, at);
            }
            Ok(None) => {}
            Err(error) => {
                self.local_sync.flush_failures.fetch_add(1, Ordering::Relaxed);
                let kept = self.flush_failed(tag, &passed, error.certainly_not_executed());
                if kept {
                    return;
                }
                // Perhaps it did hear it. To say it again and again, as long as it does not answer,
                // would charge it as often.
                for late in late {
                    let debt = self.pending_change(&check, late.kind, late.units, late.at);
                    if !error.certainly_not_executed() || !self.keep_unsent(debt, when.now, &error)
                    {
                        self.local_sync.units_uncertain.fetch_add(late.units, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Copies the unsent charges of a key, which stay due.
    fn copy_unsent(&self, tag: u64) -> ChargePeriods {
        let Some(place) = self.local_sync.table.find(tag) else { return ChargePeriods::new() };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else {
            return ChargePeriods::new();
        };
        end_period(place, owner, None);
        owner.past_periods.clone()
    }

    /// Makes the store decide a key until it answers again; if the charges were not executed, keeps
    /// them. Returns true if it did.
    fn flush_failed(&self, tag: u64, passed: &ChargePeriods, again: bool) -> bool {
        let Some(place) = self.local_sync.table.find(tag) else { return false };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return false };
        place.facts[READY_NUMBERS].store(0, Ordering::Release);
        if again {
            let later = std::mem::take(&mut owner.past_periods);
            passed.iter().chain(&later).for_each(|stretch| owner.add_past(*stretch));
        }
        again
    }
}

/// The charges of a slot that are due.
enum DueCharges {
    Units(u64, Arc<RetainedCheck>, ChargePeriods),
    Nothing,
    /// Nothing for a while: the key can do without its place.
    Idle(u64),
}

fn due_charges(place: &UnitSlot<LocalSyncKey>, all: bool, now: Instant) -> DueCharges {
    let mut owner = place.owner();
    let Some(owner) = owner.as_mut().filter(|owner| all || owner.flush_at <= now) else {
        return DueCharges::Nothing;
    };
    owner.flush_at = next_flush_at(&owner.retained.check(), now);
    end_period(place, owner, None);
    owner.idle_intervals = if owner.past_periods.is_empty() { owner.idle_intervals + 1 } else { 0 };
    match owner.idle_intervals {
        0 => DueCharges::Units(
            owner.tag,
            Arc::clone(&owner.retained),
            std::mem::take(&mut owner.past_periods),
        ),
        IDLE_INTERVALS.. => DueCharges::Idle(owner.tag),
        _ => DueCharges::Nothing,
    }
}

fn next_flush_at(check: &Check<'_>, now: Instant) -> Instant {
    match check.requested_terms().consistency {
        Consistency::LocalSync { interval_ms } => {
            now + Duration::from_millis(interval_ms.into()).max(BACKGROUND_TICK)
        }
        _ => now,
    }
}

/// A receipt is of one use; what is charged in two places is given back in both.
pub(super) fn copy_receipt(receipt: &Receipt) -> Receipt {
    Outcome {
        charged: receipt.granted(),
        served_at: receipt.charged_at(),
        decided_by: receipt.decided_by(),
        twin: receipt.twin(),
        ..Outcome::default()
    }
    .receipt()
}
