//! Units that were charged or given back before: the script gives back by itself, the rest is decided here
//! and written if nobody else writes meanwhile.

use tollgate::algorithm::State;
use tollgate::store::stored_state::Purpose;
use tollgate::{Limit, Micros};
use tollgate_shared::late_units;
use tollgate_shared::remote_store::{CallTiming, LateUnits, StateName};

use crate::error::StoreError;
use crate::script::request;
use crate::script::{self, StoredValue};

use super::{RedisStore, SWAP_ATTEMPTS_MAX};

impl RedisStore {
    /// Gives back up to `units`, of what was charged at an instant or, without one, as if charged now.
    /// `limit` is the one that applies to the key.
    pub(super) async fn refund_state_by(
        &self,
        state: StateName,
        limit: &Limit,
        units: u64,
        charged_at: Option<Micros>,
        when: CallTiming,
    ) -> Result<(), StoreError> {
        let keys = [self.key_namer.key(self.key_namer.subject_of(&state.key), limit, state.twin)];
        let body = script::refund(limit, units, charged_at);
        let described = vec![self.describe(limit, when.now)];
        let mut reply = self.call_script(&keys, described, Some(body), when).await?;
        for _ in 0..SWAP_ATTEMPTS_MAX {
            if reply.swapped
                || reply.refused.is_some()
                || reply.stored_values == [StoredValue::Nothing]
            {
                return Ok(());
            }
            let (mut seen, _) = self.decode_one(limit, &reply, Purpose::Settle);
            seen.refund(limit, units, charged_at, reply.now);
            let write = request::state_write(limit, seen, self.time, reply.now);
            if write.is_none() {
                return Ok(());
            }
            let swap = script::swap([(&reply.stored_values[0], &write)].into_iter(), None);
            reply = self.call_script(&keys, Vec::new(), Some(swap), when).await?;
        }
        Err(self.contended())
    }

    /// Changes a state by what was moved before, each as of its own instant; the state after it, and the
    /// server's clock.
    pub(super) async fn apply_late_by(
        &self,
        state: StateName,
        limit: &Limit,
        moved: &[LateUnits],
        when: CallTiming,
    ) -> Result<(State, Micros), StoreError> {
        let keys = [self.key_namer.key(self.key_namer.subject_of(&state.key), limit, state.twin)];
        let looked = self.call_script(&keys, Vec::new(), Some(script::read_values(1)), when).await;
        let mut reply = looked.map_err(StoreError::mark_not_executed)?;
        for _ in 0..SWAP_ATTEMPTS_MAX {
            let (mut seen, _) = self.decode_one(limit, &reply, Purpose::Settle);
            for &one in moved {
                seen.change(limit, reply.now, |state, limit| {
                    late_units::apply(limit, state, one, reply.now)
                });
            }
            let after = (seen.state().clone(), reply.now);
            let write = request::state_write(limit, seen, self.time, reply.now);
            if write.is_none() {
                return Ok(after);
            }
            let swap = script::swap([(&reply.stored_values[0], &write)].into_iter(), None);
            reply = self.call_script(&keys, Vec::new(), Some(swap), when).await?;
            if reply.swapped {
                return Ok(after);
            }
        }
        Err(self.contended())
    }
}
