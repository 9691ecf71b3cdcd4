//! `Stripes`: one copy of a thing for each thread, or nearly, so that threads that count the same do
//! not wait for each other's caches.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// The most copies: each rule has a tally of as many.
const STRIPES_MAX: usize = 32;

/// Number of stripes: the processors, rounded up to a power of two, at most [`STRIPES_MAX`].
/// Threads beyond that share.
static STRIPES: LazyLock<usize> = LazyLock::new(|| {
    available_parallelism().map_or(1, NonZeroUsize::get).next_power_of_two().min(STRIPES_MAX)
});

/// Copies, each on cache lines of its own.
#[derive(Debug)]
pub struct Stripes<T>(Box<[Stripe<T>]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe<T>(T);

impl<T: Default> Default for Stripes<T> {
    fn default() -> Stripes<T> {
        Stripes((0..*STRIPES).map(|_| Stripe::default()).collect())
    }
}

impl<T> Stripes<T> {
    /// The copy of this thread.
    #[inline]
    pub fn mine(&self) -> &T {
        self.at(StripeNumber::of_thread())
    }

    /// The copy of the thread with this number.
    #[inline]
    fn at(&self, stripe: StripeNumber) -> &T {
        &self.0[stripe.0 & (self.0.len() - 1)].0
    }

    /// All copies.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

/// The number of a thread, looked up once for several counters.
#[derive(Clone, Copy, Debug)]
pub struct StripeNumber(usize);

impl StripeNumber {
    /// The number of this thread. Threads are numbered as they come here, so that the first ones share
    /// nothing.
    #[inline]
    pub fn of_thread() -> StripeNumber {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        const NONE: usize = usize::MAX;
        thread_local!(static NUMBER: Cell<usize> = const { Cell::new(NONE) });
        NUMBER.with(|number| {
            if number.get() == NONE {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            StripeNumber(number.get())
        })
    }
}

/// A fixed number of counters, each striped.
#[derive(Debug)]
pub struct StripedCounters<const N: usize>(Stripes<CounterRow<N>>);

#[derive(Debug)]
struct CounterRow<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for CounterRow<N> {
    fn default() -> CounterRow<N> {
        CounterRow([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> StripedCounters<N> {
        StripedCounters(Stripes::default())
    }
}

impl<const N: usize> StripedCounters<N> {
    /// Adds to one of them.
    #[inline]
    pub fn add(&self, index: usize, by: u64) {
        self.add_at(StripeNumber::of_thread(), index, by);
    }

    /// Adds to one of them in the stripe of this thread.
    #[inline]
    pub(crate) fn add_at(&self, stripe: StripeNumber, index: usize, by: u64) {
        self.0.at(stripe).0[index].fetch_add(by, Ordering::Relaxed);
    }

    /// The sum of each counter.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for row in self.0.all() {
            for (sum, counter) in sums.iter_mut().zip(&row.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn nothing_is_lost_between_more_threads_than_stripes() {
        let counters = StripedCounters::<3>::default();
        let threads = STRIPES_MAX + 3;
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..1_000).for_each(|turn| counters.add(turn % 2, 1)));
            }
        });
        let each = 500 * threads as u64;
        assert_eq!(counters.sums(), [each, each, 0]);
    }
}
