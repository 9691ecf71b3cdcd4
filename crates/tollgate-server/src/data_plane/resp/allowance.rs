//! How much the replies of all clients together may take up.
//!
//! A client that sends many commands before it reads the first reply is common: clients send whole
//! pipelines. Its replies have to wait somewhere, or both sides would wait for each other. So a
//! connection may keep more than its own share, as long as all of them together stay below a bound. What
//! is counted are bytes of replies; the memory they lie in may be twice that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What every connection may keep.
pub(super) const OWN_BYTES: usize = 64 << 10;
/// What one connection may keep at most,
pub(super) const EACH_BYTES_MAX: usize = 16 << 20;
/// and all of them together, beyond what each may keep.
pub(super) const ALL_BYTES_MAX: usize = 64 << 20;
/// Taken so much at a time.
const STEP_BYTES: usize = 256 << 10;

/// What is taken of the common part.
#[derive(Debug, Default)]
pub(super) struct Common(AtomicUsize);

/// What one connection has taken. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Allowance {
    common: Arc<Common>,
    taken: usize,
}

impl Allowance {
    pub(super) fn new(common: &Arc<Common>) -> Allowance {
        Allowance { common: common.clone(), taken: 0 }
    }

    /// Whether so many bytes may wait; takes more of the common part if it has to.
    #[inline]
    pub(super) fn covers(&mut self, bytes: usize) -> bool {
        bytes < OWN_BYTES + self.taken || self.extend(bytes)
    }

    #[cold]
    fn extend(&mut self, bytes: usize) -> bool {
        while bytes >= OWN_BYTES + self.taken {
            let step = STEP_BYTES;
            if OWN_BYTES + self.taken + step > EACH_BYTES_MAX {
                return false;
            }
            let room = |all: usize| (all + step <= ALL_BYTES_MAX).then_some(all + step);
            if self.common.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
                return false;
            }
            self.taken += step;
        }
        true
    }

    /// Gives everything back: nothing waits any longer.
    #[inline]
    pub(super) fn give_back(&mut self) {
        if self.taken > 0 {
            self.common.0.fetch_sub(self.taken, Ordering::Relaxed);
            self.taken = 0;
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_all_are_bounded_and_what_is_given_back_is_there_again() {
        let common = Arc::<Common>::default();
        let most = |allowance: &mut Allowance| {
            (0..).step_by(1 << 10).find(|bytes| !allowance.covers(*bytes)).unwrap()
        };
        let mut greedy: Vec<_> = (0..8).map(|_| Allowance::new(&common)).collect();
        let kept: Vec<usize> = greedy.iter_mut().map(most).collect();
        assert!(kept.iter().all(|bytes| (OWN_BYTES..=EACH_BYTES_MAX).contains(bytes)), "{kept:?}");
        assert!(kept[0] > EACH_BYTES_MAX - STEP_BYTES, "one alone has plenty: {kept:?}");
        assert_eq!(*kept.last().unwrap(), OWN_BYTES, "{kept:?}");
        assert!(kept.iter().sum::<usize>() <= ALL_BYTES_MAX + kept.len() * OWN_BYTES);
        greedy.pop();
        greedy[0].give_back();
        drop(greedy);
        assert_eq!(common.0.load(Ordering::Relaxed), 0);
    }
}
