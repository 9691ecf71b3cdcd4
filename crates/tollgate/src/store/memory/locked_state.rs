//! Opens the state in a locked slot under the numbers of the checked limit, and writes it back.

use crate::limit::Limit;
use crate::store::carried_state::{CarriedState, DetachState, PendingWrite, Purpose};
use crate::time::Micros;

use super::MemoryStore;
use super::slot::SlotRecord;
use super::slot_state::SlotState;

impl DetachState for SlotState<'_> {
    fn detached_copy(&self) -> Self {
        self.independent_copy()
    }
}

impl MemoryStore {
    /// The state in a locked slot. `limit` and `tag` are those of the check.
    pub(super) fn open_state(
        &self,
        limit: &Limit,
        tag: u32,
        record: SlotRecord,
        purpose: Purpose,
        now: Micros,
    ) -> CarriedState<SlotState<'_>> {
        if record.numbers_tag() == tag {
            let state = SlotState::from_record(limit, record, &self.arena);
            return CarriedState::new(state.expect("no other thread writes a locked slot"));
        }
        self.numbers.with_limit(record.numbers_tag(), |old| {
            let opened =
                old.and_then(|old| Some((old, SlotState::from_record(old, record, &self.arena)?)));
            let Some((old, state)) = opened else {
                return CarriedState::replacing_unreadable(
                    SlotState::fresh_in_slot(limit, now, &self.arena),
                    purpose,
                );
            };
            CarriedState::from_other_numbers(state, (old, record.numbers_tag()), limit, now)
        })
    }

    /// The record to be written into the slot, if any. Call under its lock.
    pub(super) fn close_state(
        &self,
        opened: CarriedState<SlotState<'_>>,
        limit: &Limit,
        tag: u32,
    ) -> Option<SlotRecord> {
        Some(match opened.into_pending_write()? {
            PendingWrite::OwnNumbers(state) => state.into_record(limit, tag, &self.arena),
            PendingWrite::WriterNumbers(state, numbers, tag) => {
                state.into_record(&numbers, tag, &self.arena)
            }
        })
    }
}
