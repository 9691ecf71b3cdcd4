//! Units that were charged or given back before: the script gives back by itself, the rest is decided here
//! and written if nobody else writes meanwhile.

use tollgate::algorithm::State;
use tollgate::store::replay::Purpose;
use tollgate::{Limit, Micros};

use crate::error::StoreError;
use crate::late;
use crate::remote::{LateUnits, StateName, When};
use crate::request;
use crate::script::{self, Found};

use super::{ROUNDS, RedisStore};

impl RedisStore {
    /// Gives back up to `units`, of what was charged at an instant or, without one, as if charged now.
    /// `limit` is the one that applies to the key.
    pub(super) async fn refund_by(
        &self,
        state: StateName,
        limit: &Limit,
        units: u64,
        charged_at: Option<Micros>,
        when: When,
    ) -> Result<(), StoreError> {
        let keys = [self.names.key(self.names.subject_of(&state.key), limit, state.twin)];
        let body = script::refund(limit, units, charged_at);
        let described = vec![self.describe(limit, when.now)];
        let mut reply = self.call(&keys, described, Some(body), when).await?;
        for _ in 0..ROUNDS {
            if reply.swapped || reply.refused.is_some() || reply.found == [Found::Nothing] {
                return Ok(());
            }
            let (mut seen, _) = self.open_one(limit, &reply, Purpose::Settle);
            seen.refund(limit, units, charged_at, reply.now);
            let write = request::write(limit, seen, self.time, reply.now);
            if write.is_none() {
                return Ok(());
            }
            let swap = script::swap([(&reply.found[0], &write)].into_iter(), None);
            reply = self.call(&keys, Vec::new(), Some(swap), when).await?;
        }
        Err(self.contended())
    }

    /// Changes a state by what was moved before, each as of its own instant; the state after it, and the
    /// server's clock.
    pub(super) async fn settle_by(
        &self,
        state: StateName,
        limit: &Limit,
        moved: &[LateUnits],
        when: When,
    ) -> Result<(State, Micros), StoreError> {
        let keys = [self.names.key(self.names.subject_of(&state.key), limit, state.twin)];
        let looked = self.call(&keys, Vec::new(), Some(script::look(1)), when).await;
        let mut reply = looked.map_err(StoreError::undone)?;
        for _ in 0..ROUNDS {
            let (mut seen, _) = self.open_one(limit, &reply, Purpose::Settle);
            for &one in moved {
                seen.change(limit, reply.now, |state, limit| {
                    late::apply(limit, state, one, reply.now)
                });
            }
            let after = (seen.state().clone(), reply.now);
            let write = request::write(limit, seen, self.time, reply.now);
            if write.is_none() {
                return Ok(after);
            }
            let swap = script::swap([(&reply.found[0], &write)].into_iter(), None);
            reply = self.call(&keys, Vec::new(), Some(swap), when).await?;
            if reply.swapped {
                return Ok(after);
            }
        }
        Err(self.contended())
    }
}
