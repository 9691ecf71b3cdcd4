//! `consistency: local_sync`: this instance decides by itself, and tells the store every so often.
//!
//! A key's first question goes to the store, which brings its state here. From then on it is decided in
//! the table of this process, by the whole limit; the units that pass are written down in the key's
//! place, those of one *stretch* of time together: a window, or a part of a period. Once an interval the
//! store is told of them, each stretch as of its own instant, so that what passed in one window is never
//! charged to the next. The state that comes back, with what passed meanwhile, takes the place of the
//! one here. So each instance knows of the others what they had told an interval ago.
//!
//! A store that cannot be told is not trusted to be asked either: until it answers again, the key's
//! questions go to it, fail, and are answered as the check's terms say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Algorithm, Check, Consistency, Limit, Micros, Now, Outcome, Precision, Receipt};

use crate::late;
use crate::remote::{LateKind, LateUnits, Remote, StateName, When};

use super::kept::Kept;
use super::lasting::LastingWork;
use super::places::{FACTS, Place, Places, UNITS_MAX};
use super::{Inner, SharedStats, TICK};

/// Bound: so many keys, 4 MB of them at most; one more, or a longer one, is decided by the store.
const KEYS: usize = 4_096;
/// So many stores' answers are waited for at once.
const TELLING_MAX: usize = 256;
/// After so many intervals without anything to tell, a key is asked about at the store again.
const IDLE_INTERVALS: u32 = 2;
/// Where there are no windows, a stretch is this part of what a limit remembers.
const STRETCHES: u64 = 16;

/// The facts of a place: by which numbers decisions may be made here (0 by none), when the present
/// stretch begins and ends, and the latest instant of its units. By the store's clock.
const READY: usize = 0;
const FROM: usize = 1;
const TILL: usize = 2;
const LAST: usize = 3;

/// What stands for the numbers of a limit.
fn numbers(limit: &Limit) -> u64 {
    limit.fingerprint() | 1
}

/// Keys that are decided here.
#[derive(Debug)]
pub(super) struct SyncBook {
    places: Places<Owner>,
    failures: AtomicU64,
    units_unsure: AtomicU64,
    without_room: AtomicU64,
}

#[derive(Debug)]
struct Owner {
    /// Whose place it is.
    tag: u64,
    kept: Arc<Kept>,
    /// When the store is told next.
    due: Instant,
    idle: u32,
    /// What passed in stretches that are over.
    past: Passed,
}

/// Units that passed in one stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    from: u64,
    /// Its end, which is not part of it.
    till: u64,
    /// The latest instant of its units.
    last: u64,
    units: u64,
}

/// Bound: `PASSED_MAX`, twice as many as matter to any limit; the oldest of more is of a time that it has
/// forgotten.
type Passed = Vec<Stretch>;
const PASSED_MAX: usize = 2 * STRETCHES as usize;

impl Stretch {
    /// The stretch that begins with a charge of so many units. `at` is the instant it was asked at.
    pub(super) fn of(limit: &Limit, outcome: &Outcome, at: Micros, units: u64) -> Stretch {
        let from = outcome.served_at.as_u64();
        let till = match (limit.algorithm(), limit.precision()) {
            // Until the window ends: waits count from the asker's clock.
            (Algorithm::FixedWindow, _) => at.after(outcome.reset_after).as_u64(),
            (Algorithm::SlidingWindowCounter, Precision::Estimate) => {
                (from / limit.period_us() + 1).saturating_mul(limit.period_us())
            }
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, _) => {
                from.saturating_add(limit.full_refill_us() / STRETCHES)
            }
            _ => from.saturating_add(limit.period_us() / STRETCHES),
        };
        Stretch { from, till: till.max(from + 1), last: from, units }
    }

    fn holds(&self, instant: u64) -> bool {
        (self.from..self.till).contains(&instant)
    }

    /// As the store is told. Within a window every instant is the same, and the first may have opened it;
    /// elsewhere the latest may refuse a little more and never admits more.
    fn late(&self, limit: &Limit) -> LateUnits {
        let at = match limit.algorithm() {
            Algorithm::FixedWindow => self.from,
            _ => self.last.clamp(self.from, self.till - 1),
        };
        LateUnits { units: self.units, at: Micros::new(at), kind: LateKind::Charge }
    }
}

impl Owner {
    /// Writes down a stretch that is over.
    fn keep(&mut self, stretch: Stretch) {
        if stretch.units == 0 {
            return;
        }
        if let Some(same) = self.past.iter_mut().find(|one| one.holds(stretch.from)) {
            same.units = same.units.saturating_add(stretch.units);
            same.last = same.last.max(stretch.last);
            return;
        }
        if self.past.len() >= PASSED_MAX {
            self.past.remove(0);
        }
        self.past.push(stretch);
    }

    /// Takes up to `units` out of what passed at an instant, or at any; how many.
    fn take_back(&mut self, units: u64, at: Option<u64>) -> u64 {
        let mut left = units;
        let of_it = |one: &&mut Stretch| at.is_none_or(|at| one.holds(at));
        for stretch in self.past.iter_mut().rev().filter(of_it) {
            let taken = left.min(stretch.units);
            stretch.units -= taken;
            left -= taken;
        }
        self.past.retain(|stretch| stretch.units > 0);
        units - left
    }

    fn units(&self) -> u64 {
        self.past.iter().map(|stretch| stretch.units).sum()
    }
}

/// The stretch that a place is in, with so many units.
fn present(facts: &[AtomicU64; FACTS], units: u64) -> Stretch {
    let [from, till, last] = [FROM, TILL, LAST].map(|fact| facts[fact].load(Ordering::Relaxed));
    Stretch { from, till: till.max(from + 1), last, units }
}

/// Ends the present stretch of a place, and begins another or none. Call with its owner locked.
fn end_stretch(place: &Place<Owner>, owner: &mut Owner, next: Option<Stretch>) {
    place.renew(|left, facts| {
        owner.keep(present(facts, left));
        let mut new = [0; FACTS];
        new[READY] = facts[READY].load(Ordering::Relaxed);
        if let Some(Stretch { from, till, last, .. }) = next {
            (new[FROM], new[TILL], new[LAST]) = (from, till, last);
        }
        (new, next.map_or(0, |next| next.units))
    });
}

impl SyncBook {
    pub(super) fn new() -> SyncBook {
        SyncBook {
            places: Places::new(KEYS),
            failures: AtomicU64::new(0),
            units_unsure: AtomicU64::new(0),
            without_room: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether a key is decided here.
    #[inline]
    pub(super) fn is_ready(&self, tag: u64, limit: &Limit) -> bool {
        let ready = |place: &Place<Owner>| place.facts[READY].load(Ordering::Acquire);
        self.places.find(tag).is_some_and(|place| ready(place) == numbers(limit))
    }

    /// Writes down what the store is to be told. `false`: the key has no place any more.
    #[inline]
    pub(super) fn add(&self, tag: u64, stretch: Stretch) -> bool {
        let Some(place) = self.places.find(tag) else { return false };
        add_to_present(place, tag, &stretch) || begin_stretch(place, tag, stretch)
    }

    /// Forgets what the store was to be told: the key begins anew.
    pub(super) fn drop_untold(&self, tag: u64) {
        if let Some(place) = self.places.find(tag)
            && let Some(owner) = place.owner().as_mut().filter(|owner| owner.tag == tag)
        {
            place.drain(tag);
            owner.past.clear();
        }
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        for (_, place) in self.places.taken() {
            let owner = place.owner();
            stats.sync_keys += 1;
            stats.sync_units_untold += place.units() + owner.as_ref().map_or(0, Owner::units);
        }
        stats.sync_failures = self.failures.load(Ordering::Relaxed);
        stats.sync_units_unsure = self.units_unsure.load(Ordering::Relaxed);
        stats.sync_without_room = self.without_room.load(Ordering::Relaxed);
    }
}

/// Adds units to the stretch that a place is in, if they are of it.
#[inline]
fn add_to_present(place: &Place<Owner>, tag: u64, stretch: &Stretch) -> bool {
    place.add(tag, stretch.units, |facts| {
        let of_it = present(facts, 0).holds(stretch.from);
        if of_it && facts[LAST].load(Ordering::Relaxed) < stretch.from {
            facts[LAST].fetch_max(stretch.from, Ordering::Relaxed);
        }
        of_it
    })
}

/// Ends the stretch that a place is in, and begins another.
#[cold]
fn begin_stretch(place: &Place<Owner>, tag: u64, stretch: Stretch) -> bool {
    let mut owner = place.owner();
    let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return false };
    if stretch.units > UNITS_MAX {
        return false;
    }
    if add_to_present(place, tag, &stretch) {
        // Another has begun it meanwhile.
    } else if stretch.from < place.facts[FROM].load(Ordering::Relaxed) {
        owner.keep(stretch);
    } else {
        end_stretch(place, owner, Some(stretch));
    }
    true
}

impl<R: Remote> Inner<R> {
    /// Decides a usual take here, if its key is one that is decided here.
    #[inline]
    pub(super) fn decide_alone(
        &self,
        check: &Check<'_>,
        tag: u64,
        now: Now<'_>,
    ) -> Option<Outcome> {
        if !self.sync.is_ready(tag, check.limit()) {
            return None;
        }
        let at = self.asked(check).clock_now(now);
        let outcome = self.local.decide_one(check, at).outcome();
        let units = match outcome.allowed {
            true => outcome.charged,
            false if check.counts_denied() => check.units(),
            false => 0,
        };
        let stretch = || Stretch::of(check.limit(), &outcome, at.instant(), units);
        if units > 0 && !self.sync.add(tag, stretch()) {
            // The place was given up in this very moment: the store decides.
            let receipt = Outcome { charged: units, ..outcome }.receipt();
            self.local.refund(check.limit(), check.key(), Some(receipt), units, at.instant());
            return None;
        }
        Some(outcome)
    }

    /// Decides a key here from now on: its state has just come from the store.
    pub(super) fn decide_here_from_now(&self, check: &Check<'_>, tag: u64) {
        let owner = || Owner {
            tag,
            kept: Arc::new(Kept::of(check)),
            due: due_of(check, Instant::now()),
            idle: 0,
            past: Passed::new(),
        };
        let room = Kept::has_room_for(check).then(|| self.sync.places.claim(tag, owner)).flatten();
        let Some(place) = room else {
            self.sync.without_room.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // It may have been given up and to another since.
        if place.owner().as_ref().is_some_and(|owner| owner.tag == tag) {
            place.facts[READY].store(numbers(check.limit()), Ordering::Release);
        }
        self.wake.notify_one();
    }

    /// Gives back what was charged here; the units that the store knows of already are left to it.
    pub(super) fn refund_alone(
        &self,
        check: &Check<'_>,
        tag: u64,
        receipt: Option<&Receipt>,
        now: Micros,
    ) -> u64 {
        let units = receipt.map_or(u64::MAX, Receipt::granted).min(check.units());
        let charged_at = receipt.map(|receipt| receipt.charged_at().as_u64());
        let at = self.asked(check).clock(now);
        self.local.refund(check.limit(), check.key(), receipt.map(copy_of), units, at);
        let Some(place) = self.sync.places.find(tag) else { return units };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return units };
        let untold = units.min(place.units());
        let of_it = |facts: &[AtomicU64; FACTS]| {
            charged_at.is_none_or(|at| present(facts, 0).holds(at)).then_some(())
        };
        let taken = place.spend(tag, untold, of_it).map_or(0, |_| untold);
        if taken > 0 && place.units() == 0 {
            // The next charge may open a window of its own.
            end_stretch(place, owner, None);
        }
        units - taken - owner.take_back(units - taken, charged_at)
    }

    /// Tells the store what was decided here, of keys whose interval is over or of all.
    pub(super) async fn tell_synced(self: &Arc<Self>, all: bool) {
        let mut telling = JoinSet::new();
        let now = Instant::now();
        for (_, place) in self.sync.places.taken() {
            match untold(place, all, now) {
                Untold::Units(tag, kept, passed) => {
                    let inner = Arc::clone(self);
                    telling.spawn(async move { inner.tell_one(tag, &kept, passed, None).await });
                }
                Untold::Idle(tag) => {
                    self.sync.places.release(tag, |owner| owner.past.is_empty());
                }
                Untold::Nothing => {}
            }
            if telling.len() >= TELLING_MAX {
                telling.join_next().await;
            }
        }
        while telling.join_next().await.is_some() {}
    }

    /// The numbers of a key's limit have changed: what passed by the old ones is told before the store
    /// is asked by the new ones. Once: then the key is kept by the new ones.
    pub(super) async fn tell_before(self: &Arc<Self>, check: &Check<'_>, tag: u64, when: When) {
        let synced = matches!(check.its_terms().consistency, Consistency::LocalSync { .. });
        let place = synced.then(|| self.sync.places.find(tag)).flatten();
        let Some(place) = place else { return };
        let changed = {
            let mut owner = place.owner();
            let is_other =
                |owner: &&mut Owner| owner.tag == tag && !owner.kept.is_of(check.limit());
            owner.as_mut().filter(is_other).map(|owner| {
                place.facts[READY].store(0, Ordering::Release);
                end_stretch(place, owner, None);
                let before = std::mem::replace(&mut owner.kept, Arc::new(Kept::of(check)));
                (before, std::mem::take(&mut owner.past))
            })
        };
        let Some((before, passed)) = changed else { return };
        self.refusals.forget(tag);
        if !passed.is_empty() {
            // Whoever waits for it may go, and what passed has to be told all the same.
            let inner = Arc::clone(self);
            let telling = async move { inner.tell_one(tag, &before, passed, Some(when)).await };
            LastingWork::new(&self.runtime, telling).await;
        }
    }

    /// Charges units that have passed here, and learns how the key stands.
    async fn tell_one(&self, tag: u64, kept: &Kept, passed: Passed, when: Option<When>) {
        let check = kept.check();
        let asked = self.asked(&check);
        let limit = check.limit().for_key(check.key().as_bytes());
        let late: Vec<LateUnits> = passed.iter().map(|stretch| stretch.late(&limit)).collect();
        let when = when.unwrap_or_else(|| asked.when(self.pace.now().into()));
        let state = StateName { key: asked.store.hash(check.key()), twin: 0 };
        match asked.store.settle(state, &limit, &late, when).await {
            Ok(Some((mut state, at))) => {
                // What passed while the store was being told is not in its state yet.
                for stretch in self.untold_of(tag) {
                    late::apply(&limit, &mut state, stretch.late(&limit), at);
                }
                self.local.seed(check.limit(), check.key(), &state, at);
            }
            Ok(None) => {}
            Err(error) => {
                self.sync.failures.fetch_add(1, Ordering::Relaxed);
                let kept = self.could_not_tell(tag, &passed, error.certainly_not_done());
                if kept {
                    return;
                }
                // Perhaps it did hear it. To say it again and again, as long as it does not answer,
                // would charge it as often.
                for late in late {
                    let debt = self.debt(&check, late.kind, late.units, late.at);
                    if !error.certainly_not_done() || !self.owe(debt, when.now, &error) {
                        self.sync.units_unsure.fetch_add(late.units, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// What a key has to tell.
    fn untold_of(&self, tag: u64) -> Passed {
        let Some(place) = self.sync.places.find(tag) else { return Passed::new() };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else {
            return Passed::new();
        };
        end_stretch(place, owner, None);
        owner.past.clone()
    }

    /// Has the store asked about a key until it answers; if nothing was told, writes it down again. Whether
    /// it did.
    fn could_not_tell(&self, tag: u64, passed: &Passed, again: bool) -> bool {
        let Some(place) = self.sync.places.find(tag) else { return false };
        let mut owner = place.owner();
        let Some(owner) = owner.as_mut().filter(|owner| owner.tag == tag) else { return false };
        place.facts[READY].store(0, Ordering::Release);
        if again {
            let later = std::mem::take(&mut owner.past);
            passed.iter().chain(&later).for_each(|stretch| owner.keep(*stretch));
        }
        again
    }
}

/// What a place has to tell now.
enum Untold {
    Units(u64, Arc<Kept>, Passed),
    Nothing,
    /// Nothing for a while: the key can do without its place.
    Idle(u64),
}

fn untold(place: &Place<Owner>, all: bool, now: Instant) -> Untold {
    let mut owner = place.owner();
    let Some(owner) = owner.as_mut().filter(|owner| all || owner.due <= now) else {
        return Untold::Nothing;
    };
    owner.due = due_of(&owner.kept.check(), now);
    end_stretch(place, owner, None);
    owner.idle = if owner.past.is_empty() { owner.idle + 1 } else { 0 };
    match owner.idle {
        0 => Untold::Units(owner.tag, Arc::clone(&owner.kept), std::mem::take(&mut owner.past)),
        IDLE_INTERVALS.. => Untold::Idle(owner.tag),
        _ => Untold::Nothing,
    }
}

fn due_of(check: &Check<'_>, now: Instant) -> Instant {
    match check.its_terms().consistency {
        Consistency::LocalSync { interval_ms } => {
            now + Duration::from_millis(interval_ms.into()).max(TICK)
        }
        _ => now,
    }
}

/// A receipt is of one use; what is charged in two places is given back in both.
pub(super) fn copy_of(receipt: &Receipt) -> Receipt {
    Outcome {
        charged: receipt.granted(),
        served_at: receipt.charged_at(),
        decided_by: receipt.decided_by(),
        twin: receipt.twin(),
        ..Outcome::default()
    }
    .receipt()
}
