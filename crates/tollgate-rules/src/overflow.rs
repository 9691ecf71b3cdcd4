//! A small table of this process for limits that callers bring, beyond those that the store has
//! room for.
//!
//! A store holds a bounded number of different limits. If callers bring more, a refusal or an error
//! would let one client that invents limits stop all others, so the calls beyond the bound are
//! counted here. The table is bounded too: keys that do not fit share a count.

use std::slice;
use std::sync::OnceLock;

use tollgate::{Check, Decision, MemoryStore, Now};

/// Number of keys that the table has room for. Its slots are somewhat more, but fewer than the
/// 65,535 limits that a store holds, because each key may have a limit of its own.
const OVERFLOW_KEYS_MAX: usize = 32_768;

/// The table, allocated on first use. Bound: room for [`OVERFLOW_KEYS_MAX`] keys. When it is full,
/// limited keys are not evicted: otherwise a client could fill it to get past its limit.
#[derive(Debug, Default)]
pub(crate) struct OverflowTable(OnceLock<MemoryStore>);

impl OverflowTable {
    pub(crate) fn decide(&self, check: &Check<'_>, now: Now<'_>) -> Decision {
        let table = self.0.get_or_init(|| MemoryStore::new(OVERFLOW_KEYS_MAX));
        table.decide_now(slice::from_ref(check), now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::{Limit, Micros};

    use super::*;

    #[test]
    fn the_table_keeps_its_counts_when_others_fill_it() {
        let table = OverflowTable::default();
        let now = Micros::from_secs(100);
        let century = 3_155_760_000;
        let allowed = |call: u64| {
            let limit = Limit::per(1, Duration::from_secs(century - call)).burst(1).build();
            let (limit, key) = (limit.expect("in range"), call.to_string());
            table.decide(&Check::new(&limit, key.as_bytes()), now.into()).allowed()
        };
        // Each with a limit of its own, more than the table holds, and none expires.
        for call in 0..70_000 {
            assert!(allowed(call) || call > 10_000, "{call} is shut out while there is room");
            assert!(!allowed(call), "{call} is not counted");
        }
        for call in 0..10_000 {
            assert!(!allowed(call), "{call} passes again because others came");
        }
        let slots = table.0.get().expect("it was used").stats().slots;
        assert!(slots < 60_000, "{slots}: each key may have a limit of its own");
    }
}
