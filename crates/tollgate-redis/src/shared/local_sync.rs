//! `consistency: local_sync`: this instance decides by itself, and tells the store every so often.
//!
//! A key's first question goes to the store, which brings its state here. From then on it is decided in
//! the table of this process, by the whole limit; the units that pass are written down in the key's
//! place. Once an interval they are charged to the store in one forced taking, and the state that comes
//! back, with what passed meanwhile, takes the place of the one here. So each instance knows of the
//! others what they had told an interval ago.
//!
//! A store that cannot be told is not trusted to be asked either: until it answers again, the key's
//! questions go to it, fail, and are answered as the check's terms say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Act, Check, Consistency, Limit, Micros, Now, Outcome, Receipt, algorithm};

use crate::remote::{Remote, Seen};

use super::kept::Kept;
use super::places::{Place, Places};
use super::{Inner, SharedStats, TICK};

/// Bound: so many keys; one more is decided by the store.
const KEYS: usize = 4_096;
/// So many stores' answers are waited for at once.
const TELLING_MAX: usize = 256;
/// After so many intervals without anything to tell, a key is asked about at the store again.
const IDLE_INTERVALS: u32 = 2;
/// The fact of a place: by which numbers decisions may be made here; 0 by none.
const READY: usize = 0;

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
    kept: Arc<Kept>,
    /// When the store is told next.
    due: Instant,
    idle: u32,
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
    pub(super) fn add(&self, tag: u64, units: u64) -> bool {
        self.places.find(tag).is_some_and(|place| place.add(tag, units))
    }

    /// Forgets what the store was to be told: the key begins anew.
    pub(super) fn drop_untold(&self, tag: u64) {
        if let Some(place) = self.places.find(tag) {
            place.drain();
        }
    }

    pub(super) fn add_to(&self, stats: &mut SharedStats) {
        for (_, place) in self.places.taken() {
            stats.sync_keys += 1;
            stats.sync_units_untold += place.units();
        }
        stats.sync_failures = self.failures.load(Ordering::Relaxed);
        stats.sync_units_unsure = self.units_unsure.load(Ordering::Relaxed);
        stats.sync_without_room = self.without_room.load(Ordering::Relaxed);
    }
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
        if units > 0 && !self.sync.add(tag, units) {
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
            kept: Arc::new(Kept::of(check)),
            due: due_of(check, Instant::now()),
            idle: 0,
        };
        match self.sync.places.claim(tag, owner) {
            Some(place) => {
                place.facts[READY].store(numbers(check.limit()), Ordering::Release);
                self.wake.notify_one();
            }
            None => {
                self.sync.without_room.fetch_add(1, Ordering::Relaxed);
            }
        }
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
        let receipt = receipt.map(copy_of);
        let at = self.asked(check).clock(now);
        self.local.refund(check.limit(), check.key(), receipt, units, at);
        let Some(place) = self.sync.places.find(tag) else { return units };
        let untold = units.min(place.units());
        let taken = place.spend(tag, untold, |_| Some(())).map_or(0, |_| untold);
        units - taken
    }

    /// Tells the store what was decided here, of keys whose interval is over or of all.
    pub(super) async fn tell(self: &Arc<Self>, all: bool) {
        let mut telling = JoinSet::new();
        let now = Instant::now();
        for (tag, place) in self.sync.places.taken() {
            match untold(place, all, now) {
                Untold::Units(kept, units) => {
                    let inner = Arc::clone(self);
                    telling.spawn(async move { inner.tell_one(tag, &kept, units).await });
                }
                Untold::Idle => {
                    self.sync.places.release(tag);
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
    pub(super) async fn tell_before(&self, check: &Check<'_>, tag: u64) {
        let synced = matches!(check.its_terms().consistency, Consistency::LocalSync { .. });
        let place = synced.then(|| self.sync.places.find(tag)).flatten();
        let Some(place) = place else { return };
        let changed = {
            let mut owner = place.owner();
            let other = owner.as_mut().filter(|owner| !owner.kept.is_of(check.limit()));
            other.map(|owner| {
                place.facts[READY].store(0, Ordering::Release);
                std::mem::replace(&mut owner.kept, Arc::new(Kept::of(check)))
            })
        };
        let Some(before) = changed else { return };
        self.refusals.forget(tag);
        let units = place.drain();
        if units > 0 {
            self.tell_one(tag, &before, units).await;
        }
    }

    /// Charges units that have passed here, and learns how the key stands.
    async fn tell_one(&self, tag: u64, kept: &Kept, units: u64) {
        let check = kept.check().cost(units).act(Act::Force);
        let asked = self.asked(&check);
        let (mut outcome, mut seen) = ([Outcome::default()], Seen::default());
        let now = self.pace.now();
        let told = asked.store.decide_seen(&[check], now, &mut outcome, &mut seen).await;
        let Some(place) = self.sync.places.find(tag) else { return };
        match (told, seen.states.pop()) {
            (Ok(_), Some(mut state)) => {
                // What passed while the store was being told is not in its state yet.
                algorithm::charge(check.limit(), &mut state, place.units(), seen.at);
                self.local.seed(check.limit(), check.key(), &state, seen.at);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                self.sync.failures.fetch_add(1, Ordering::Relaxed);
                place.facts[READY].store(0, Ordering::Release);
                // Perhaps it did hear it. To say it again and again, as long as it does not answer,
                // would charge it as often.
                if !error.class.certainly_not_done() || !place.add(tag, units) {
                    self.sync.units_unsure.fetch_add(units, Ordering::Relaxed);
                }
            }
        }
    }
}

/// What a place has to tell now.
enum Untold {
    Units(Arc<Kept>, u64),
    Nothing,
    /// Nothing for a while: the key can do without its place.
    Idle,
}

fn untold(place: &Place<Owner>, all: bool, now: Instant) -> Untold {
    let mut owner = place.owner();
    let Some(owner) = owner.as_mut().filter(|owner| all || owner.due <= now) else {
        return Untold::Nothing;
    };
    owner.due = due_of(&owner.kept.check(), now);
    let units = place.drain();
    owner.idle = if units == 0 { owner.idle + 1 } else { 0 };
    match owner.idle {
        0 => Untold::Units(Arc::clone(&owner.kept), units),
        IDLE_INTERVALS.. => Untold::Idle,
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
