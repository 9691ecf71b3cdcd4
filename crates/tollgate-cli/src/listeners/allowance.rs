//! A memory budget that all connections of a listener share, for buffers that a bound per connection would make too large
//! in total: unread replies and incomplete bodies.
//!
//! Each holder has a few bytes of its own, and takes more from the shared part for as long as it needs them. Bytes of
//! content are counted; the memory behind them may be twice as large.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds of an allowance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllowanceLimits {
    /// Bytes that each holder may always keep.
    pub(crate) own_bytes: usize,
    /// Maximum bytes of one holder.
    pub(crate) each_bytes_max: usize,
    /// Maximum bytes of all holders together, beyond their own.
    pub(crate) all_bytes_max: usize,
    /// Step in which holders take from the shared part.
    pub(crate) step_bytes: usize,
}

/// The shared part of an allowance.
#[derive(Debug)]
pub(crate) struct SharedAllowance {
    limits: AllowanceLimits,
    taken: AtomicUsize,
}

impl SharedAllowance {
    pub(crate) fn new(limits: AllowanceLimits) -> Arc<SharedAllowance> {
        Arc::new(SharedAllowance { limits, taken: AtomicUsize::new(0) })
    }
}

/// The part that one holder has taken. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Allowance {
    shared: Arc<SharedAllowance>,
    taken: usize,
}

impl Allowance {
    pub(crate) fn new(shared: &Arc<SharedAllowance>) -> Allowance {
        Allowance { shared: shared.clone(), taken: 0 }
    }

    /// Returns true if this many bytes may be kept; takes more from the shared part if needed.
    #[inline]
    pub(crate) fn try_cover(&mut self, bytes: usize) -> bool {
        bytes < self.shared.limits.own_bytes + self.taken || self.extend(bytes)
    }

    #[cold]
    fn extend(&mut self, bytes: usize) -> bool {
        let AllowanceLimits { own_bytes, each_bytes_max, all_bytes_max, step_bytes: step } =
            self.shared.limits;
        let more = (bytes + 1 - own_bytes - self.taken).next_multiple_of(step);
        if own_bytes + self.taken + more > each_bytes_max {
            return false;
        }
        let room = |all: usize| (all + more <= all_bytes_max).then_some(all + more);
        if self.shared.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        self.taken += more;
        true
    }

    /// Returns true if this many bytes may be kept instead of the previous ones; gives back the excess.
    pub(crate) fn try_resize(&mut self, bytes: usize) -> bool {
        if self.taken > 0 {
            let AllowanceLimits { own_bytes, step_bytes: step, .. } = self.shared.limits;
            let needed = (bytes + 1).saturating_sub(own_bytes).next_multiple_of(step);
            let excess = self.taken.saturating_sub(needed);
            self.shared.taken.fetch_sub(excess, Ordering::Relaxed);
            self.taken -= excess;
        }
        self.try_cover(bytes)
    }

    /// Gives everything back.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.taken > 0 {
            self.shared.taken.fetch_sub(self.taken, Ordering::Relaxed);
            self.taken = 0;
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AllowanceLimits = AllowanceLimits {
        own_bytes: 64 << 10,
        each_bytes_max: 16 << 20,
        all_bytes_max: 64 << 20,
        step_bytes: 256 << 10,
    };

    #[test]
    fn one_and_all_are_bounded_and_what_is_given_back_is_there_again() {
        let shared = SharedAllowance::new(LIMITS);
        let most = |allowance: &mut Allowance| {
            (0..).step_by(1 << 10).find(|bytes| !allowance.try_cover(*bytes)).unwrap()
        };
        let mut greedy: Vec<_> = (0..8).map(|_| Allowance::new(&shared)).collect();
        let kept: Vec<usize> = greedy.iter_mut().map(most).collect();
        let each = LIMITS.own_bytes..=LIMITS.each_bytes_max;
        assert!(kept.iter().all(|bytes| each.contains(bytes)), "{kept:?}");
        assert!(kept[0] > LIMITS.each_bytes_max - LIMITS.step_bytes, "one alone has plenty");
        assert_eq!(*kept.last().unwrap(), LIMITS.own_bytes, "{kept:?}");
        let own = kept.len() * LIMITS.own_bytes;
        assert!(kept.iter().sum::<usize>() <= LIMITS.all_bytes_max + own);
        greedy.pop();
        greedy[0].release();
        let taken = shared.taken.load(Ordering::Relaxed);
        assert!(
            greedy[1].try_resize(LIMITS.own_bytes) && greedy[2].try_resize(0),
            "less always fits"
        );
        assert_eq!((greedy[1].taken, greedy[2].taken), (LIMITS.step_bytes, 0));
        assert!(shared.taken.load(Ordering::Relaxed) < taken);
        assert!(!greedy[1].try_resize(LIMITS.each_bytes_max + 1));
        drop(greedy);
        assert_eq!(shared.taken.load(Ordering::Relaxed), 0);
    }
}
