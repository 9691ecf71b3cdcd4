//! The blocks of all instances as this one knows them: looked at with every request, so they are
//! here and not only in the store.
//!
//! Keys are hashes, as they are in the store. While nobody is blocked, a request reads one number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tollgate::{Micros, Wait};

/// A key as the store has it: 128 bits of its hash.
pub type KeyHash = [u8; 16];

/// The most blocks at a time, here and in the store. One more fails at once.
pub const BLOCKS_MAX: usize = 65_536;

/// Requests look at different keys: few wait for the same lock, and only while one is written.
const SHARDS: usize = 64;

/// The blocks of all instances as this one knows them.
#[derive(Debug)]
pub struct Blocks {
    /// The end of the last block.
    until: AtomicU64,
    /// The end of each key's block. Bound: [`BLOCKS_MAX`] in all shards together.
    shards: [RwLock<HashMap<KeyHash, u64>>; SHARDS],
    len: AtomicUsize,
    /// Held during changes: the bound and the last end are those of all shards together.
    changing: Mutex<()>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        let shards = std::array::from_fn(|_| RwLock::default());
        let (until, len, changing) = Default::default();
        Blocks { until, shards, len, changing }
    }
}

impl Blocks {
    /// Blocks a key; a later end stays. `false`: there is no room.
    pub fn block(&self, hash: KeyHash, until: Micros, now: Micros) -> bool {
        self.insert(hash, now, |old| old.max(until.as_u64()))
    }

    /// Blocks a key until exactly then: what the store says, it says for everybody.
    pub fn set(&self, hash: KeyHash, until: Micros, now: Micros) -> bool {
        self.insert(hash, now, |_| until.as_u64())
    }

    fn insert(&self, hash: KeyHash, now: Micros, end: impl Fn(u64) -> u64) -> bool {
        let changing = self.changing();
        if self.len() >= BLOCKS_MAX && !self.read(hash).contains_key(&hash) {
            self.drop_ended(now, &changing);
            if self.len() >= BLOCKS_MAX {
                return false;
            }
        }
        let mut shard = self.write(hash);
        let old = shard.get(&hash).copied();
        let until = end(old.unwrap_or(0));
        shard.insert(hash, until);
        if old.is_none() {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        // After the entry is there: a reader of the new end finds it.
        self.until.fetch_max(until, Ordering::Release);
        true
    }

    /// Lifts a block. Whether there was one in force.
    pub fn unblock(&self, hash: KeyHash, now: Micros) -> bool {
        let _changing = self.changing();
        let removed = self.write(hash).remove(&hash);
        if removed.is_some() {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        removed.is_some_and(|until| until > now.as_u64())
    }

    /// The rest of a key's block.
    pub fn blocked(&self, hash: KeyHash, now: Micros) -> Option<Wait> {
        let until = self.read(hash).get(&hash).copied()?;
        let left = until.saturating_sub(now.as_u64());
        (left > 0).then_some(Wait::from_micros(left))
    }

    /// Returns false if certainly no key is blocked.
    #[inline]
    pub fn any(&self, now: Micros) -> bool {
        self.until.load(Ordering::Acquire) > now.as_u64()
    }

    /// Number of blocks, ended ones included until they are swept.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if there is no block.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops what has ended, and finds out when the last of the others ends: a long block that was
    /// lifted must not make every request look for one.
    pub fn sweep(&self, now: Micros) {
        self.drop_ended(now, &self.changing());
    }

    /// The clock that ends are counted by was set forward by so many microseconds: nothing ends
    /// earlier or later by that.
    pub fn move_ends(&self, by: i64) {
        if by == 0 {
            return;
        }
        let _changing = self.changing();
        let mut last = 0;
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            for until in shard.values_mut().filter(|until| **until < Micros::MAX.as_u64()) {
                *until = until.saturating_add_signed(by).min(Micros::MAX.as_u64());
            }
            last = shard.values().copied().fold(last, u64::max);
            // Before the next shard: a reader of this one finds its blocks.
            self.until.fetch_max(last, Ordering::Release);
        }
        self.until.store(last, Ordering::Release);
    }

    fn drop_ended(&self, now: Micros, _alone: &MutexGuard<'_, ()>) {
        let (mut left, mut last) = (0, 0);
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, until| *until > now.as_u64());
            left += shard.len();
            last = shard.values().copied().fold(last, u64::max);
        }
        self.len.store(left, Ordering::Relaxed);
        self.until.store(last, Ordering::Release);
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, hash: KeyHash) -> RwLockReadGuard<'_, HashMap<KeyHash, u64>> {
        self.shard(hash).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, hash: KeyHash) -> RwLockWriteGuard<'_, HashMap<KeyHash, u64>> {
        self.shard(hash).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, hash: KeyHash) -> &RwLock<HashMap<KeyHash, u64>> {
        &self.shards[usize::from(hash[0]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> KeyHash {
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        hash
    }

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    #[test]
    fn a_later_end_stays_unless_the_store_says_otherwise() {
        let blocks = Blocks::default();
        assert!(!blocks.any(at(0)));
        assert!(blocks.block(hash(1), at(10), at(0)));
        assert!(blocks.block(hash(1), at(5), at(0)));
        let left = |now: u64| blocks.blocked(hash(1), at(now)).and_then(Wait::seconds);
        assert_eq!((left(0), left(9), left(10)), (Some(10), Some(1), None));
        assert!(blocks.any(at(9)) && !blocks.any(at(10)));
        assert!(blocks.set(hash(1), at(5), at(0)));
        assert_eq!((left(4), left(5)), (Some(1), None));
        assert_eq!(blocks.blocked(hash(2), at(0)), None);
    }

    #[test]
    fn ends_move_with_the_clock_they_are_counted_by() {
        let blocks = Blocks::default();
        blocks.block(hash(1), at(10), at(0));
        blocks.block(hash(2), Micros::MAX, at(0));
        let left = |number, now| blocks.blocked(hash(number), at(now)).and_then(Wait::seconds);
        blocks.move_ends(3_600_000_000);
        assert_eq!((left(1, 3_601), left(1, 3_610)), (Some(9), None));
        blocks.move_ends(-3_600_000_000);
        assert_eq!((left(1, 1), left(1, 10)), (Some(9), None));
        blocks.unblock(hash(2), at(0));
        blocks.move_ends(5_000_000);
        assert!(blocks.any(at(14)) && !blocks.any(at(15)));
    }

    #[test]
    fn a_lifted_block_makes_nobody_look_for_one_after_the_next_sweep() {
        let blocks = Blocks::default();
        blocks.block(hash(1), at(1_000), at(0));
        blocks.block(hash(2), at(10), at(0));
        assert!(blocks.unblock(hash(1), at(0)));
        assert!(!blocks.unblock(hash(1), at(0)));
        assert!(!blocks.unblock(hash(2), at(10)), "it had ended");
        blocks.block(hash(3), at(20), at(0));
        blocks.sweep(at(15));
        assert!(blocks.any(at(15)) && !blocks.any(at(20)));
        blocks.sweep(at(20));
        assert!(blocks.is_empty());
    }

    #[test]
    fn blocks_are_bounded_and_ended_ones_make_room() {
        let blocks = Blocks::default();
        for number in 0..BLOCKS_MAX as u64 {
            assert!(blocks.block(hash(number), at(10 + number % 2), at(0)));
        }
        assert!(!blocks.block(hash(1 << 40), at(99), at(0)));
        assert!(blocks.block(hash(7), at(99), at(0)), "one takes the place of its own");
        assert_eq!(blocks.len(), BLOCKS_MAX);
        assert!(blocks.block(hash(1 << 40), at(99), at(10)), "half of them have ended");
        assert_eq!(blocks.len(), BLOCKS_MAX / 2 + 1);
        assert!(blocks.blocked(hash(1 << 40), at(50)).is_some());
    }

    #[test]
    fn whoever_sees_that_there_is_one_finds_it() {
        let blocks = Blocks::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..2_000 {
                    blocks.block(hash(number), at(10), at(0));
                    blocks.sweep(at(0));
                }
            });
            scope.spawn(|| {
                let mut next = 0;
                while next < 2_000 {
                    if blocks.blocked(hash(next), at(0)).is_some() {
                        assert!(blocks.any(at(0)) || next == 0, "a sweep lost the end of {next}");
                        next += 1;
                    }
                    std::hint::spin_loop();
                }
            });
        });
        assert!(blocks.any(at(9)));
        assert_eq!(blocks.len(), 2_000);
    }
}
