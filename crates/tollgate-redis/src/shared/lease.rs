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

use crate::remote::{LEASE_US_MAX, LateKind, Lend, Remote, Seen};

use super::kept::Kept;
use super::places::{FACTS, Place, Places, UNITS_MAX};
use super::sketch::{FADE_US, Sketch};
use super::{Inner, SharedStats};

/// Bound: so many keys hold budget, 1 MB of them at most; one more, or a longer one, is decided by the
/// store.
const KEYS: usize = 1_024;
/// A key is busy that asks so often in 200 ms.
const BUSY: u64 = 32;
/// A lease is two questions to the store: one for fewer units saves none.
const LEAST: u64 = 8;
/// Budget is not held for less.
const LASTS_US_MIN: u64 = 10_000;

/// The facts of a place.
const UNTIL: usize = 0;
const REMAINING: usize = 1;
const RESET_AT: usize = 2;
const MORE_AT: usize = 3;
const CHARGED_AT: usize = 4;
const LOW: usize = 5;

/// Keys with borrowed budget.
#[derive(Debug)]
pub(super) struct Leases {
    places: Places<Owner>,
    sketch: Sketch,
    lent: AtomicU64,
    returned: AtomicU64,
    unused: AtomicU64,
    outstanding_max_millionths: AtomicU64,
}

#[derive(Debug)]
struct Owner {
    kept: Arc<Kept>,
    /// What there was to spend when the lease was last renewed, and when that was.
    chunk: u64,
    since: Instant,
    /// When what is left is given back.
    expires: Instant,
    /// What was charged and when, the latest first: as far back as what is left can be of.
    charges: Charges,
}

/// Bound: what is left is seldom of more than two; of the rest nothing is given back.
type Charges = ArrayVec<(Micros, u64), 8>;

impl Leases {
    pub(super) fn new() -> Leases {
        Leases {
            places: Places::new(KEYS),
            sketch: Sketch::new(),
            lent: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            unused: AtomicU64::new(0),
            outstanding_max_millionths: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether there may be budget for this.
    pub(super) fn covers(&self, tag: u64, units: u64) -> bool {
        self.places.find(tag).is_some_and(|place| place.units() >= units)
    }

    /// Takes back what was spent and then not used.
    pub(super) fn put_back(&self, tag: u64, units: u64) -> bool {
        self.places.find(tag).is_some_and(|place| place.add(tag, units, |_| true))
    }

    /// Drops what a key has borrowed: it begins anew.
    pub(super) fn drop_lease(&self, tag: u64) {
        if let Some(place) = self.places.find(tag) {
            self.unused.fetch_add(place.drain(tag), Ordering::Relaxed);
        }
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.leases = self.places.taken().filter(|(_, place)| place.units() > 0).count() as u64;
        stats.units_lent = count(&self.lent);
        stats.units_returned = count(&self.returned);
        stats.units_unused = count(&self.unused);
        stats.outstanding_max_millionths = count(&self.outstanding_max_millionths);
    }

    fn saw_outstanding(&self, units: u64, limit: &Limit) {
        let part = u128::from(units) * 1_000_000 / u128::from(limit.capacity());
        self.outstanding_max_millionths.fetch_max(part as u64, Ordering::Relaxed);
    }
}

impl<R: Remote> Inner<R> {
    /// Answers a usual take from borrowed budget, if there is enough.
    #[inline]
    pub(super) fn spend_lease(
        self: &Arc<Self>,
        check: &Check<'_>,
        tag: u64,
        now: Micros,
    ) -> Option<Outcome> {
        let place = self.leases.places.find(tag)?;
        let (outcome, left) = place.spend(tag, check.units(), |facts| answer(facts, check, now))?;
        // Asked for once: if nothing comes, the rest is spent and then the store is asked.
        let low = &place.facts[LOW];
        if left < low.load(Ordering::Relaxed) && low.swap(0, Ordering::Relaxed) > 0 {
            self.renew_lease(check, tag, place);
        }
        let capacity = check.limit().capacity();
        Some(Outcome { remaining: outcome.remaining.saturating_add(left).min(capacity), ..outcome })
    }

    /// Half of a lease is spent: what comes next is asked for while the rest lasts.
    #[cold]
    fn renew_lease(self: &Arc<Self>, check: &Check<'_>, tag: u64, place: &Place<Owner>) {
        let pace = place.owner().as_ref().map(|owner| {
            let spent = owner.chunk.saturating_sub(place.units());
            let lasted_us = (Instant::now() - owner.since).as_micros().max(1_000);
            (u128::from(spent) * u128::from(2 * FADE_US) / lasted_us) as u64
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
        let asked = self.leases.sketch.observe(tag, now);
        if asked >= BUSY && outcome.allowed && check.what() == Act::Take {
            self.borrow_soon(check, tag, asked.saturating_mul(check.units()), outcome.remaining);
        }
    }

    /// Borrows up to `wanted` in the background, unless that is being done.
    fn borrow_soon(self: &Arc<Self>, check: &Check<'_>, tag: u64, wanted: u64, remaining: u64) {
        if self.leases.places.find(tag).is_some_and(Place::is_busy) {
            return;
        }
        let Some(terms) = LeaseTerms::of(check).filter(|_| Kept::has_room_for(check)) else {
            return;
        };
        let mine = (terms.most / u64::from(self.live())).min(UNITS_MAX / 2);
        // The last of a limit is not lent: whoever is refused is refused for what is spent.
        let wanted = wanted.min(mine).min(remaining.saturating_sub(terms.most));
        if wanted < LEAST {
            return;
        }
        let kept = || Arc::new(Kept::of(check));
        let owner = || {
            let now = Instant::now();
            Owner { kept: kept(), chunk: 0, since: now, expires: now, charges: Charges::new() }
        };
        let Some(number) = self.leases.places.claim_busy(tag, owner) else { return };
        let (busy, kept) = (Busy { inner: Arc::clone(self), number }, kept());
        self.runtime.spawn(async move {
            let place = busy.inner.leases.places.at(busy.number);
            busy.inner.borrow(&kept, place, wanted, terms).await;
        });
    }

    async fn borrow(&self, kept: &Kept, place: &Place<Owner>, wanted: u64, terms: LeaseTerms) {
        let check = kept.check();
        let asked = self.asked(&check);
        let held = place.units();
        // Both clocks are read before the store reads its own: what is held here ends first.
        let (now, started) = (self.pace.now(), Instant::now());
        let lend = Lend {
            instance: self.instance,
            held,
            more: wanted.saturating_sub(held),
            least: LEAST,
            most: terms.most,
            lasts_us: terms.lasts_us,
        };
        if lend.more < LEAST {
            return;
        }
        let Ok(lent) = asked.store.lend(&check, lend).await else { return };
        self.leases.saw_outstanding(lent.outstanding, check.limit());
        if lent.granted < LEAST {
            return;
        }
        let taking = check.cost(lent.granted).act(Act::Take);
        let Some(outcome) = self.take_lent(&taking, now).await else { return };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut() else { return };
        let until = now.after(Wait::from_micros(terms.lasts_us));
        let chunk = place.units() + lent.granted;
        (owner.chunk, owner.since) = (chunk, Instant::now());
        remember_charge(&mut owner.charges, (outcome.served_at, lent.granted), chunk);
        owner.expires = started + Duration::from_micros(terms.lasts_us);
        let facts = facts(until, &outcome, now, chunk / 2);
        place.renew(|left, _| (facts, left + lent.granted));
    }

    /// Takes what was lent; `None`: there is nothing to spend.
    async fn take_lent(&self, taking: &Check<'_>, now: Micros) -> Option<Outcome> {
        let asked = self.asked(taking);
        let mut seen = Seen::default();
        match asked.store.take_lent(taking, now, &mut seen).await {
            Ok(outcome) if outcome.allowed => {
                asked.saw(seen.at, self.pace.now());
                self.copy_state(taking, &seen, 0);
                self.refusals.forget(self.tag(taking));
                self.leases.lent.fetch_add(taking.units(), Ordering::Relaxed);
                Some(outcome)
            }
            // Perhaps it is charged, and nobody will spend it.
            Err(error) if !error.class.certainly_not_done() => {
                for counter in [&self.leases.lent, &self.leases.unused] {
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
        for (tag, place) in self.leases.places.taken() {
            let Some((kept, mut left, charges)) = end_lease(tag, place, all, now) else { continue };
            self.leases.places.release(tag, |_| true);
            place.rest();
            for (charged_at, units) in charges {
                let units = units.min(left);
                left -= units;
                if units > 0 {
                    self.give_back_lease(&kept, units, charged_at).await;
                }
            }
            self.leases.unused.fetch_add(left, Ordering::Relaxed);
        }
    }

    async fn give_back_lease(self: &Arc<Self>, kept: &Kept, left: u64, charged_at: Micros) {
        let check = kept.check();
        let when = self.asked(&check).when(self.pace.now().into());
        let debt = self.debt(&check, LateKind::Refund, left, charged_at);
        let told = self.tell(debt, when).await;
        let counter = if told { &self.leases.returned } else { &self.leases.unused };
        counter.fetch_add(left, Ordering::Relaxed);
    }
}

/// Ends a lease whose time has come; what is left of it, and of which charges that can be. It stays busy.
fn end_lease(
    tag: u64,
    place: &Place<Owner>,
    all: bool,
    now: Instant,
) -> Option<(Arc<Kept>, u64, Charges)> {
    let mut owner = place.owner();
    let owned = owner.as_mut().filter(|owner| all || owner.expires <= now)?;
    if !place.make_busy() {
        return None;
    }
    let (kept, charges) = (Arc::clone(&owned.kept), std::mem::take(&mut owned.charges));
    drop(owner);
    Some((kept, place.drain(tag), charges))
}

/// Adds a charge, and drops those that are spent whole: of `left` units, the latest come last.
fn remember_charge(charges: &mut Charges, charge: (Micros, u64), left: u64) {
    charges.truncate(charges.capacity() - 1);
    charges.insert(0, charge);
    let mut sum = 0;
    charges.retain(|(_, units)| {
        let needed = sum < left;
        sum += *units;
        needed
    });
}

/// What a rule lends of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseTerms {
    /// All instances together hold no more.
    most: u64,
    lasts_us: u64,
}

impl LeaseTerms {
    /// `None`: nothing is lent.
    fn of(check: &Check<'_>) -> Option<LeaseTerms> {
        let limit = check.limit();
        let Consistency::Leased { millionths } = check.its_terms().consistency else { return None };
        let most = u128::from(limit.capacity()) * u128::from(millionths) / 1_000_000;
        let period = limit.period().as_micros();
        let memory = match limit.algorithm().is_bucket() {
            true => u128::from(limit.capacity()) * period / u128::from(limit.units()),
            false => period,
        };
        // What is held must not outlive what it is of.
        let lasts_us = u128::from(LEASE_US_MAX).min(memory / 2) as u64;
        let lends = most >= LEAST.into() && lasts_us >= LASTS_US_MIN && !limit.is_queue();
        lends.then_some(LeaseTerms { most: most as u64, lasts_us })
    }
}

/// Makes sure that a place that is being asked for can be asked for again, whatever happens, and whoever
/// has it then.
struct Busy<R> {
    inner: Arc<Inner<R>>,
    number: usize,
}

impl<R> Drop for Busy<R> {
    fn drop(&mut self) {
        self.inner.leases.places.at(self.number).rest();
        self.inner.wake.notify_one();
    }
}

/// What answers are made of while a lease lasts.
fn facts(until: Micros, outcome: &Outcome, now: Micros, low: u64) -> [u64; FACTS] {
    let mut facts = [0; FACTS];
    facts[UNTIL] = until.as_u64();
    facts[REMAINING] = outcome.remaining;
    facts[RESET_AT] = now.after(outcome.reset_after).as_u64();
    facts[MORE_AT] = now.after(outcome.more_after).as_u64();
    facts[CHARGED_AT] = outcome.served_at.as_u64();
    facts[LOW] = low;
    facts
}

/// The answer to a take, but for what is left here; `None` when the lease has ended.
#[inline]
fn answer(facts: &[AtomicU64; FACTS], check: &Check<'_>, now: Micros) -> Option<Outcome> {
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
        let mut charges = Charges::new();
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
            let wanted = (most > 0).then_some(LeaseTerms { most, lasts_us: lasts });
            assert_eq!(lent, wanted, "{text}");
        }
        let limit: Limit = "1000/second".parse().unwrap();
        assert_eq!(LeaseTerms::of(&Check::new(&limit, "a")), None, "strict");
    }
}
