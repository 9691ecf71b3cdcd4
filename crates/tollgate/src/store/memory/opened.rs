//! A state in a locked slot, opened by the numbers of whoever asks, and closed again.

use crate::limit::Limit;
use crate::store::opened::{Apart, Opened, Purpose, Written};
use crate::time::Micros;

use super::MemoryStore;
use super::held::Held;
use super::slot::Record;

impl Apart for Held<'_> {
    fn apart(&self) -> Self {
        Held::apart(self)
    }
}

impl MemoryStore {
    /// The state in a locked slot. `limit` and `tag` are those of whoever asks.
    pub(super) fn open(
        &self,
        limit: &Limit,
        tag: u32,
        record: Record,
        purpose: Purpose,
        now: Micros,
    ) -> Opened<Held<'_>> {
        if record.tag == tag {
            let state = Held::open(limit, record, &self.arena);
            return Opened::new(state.expect("nobody else writes a locked slot"));
        }
        self.numbers.with(record.tag, |old| {
            let opened = old.and_then(|old| Some((old, Held::open(old, record, &self.arena)?)));
            let Some((old, state)) = opened else {
                return Opened::instead(Held::fresh(limit, now, &self.arena), purpose);
            };
            Opened::of_other_numbers(state, (old, record.tag), limit, now)
        })
    }

    /// What has to be written into the slot, if anything. Call under its lock.
    pub(super) fn close(
        &self,
        opened: Opened<Held<'_>>,
        limit: &Limit,
        tag: u32,
    ) -> Option<Record> {
        Some(match opened.written()? {
            Written::ByAsked(state) => state.close(limit, tag, &self.arena),
            Written::ByOther(state, numbers, tag) => state.close(&numbers, tag, &self.arena),
        })
    }
}
