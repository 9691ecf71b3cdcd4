//! `Tally`: what a rule has said so far, counted without a line that all threads write.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// The most stripes of a tally: more would make a rule's tally larger than its limits.
const STRIPES_MAX: usize = 32;

/// About one for each processor, a power of two.
static STRIPES: LazyLock<usize> = LazyLock::new(|| {
    available_parallelism().map_or(1, NonZeroUsize::get).next_power_of_two().min(STRIPES_MAX)
});

/// What a rule says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its limits have room.
    Allowed,
    /// One of them has not: the request is refused.
    Refused,
    /// The same, but the rule is in shadow, or not enforced for this caller.
    Shadow,
    /// The same, but the rule only warns.
    Soft,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 4] =
        [Verdict::Allowed, Verdict::Refused, Verdict::Shadow, Verdict::Soft];

    /// What metrics and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
            Verdict::Shadow => "shadow",
            Verdict::Soft => "soft",
        }
    }
}

/// Counts the verdicts of one rule.
#[derive(Debug)]
pub struct Tally {
    /// Each thread writes its own, so that deciding shares no line of memory.
    stripes: Box<[Stripe]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe([AtomicU64; Verdict::ALL.len()]);

impl Default for Tally {
    fn default() -> Tally {
        Tally { stripes: (0..*STRIPES).map(|_| Stripe::default()).collect() }
    }
}

impl Tally {
    /// Counts one.
    #[inline]
    pub(crate) fn add(&self, verdict: Verdict) {
        let stripe = &self.stripes[stripe_of_thread() % self.stripes.len()];
        stripe.0[verdict as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often the rule said so.
    pub fn count(&self, verdict: Verdict) -> u64 {
        let counts = self.stripes.iter().map(|stripe| &stripe.0[verdict as usize]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Threads take stripes in turn.
#[inline]
fn stripe_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static STRIPE: Cell<Option<usize>> = const { Cell::new(None) });
    STRIPE.with(|stripe| {
        stripe.get().unwrap_or_else(|| {
            let taken = THREADS.fetch_add(1, Ordering::Relaxed);
            stripe.set(Some(taken));
            taken
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_between_threads() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| (0..1_000).for_each(|_| tally.add(Verdict::Refused)));
            }
        });
        tally.add(Verdict::Soft);
        let counts = Verdict::ALL.map(|verdict| tally.count(verdict));
        assert_eq!(counts, [0, 40_000, 0, 1]);
    }
}
