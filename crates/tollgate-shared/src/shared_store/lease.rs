//! `consistency: leased`: a busy key's budget is borrowed ahead and spent here.
//!
//! A lease is a taking of many units at once, so what is borrowed is charged already and nobody else can
//! have it. What it costs is exactness in time: units may be spent up to a second after they were charged,
//! and meanwhile others may be refused for units that are never spent. Both are bounded by what all
//! instances hold unspent, and the store keeps that below the part of the capacity that the rule allows:
//! it writes down who is about to hold how much (`lua/lease.lua`), before anything is taken.
//!
//! ```text
//!   asked often enough? ─▶ lend: may I hold L more?  ─▶ take L ─▶ spend, one compare-and-swap each
//!                               half of it spent ─▶ the same again, meanwhile
//!                               expired ─▶ give back what is left
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use tokio::time::Instant;
use tollgate::{Act, Check, Consistency, DecidedBy, Limit, Micros, Outcome, Wait};

use crate::remote_store::{
    AnswerStates, LEASE_US_MAX, LateKind, LeaseRequest, RemoteError, RemoteStore,
};

use super::hot_key_sketch::{HALF_LIFE_US, HotKeySketch};
use super::retained_check::RetainedCheck;
use super::unit_table::{SLOT_FACTS, UNITS_MAX, UnitSlot, UnitTable};
use super::{SharedStats, SharedStoreInner};

/// Bound: so many keys hold budget, 1 MB of them at most; one more, or a longer one, is decided by the
/// store.
const LEASED_KEYS_MAX: usize = 1_024;
/// A key is busy that asks so often in 200 ms.
const BUSY_REQUESTS: u64 = 32;
/// A lease is two questions to the store: one for fewer units saves none.
const LEASE_UNITS_MIN: u64 = 8;
/// Budget is not held for less.
const LEASE_US_MIN: u64 = 10_000;

/// The facts of a place.
const UNTIL: usize = 0;
const REMAINING: usize = 1;
const RESET_AT: usize = 2;
const MORE_AT: usize = 3;
const CHARGED_AT: usize = 4;
const RENEW_BELOW: usize = 5;

/// Keys with borrowed budget.
#[derive(Debug)]
pub(super) struct Leases {
    table: UnitTable<LeaseHolder>,
    hot_keys: HotKeySketch,
    units_lent: AtomicU64,
    units_returned: AtomicU64,
    units_unused: AtomicU64,
    outstanding_max_millionths: AtomicU64,
}

#[derive(Debug)]
struct LeaseHolder {
    retained: Arc<RetainedCheck>,
    /// Units after the last renewal.
    chunk: u64,
    renewed_at: Instant,
    /// The time at which the rest is returned.
    expires_at: Instant,
    /// Charges and their times, the latest first: as far back as unspent units can go.
    charges: LeaseCharges,
}

/// Bound: what is left is seldom of more than two; of the rest nothing is given back.
type LeaseCharges = ArrayVec<(Micros, u64), 8>;

impl Leases {
    pub(super) fn new() -> Leases {
        Leases {
            table: UnitTable::new(LEASED_KEYS_MAX),
            hot_keys: HotKeySketch::new(),
            units_lent: AtomicU64::new(0),
            units_returned: AtomicU64::new(0),
            units_unused: AtomicU64::new(0),
            outstanding_max_millionths: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Takes back what was spent and then not used.
    pub(super) fn put_back(&self, tag: u64, units: u64) -> bool {
        self.table.find(tag).is_some_and(|place| place.add(tag, units, |_| true))
    }

    /// Drops what a key has borrowed: it begins anew.
    pub(super) fn drop_lease(&self, tag: u64) {
        if let Some(place) = self.table.find(tag) {
            self.units_unused.fetch_add(place.drain(tag), Ordering::Relaxed);
        }
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.leases = self.table.occupied().filter(|(_, place)| place.units() > 0).count() as u64;
        stats.units_lent = count(&self.units_lent);
        stats.units_returned = count(&self.units_returned);
        stats.units_unused = count(&self.units_unused);
        stats.outstanding_max_millionths = count(&self.outstanding_max_millionths);
    }

    fn record_outstanding(&self, units: u64, limit: &Limit) {
        let part = u128::from(units) * 1_000_000 / u128::from(limit.capacity());
        self.outstanding_max_millionths.fetch_max(part as u64, Ordering::Relaxed);
    }
}

impl<R: RemoteStore> SharedStoreInner<R> {
    /// Answers a usual take from borrowed budget, if there is enough.
    #[inline]
    pub(super) fn spend_lease(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        now: Micros,
    ) -> Option<Outcome> {
        let place = self.leases.table.find(tag)?;
        let (outcome, left) =
            place.spend(tag, check.units(), |facts| lease_outcome(facts, check, now))?;
        // Asked for once: if nothing comes, the rest is spent and then the store is asked.
        let low = &place.facts[RENEW_BELOW];
        if left < low.load(Ordering::Relaxed) && low.swap(0, Ordering::Relaxed) > 0 {
            self.renew_lease(check, tag, place);
        }
        Some(with_leased_units(outcome, left, check.limit()))
    }

    /// The answer that [`spend_lease`](SharedStoreInner::spend_lease) would give now. Spends nothing.
    pub(super) fn peek_lease(&self, check: &Check<'_>, tag: u64, now: Micros) -> Option<Outcome> {
        let place = self.leases.table.find(tag)?;
        let (outcome, held) = place.spend(tag, 0, |facts| lease_outcome(facts, check, now))?;
        let left = held.checked_sub(check.units())?;
        Some(with_leased_units(outcome, left, check.limit()))
    }

    /// Half of a lease is spent: what comes next is asked for while the rest lasts.
    #[cold]
    fn renew_lease(self: &Arc<Self>, check: &Check<'_>, tag: u64, place: &UnitSlot<LeaseHolder>) {
        let pace = place.owner().as_ref().map(|owner| {
            let spent = owner.chunk.saturating_sub(place.units());
            let lasted_us = (Instant::now() - owner.renewed_at).as_micros().max(1_000);
            (u128::from(spent) * u128::from(2 * HALF_LIFE_US) / lasted_us) as u64
        });
        let remaining = place.facts[REMAINING].load(Ordering::Relaxed);
        if let Some(wanted) = pace {
            self.borrow_soon(check, tag, wanted, remaining);
        }
    }

    /// Counts a take that the store answered: a key that is asked for often borrows ahead.
    pub(super) fn consider_lease(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        now: Micros,
        outcome: &Outcome,
    ) {
        let asked = self.leases.hot_keys.observe(tag, now);
        if asked >= BUSY_REQUESTS && outcome.allowed && check.requested_act() == Act::Take {
            self.borrow_soon(check, tag, asked.saturating_mul(check.units()), outcome.remaining);
        }
    }

    /// Borrows up to `wanted` in the background, unless that is being done.
    fn borrow_soon(self: &Arc<Self>, check: &Check<'_>, tag: u64, wanted: u64, remaining: u64) {
        if self.leases.table.find(tag).is_some_and(UnitSlot::is_busy) {
            return;
        }
        let Some(terms) = LeaseTerms::of(check).filter(|_| RetainedCheck::fits_key(check)) else {
            return;
        };
        let mine = (terms.outstanding_max / u64::from(self.live_instances())).min(UNITS_MAX / 2);
        // The last units of a limit are not lent: a refusal is always for units that were spent.
        let wanted = wanted.min(mine).min(remaining.saturating_sub(terms.outstanding_max));
        if wanted < LEASE_UNITS_MIN {
            return;
        }
        let kept = || Arc::new(RetainedCheck::retain(check));
        let owner = || {
            let now = Instant::now();
            LeaseHolder {
                retained: kept(),
                chunk: 0,
                renewed_at: now,
                expires_at: now,
                charges: LeaseCharges::new(),
            }
        };
        let Some(number) = self.leases.table.claim_busy(tag, owner) else { return };
        let (busy, kept) = (BorrowGuard { inner: Arc::clone(self), number }, kept());
        self.runtime.spawn(async move {
            let place = busy.inner.leases.table.at(busy.number);
            busy.inner.borrow(&kept, place, wanted, terms).await;
        });
    }

    async fn borrow(
        &self,
        kept: &RetainedCheck,
        place: &UnitSlot<LeaseHolder>,
        wanted: u64,
        terms: LeaseTerms,
    ) {
        let check = kept.check();
        let asked = self.store_for(&check);
        let held = place.units();
        // Both clocks are read before the store reads its own: what is held here ends first.
        let (now, started) = (self.caller_clock.now(), Instant::now());
        let lend = LeaseRequest {
            instance: self.instance_id,
            held,
            wanted: wanted.saturating_sub(held),
            grant_min: LEASE_UNITS_MIN,
            outstanding_max: terms.outstanding_max,
            duration_us: terms.duration_us,
        };
        if lend.wanted < LEASE_UNITS_MIN {
            return;
        }
        let Ok(lent) = asked.store.reserve_lease(&check, lend).await else { return };
        self.leases.record_outstanding(lent.outstanding, check.limit());
        if lent.granted < LEASE_UNITS_MIN {
            return;
        }
        let taking = check.cost(lent.granted).act(Act::Take);
        let Some(outcome) = self.take_leased_units(&taking, now).await else { return };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut() else { return };
        let until = now.after(Wait::from_micros(terms.duration_us));
        let chunk = place.units() + lent.granted;
        (owner.chunk, owner.renewed_at) = (chunk, Instant::now());
        remember_charge(&mut owner.charges, (outcome.served_at, lent.granted), chunk);
        owner.expires_at = started + Duration::from_micros(terms.duration_us);
        let facts = lease_facts(until, &outcome, now, chunk / 2);
        place.renew(|left, _| (facts, left + lent.granted));
    }

    /// Takes what was lent; `None`: there is nothing to spend.
    async fn take_leased_units(&self, taking: &Check<'_>, now: Micros) -> Option<Outcome> {
        let asked = self.store_for(taking);
        let mut seen = AnswerStates::default();
        match asked.store.take_leased_units(taking, now, &mut seen).await {
            Ok(outcome) if outcome.allowed => {
                asked.observe_clock(seen.answered_at, self.caller_clock.now());
                self.copy_state(taking, &seen, 0);
                self.refusal_cache.forget(self.tag(taking));
                self.leases.units_lent.fetch_add(taking.units(), Ordering::Relaxed);
                Some(outcome)
            }
            // Perhaps it is charged, and nobody will spend it.
            Err(error) if !error.certainly_not_executed() => {
                for counter in [&self.leases.units_lent, &self.leases.units_unused] {
                    counter.fetch_add(taking.units(), Ordering::Relaxed);
                }
                None
            }
            _ => None,
        }
    }

    /// Gives back what is left of leases that have ended, or of all.
    pub(super) async fn return_leases(self: &Arc<Self>, all: bool) {
        let now = Instant::now();
        for (tag, place) in self.leases.table.occupied() {
            let Some((kept, mut left, charges)) = end_lease(tag, place, all, now) else { continue };
            self.leases.table.release(tag, |_| true);
            place.clear_busy();
            for (charged_at, units) in charges {
                let units = units.min(left);
                left -= units;
                if units > 0 {
                    self.give_back_lease(&kept, units, charged_at).await;
                }
            }
            self.leases.units_unused.fetch_add(left, Ordering::Relaxed);
        }
    }

    async fn give_back_lease(
        self: &Arc<Self>,
        kept: &RetainedCheck,
        left: u64,
        charged_at: Micros,
    ) {
        let check = kept.check();
        let when = self.store_for(&check).call_timing(self.caller_clock.now().into());
        let debt = self.pending_change(&check, LateKind::Refund, left, charged_at);
        let told = self.send_change(debt, when).await;
        let counter = if told { &self.leases.units_returned } else { &self.leases.units_unused };
        counter.fetch_add(left, Ordering::Relaxed);
    }
}

/// Ends a lease whose time has come; what is left of it, and of which charges that can be. It stays busy.
fn end_lease(
    tag: u64,
    place: &UnitSlot<LeaseHolder>,
    all: bool,
    now: Instant,
) -> Option<(Arc<RetainedCheck>, u64, LeaseCharges)> {
    let mut owner = place.owner();
    let owned = owner.as_mut().filter(|owner| all || owner.expires_at <= now)?;
    if !place.try_set_busy() {
        return None;
    }
    let (kept, charges) = (Arc::clone(&owned.retained), std::mem::take(&mut owned.charges));
    drop(owner);
    Some((kept, place.drain(tag), charges))
}

/// Adds a charge, and drops those that are spent whole: of `left` units, the latest come last.
fn remember_charge(charges: &mut LeaseCharges, charge: (Micros, u64), left: u64) {
    charges.truncate(charges.capacity() - 1);
    charges.insert(0, charge);
    let mut sum = 0;
    charges.retain(|(_, units)| {
        let needed = sum < left;
        sum += *units;
        needed
    });
}

/// The terms of a lease of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseTerms {
    /// All instances together hold no more.
    outstanding_max: u64,
    duration_us: u64,
}

impl LeaseTerms {
    /// `None`: nothing is lent.
    fn of(check: &Check<'_>) -> Option<LeaseTerms> {
        let limit = check.limit();
        let Consistency::Leased { millionths } = check.requested_terms().consistency else {
            return None;
        };
        let most = u128::from(limit.capacity()) * u128::from(millionths) / 1_000_000;
        let period = limit.period().as_micros();
        let memory = match limit.algorithm().is_bucket() {
            true => u128::from(limit.capacity()) * period / u128::from(limit.units()),
            false => period,
        };
        // What is held must not outlive what it is of.
        let lasts_us = u128::from(LEASE_US_MAX).min(memory / 2) as u64;
        let lends = most >= LEASE_UNITS_MIN.into() && lasts_us >= LEASE_US_MIN && !limit.is_queue();
        lends.then_some(LeaseTerms { outstanding_max: most as u64, duration_us: lasts_us })
    }
}

/// Makes a slot available for the next lease request in any case, even if it has another owner by
/// then.
struct BorrowGuard<R> {
    inner: Arc<SharedStoreInner<R>>,
    number: usize,
}

impl<R> Drop for BorrowGuard<R> {
    fn drop(&mut self) {
        self.inner.leases.table.at(self.number).clear_busy();
        self.inner.wake.notify_one();
    }
}

/// The facts for answers while a lease lasts.
fn lease_facts(until: Micros, outcome: &Outcome, now: Micros, low: u64) -> [u64; SLOT_FACTS] {
    let mut facts = [0; SLOT_FACTS];
    facts[UNTIL] = until.as_u64();
    facts[REMAINING] = outcome.remaining;
    facts[RESET_AT] = now.after(outcome.reset_after).as_u64();
    facts[MORE_AT] = now.after(outcome.more_after).as_u64();
    facts[CHARGED_AT] = outcome.served_at.as_u64();
    facts[RENEW_BELOW] = low;
    facts
}

/// The answer to a take after which this instance holds so many units.
#[inline]
fn with_leased_units(outcome: Outcome, held: u64, limit: &Limit) -> Outcome {
    Outcome { remaining: outcome.remaining.saturating_add(held).min(limit.capacity()), ..outcome }
}

/// The answer to a take, but for what is left here; `None` when the lease has ended.
#[inline]
fn lease_outcome(
    facts: &[AtomicU64; SLOT_FACTS],
    check: &Check<'_>,
    now: Micros,
) -> Option<Outcome> {
    let fact = |index: usize| facts[index].load(Ordering::Relaxed);
    let left = |index: usize| Wait::from_micros(fact(index).saturating_sub(now.as_u64()));
    (fact(UNTIL) > now.as_u64()).then(|| Outcome {
        allowed: true,
        remaining: fact(REMAINING),
        reset_after: left(RESET_AT),
        more_after: left(MORE_AT),
        charged: check.units(),
        decided_by: DecidedBy::Lease,
        served_at: Micros::new(fact(CHARGED_AT)),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_kept_as_far_back_as_what_is_left_can_be_of() {
        let mut charges = LeaseCharges::new();
        // units charged, units left after it, charges kept
        for (at, (units, left, kept)) in
            [(100, 100, 1), (100, 150, 2), (200, 200, 1), (10, 205, 2), (10, 215, 3), (10, 30, 3)]
                .into_iter()
                .enumerate()
        {
            remember_charge(&mut charges, (Micros::new(at as u64), units), left);
            assert_eq!((charges.len(), charges[0].1), (kept, units), "charge {at}");
            assert!(charges.iter().map(|(_, units)| units).sum::<u64>() >= left);
        }
        for _ in 0..100 {
            remember_charge(&mut charges, (Micros::ZERO, 1), u64::MAX);
        }
        assert_eq!(charges.len(), charges.capacity());
    }

    #[test]
    fn what_is_lent_of_a_limit() {
        // limit, millionths, the most, lasts µs; (0, 0): nothing
        for (text, millionths, most, lasts) in [
            ("1000/second burst 1000", 10_000, 10, 500_000),
            ("1000/minute burst 1000", 10_000, 10, 1_000_000),
            ("1000/minute", 10_000, 10, 1_000_000),
            ("1000/second", 999_999, 999, 500_000),
            ("800/second", 9_999, 0, 0),
            ("1000/10ms", 500_000, 0, 0),
            ("1000/second", 0, 0, 0),
        ] {
            let limit: Limit = text.parse().unwrap();
            let leased = Consistency::Leased { millionths };
            let terms = tollgate::Terms { consistency: leased, ..Default::default() };
            let lent = LeaseTerms::of(&Check::new(&limit, "a").terms(terms));
            let wanted =
                (most > 0).then_some(LeaseTerms { outstanding_max: most, duration_us: lasts });
            assert_eq!(lent, wanted, "{text}");
        }
        let limit: Limit = "1000/second".parse().unwrap();
        assert_eq!(LeaseTerms::of(&Check::new(&limit, "a")), None, "strict");
    }
}
