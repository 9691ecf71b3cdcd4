//! Limits stated in requests, and how many different ones may be in use at a time.
//!
//! A store knows a bounded number of different sets of numbers, and rules need some of them.
//! Clients can state any number of sets, so stated limits have a share of their own: one set too
//! many is refused, and takes nothing away from rules or from sets in use.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tollgate::{Algorithm, Limit, Micros};

use super::{DescriptorError, StatedLimit};

/// The most different stated limits that can still count something: a small part of the 65,535 sets
/// of numbers that a store knows.
pub const STATED_LIMITS_MAX: usize = 1_024;

/// The key of one set of numbers.
type StatedLimitKey = (StatedLimit, Algorithm);

/// The sets in use.
#[derive(Debug, Default)]
pub(crate) struct StatedLimitTable(Mutex<StatedLimitUses>);

#[derive(Debug, Default)]
struct StatedLimitUses {
    /// The time until which a state may exist for each, in microseconds. Bound:
    /// [`STATED_LIMITS_MAX`].
    ends: HashMap<StatedLimitKey, u64>,
    /// No set can be dropped before this instant.
    full_until: u64,
}

impl StatedLimitTable {
    /// Records the use of a set, or returns an error if there is no room for it.
    pub(super) fn record_use(
        &self,
        set: StatedLimitKey,
        limit: &Limit,
        now: Micros,
    ) -> Result<(), DescriptorError> {
        let now = now.as_u64();
        let end = now.saturating_add(limit.memory_us());
        // A panic leaves no partial change.
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ends) = sets.ends.get_mut(&set) {
            *ends = end.max(*ends);
            return Ok(());
        }
        if !sets.has_room(now) {
            return Err(DescriptorError::TooManyStated);
        }
        sets.ends.insert(set, end);
        sets.full_until = sets.full_until.min(end);
        Ok(())
    }
}

impl StatedLimitUses {
    fn has_room(&mut self, now: u64) -> bool {
        if self.ends.len() >= STATED_LIMITS_MAX && now >= self.full_until {
            self.ends.retain(|_, end| *end > now);
            // Scanned again only when the first of them can end, not for every request.
            self.full_until = self.ends.values().copied().min().unwrap_or(0);
        }
        self.ends.len() < STATED_LIMITS_MAX
    }
}
