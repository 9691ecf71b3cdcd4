//! Blocks: keys that are refused everything until an instant, above all limits.
//!
//! Blocks have their own table, made when the first key is blocked. One number says when the last
//! of all blocks ends: while no block is in force, a decision reads only that number.

use std::sync::atomic::Ordering;

use crate::check::Key;
use crate::time::{Micros, Wait};

use super::MemoryStore;
use super::numbers::BLOCK_TAG;
use super::slot::SlotRecord;
use super::table::{EvictionScope, InsertResult, SlotTable};

impl MemoryStore {
    /// Refuses all requests of `key` until `until`, whatever its limits. A longer block stays.
    /// Returns false if the bounded table of blocks is full.
    pub fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> bool {
        let block = block_key(self.secret.hash(key.as_bytes()));
        let record = SlotRecord { mark: now.as_u64(), a: until.as_u64(), b: 0, tag: BLOCK_TAG };
        self.blocked_until.fetch_max(record.a, Ordering::Relaxed);
        loop {
            if let Some(slot) = self.blocks().find(block) {
                let mut locked = slot.lock();
                let seen = locked.snapshot();
                if seen.key == block {
                    let until = seen.record().a.max(record.a);
                    locked.write(SlotRecord { a: until, ..record });
                    return true;
                }
            }
            match self.blocks().insert(block, record, EvictionScope::Unlimited, &self.policy(now)) {
                InsertResult::New => return true,
                InsertResult::Exists => {}
                InsertResult::NoRoom(_) => return false,
            }
        }
    }

    /// Lifts a block. Returns true if there was one in force.
    pub fn unblock(&self, key: Key<'_>, now: Micros) -> bool {
        let subject = self.secret.hash(key.as_bytes());
        let in_force = self.blocked_for(subject, now).is_some();
        self.blocks().remove(block_key(subject), &self.policy(now)) && in_force
    }

    /// Time for which `key` is still blocked, if it is. While no key is blocked, this is one load.
    #[inline]
    pub fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        if !self.any_block(now) {
            return None;
        }
        self.find_block(self.secret.hash(key.as_bytes()), now)
    }

    /// Time for which a hashed key is still blocked.
    #[inline]
    pub(super) fn blocked_for(&self, subject: u64, now: Micros) -> Option<Wait> {
        if !self.any_block(now) {
            return None;
        }
        self.find_block(subject, now)
    }

    /// Returns true if a block may be in force for any key.
    #[inline]
    pub fn any_block(&self, now: Micros) -> bool {
        self.blocked_until.load(Ordering::Relaxed) > now.as_u64()
    }

    /// Finds a block that is in force. Blocks that have ended stay in the table until their slot is
    /// needed, because a read must not change it.
    #[cold]
    fn find_block(&self, subject: u64, now: Micros) -> Option<Wait> {
        let block = block_key(subject);
        let seen = self.blocks().find(block)?.read();
        let left = seen.record().a.saturating_sub(now.as_u64());
        (seen.key == block && left > 0).then_some(Wait::from_micros(left))
    }

    pub(super) fn blocks(&self) -> &SlotTable {
        self.blocks.get_or_init(|| SlotTable::new(self.side_table_keys))
    }
}

#[inline]
fn block_key(subject: u64) -> u64 {
    subject.max(1)
}
