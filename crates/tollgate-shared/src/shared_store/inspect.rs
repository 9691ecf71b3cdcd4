//! Reads states for explanations where a take would find them: in the store, or in the table of this process.

use tollgate::store::stored_state::{StateAssignment, limits_for_keys};
use tollgate::store::{InspectedState, InspectedStates};
use tollgate::{Check, Consistency, DecidedBy, Now, Outcome};

use crate::remote_store::RemoteStore;
use crate::time_source::TimeSource;

use super::SharedStoreInner;

impl<R: RemoteStore> SharedStoreInner<R> {
    /// The states of a request; `None` if a store does not answer.
    pub(super) async fn inspect(
        self: &std::sync::Arc<Self>,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> Option<InspectedStates> {
        let limits = limits_for_keys(checks);
        let request = StateAssignment::new(checks, &limits);
        let first: Vec<Check<'_>> = request.first_checks().map(|one| one.check).collect();
        let mut read =
            InspectedStates { at: now.instant(), states: Vec::new(), remembered: Vec::new() };
        if first.is_empty() {
            return Some(read);
        }
        let by_one =
            first.iter().all(|one| one.requested_terms().store == first[0].requested_terms().store);
        if by_one && !first.iter().any(|one| self.is_synced_later(one)) {
            // One call, so that all states are of one instant.
            let store = &self.store_for(&first[0]).store;
            read = store.inspect(&first, now).await.ok().flatten()?;
        } else {
            for check in &first {
                let states = self.inspect_one(check, now).await?;
                read.at = read.at.max(states.at);
                read.states.extend(states.states);
            }
        }
        for (state, check) in read.states.iter_mut().zip(&first) {
            state.decided_by = self.decider_of(check, state);
        }
        if self.time == TimeSource::Server && first.len() == checks.len() {
            let tags: Vec<u64> = checks.iter().map(|check| self.tag(check)).collect();
            let mut outcomes = vec![Outcome::default(); checks.len()];
            if self.refuse_from_cache(checks, &tags, now, &mut outcomes) {
                read.remembered = outcomes;
            }
        }
        Some(read)
    }

    async fn inspect_one(&self, check: &Check<'_>, now: Now<'_>) -> Option<InspectedStates> {
        let asked = self.store_for(check);
        match self.is_synced_later(check) {
            true => self.local.inspect(std::slice::from_ref(check), asked.to_store_now(now)),
            false => asked.store.inspect(std::slice::from_ref(check), now).await.ok().flatten(),
        }
    }

    /// Returns true if this process decides, and tells the store later.
    fn is_synced_later(&self, check: &Check<'_>) -> bool {
        matches!(check.requested_terms().consistency, Consistency::LocalSync { .. })
            && self.time == TimeSource::Server
            && self.local_sync.is_ready(self.tag(check), check.limit())
    }

    /// The part that would decide a take of this state, if no refusal is remembered.
    fn decider_of(&self, check: &Check<'_>, state: &InspectedState) -> DecidedBy {
        let plain = !check.is_shadow() && !check.is_at_once() && check.units() > 0;
        let lends = plain && self.time == TimeSource::Server;
        match lends && self.has_lease(check, self.tag(check)) {
            true => DecidedBy::Lease,
            false => state.decided_by,
        }
    }
}
