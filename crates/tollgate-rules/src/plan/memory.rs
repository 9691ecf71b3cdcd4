//! The memory of a plan: its keys, its limits and the list of selected rules, used again by the next plan of
//! the thread.

use tollgate::KeyBuf;
use tollgate::decision::MAX_LIMITS;

use super::PlannedLimit;
use crate::rule_set::SelectedRule;
use crate::spares::{Spares, keep_spare, take_spare};

/// Room for the bytes of most keys.
const KEY_BYTES: usize = 96;
/// The most bytes of a key that is kept: longer ones are rare, and their memory is freed.
const KEPT_KEY_BYTES_MAX: usize = 1_024;
/// The most keys that are kept: more are rare.
const KEPT_KEYS_MAX: usize = 16;
/// The most selected rules that are kept room for.
const KEPT_SELECTED_MAX: usize = 1_024;

thread_local!(static SPARE: Spares<PlanBuffers> = const { Spares::new(Vec::new()) });

/// Memory that does not depend on the rules.
#[derive(Default)]
struct PlanBuffers {
    keys: Vec<PlannedKey>,
    selected: Vec<SelectedRule>,
    /// Empty between two plans.
    limits: Vec<PlannedLimit<'static>>,
}

/// The memory of one plan; the thread keeps it when it is dropped. Bound: that of the keys of a request,
/// and of its rules.
pub(super) struct PlanMemory {
    buffers: PlanBuffers,
    /// Number of keys of this plan; the others are spare.
    key_count: usize,
}

/// A key, or a note that it cannot be made because a fact is missing.
pub(super) struct PlannedKey {
    pub(super) id: PlannedKeyId,
    /// False if a fact is missing.
    pub(super) is_made: bool,
    key: KeyBuf,
}

/// Everything that a key of one request depends on, in one number, because every rule compares it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedKeyId(u64);

impl PlannedKeyId {
    /// The key of a template: the number of the descriptor, of the path's spelling, which is 0 where the path is
    /// no part of the key, and true if tiers count on their own.
    #[inline]
    pub(super) fn new(template: u16, descriptor: u8, spelling: u8, by_tier: bool) -> PlannedKeyId {
        let parts = [descriptor, spelling, by_tier.into(), 0];
        PlannedKeyId(u64::from(template) << 32 | u64::from(u32::from_le_bytes(parts)))
    }

    /// A key that no template made; none is asked for by this.
    pub(super) const WITHOUT_TEMPLATE: PlannedKeyId = PlannedKeyId(u64::MAX);
}

impl PlanMemory {
    #[inline]
    pub(super) fn take() -> PlanMemory {
        PlanMemory { buffers: take_spare(&SPARE), key_count: 0 }
    }

    /// The keys of this plan.
    #[inline]
    pub(super) fn keys(&self) -> &[PlannedKey] {
        &self.buffers.keys[..self.key_count]
    }

    /// The key of this number.
    #[inline]
    pub(super) fn key(&self, number: u16) -> &KeyBuf {
        let planned = &self.buffers.keys[usize::from(number)];
        debug_assert!(planned.is_made, "only keys that were made are planned");
        &planned.key
    }

    /// Adds a key that `write` writes, or notes that it cannot.
    pub(super) fn add_key(&mut self, id: PlannedKeyId, write: impl FnOnce(&mut KeyBuf) -> bool) {
        if self.key_count == self.buffers.keys.len() {
            let key = KeyBuf::with_capacity(KEY_BYTES);
            self.buffers.keys.push(PlannedKey { id, is_made: false, key });
        }
        let planned = &mut self.buffers.keys[self.key_count];
        planned.key.clear();
        (planned.id, planned.is_made) = (id, write(&mut planned.key));
        self.key_count += 1;
    }

    /// Takes the list of limits, with room for [`MAX_LIMITS`], to be given back.
    #[inline]
    pub(super) fn take_limits<'a>(&mut self) -> Vec<PlannedLimit<'a>> {
        let mut limits = std::mem::take(&mut self.buffers.limits);
        if limits.capacity() == 0 {
            limits.reserve_exact(MAX_LIMITS);
        }
        limits
    }

    #[inline]
    pub(super) fn give_back_limits(&mut self, mut limits: Vec<PlannedLimit<'_>>) {
        limits.clear();
        // An empty list of another lifetime, in the same memory.
        self.buffers.limits = limits.into_iter().map(|_| unreachable!("it is empty")).collect();
    }

    /// Takes the list of selected rules, to be given back.
    #[inline]
    pub(super) fn take_selected(&mut self) -> Vec<SelectedRule> {
        std::mem::take(&mut self.buffers.selected)
    }

    #[inline]
    pub(super) fn give_back_selected(&mut self, selected: Vec<SelectedRule>) {
        self.buffers.selected = selected;
    }
}

impl Drop for PlanMemory {
    #[inline]
    fn drop(&mut self) {
        let PlanBuffers { mut keys, mut selected, limits } = std::mem::take(&mut self.buffers);
        if self.key_count > KEPT_KEYS_MAX {
            keys.truncate(KEPT_KEYS_MAX);
        }
        for planned in keys.iter_mut().take(self.key_count) {
            if planned.key.capacity() > KEPT_KEY_BYTES_MAX {
                planned.key = KeyBuf::new();
            }
        }
        if selected.capacity() > KEPT_SELECTED_MAX {
            selected = Vec::new();
        }
        keep_spare(&SPARE, PlanBuffers { keys, selected, limits });
    }
}
