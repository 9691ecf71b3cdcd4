//! Reads states for explanations where a take would find them: in the store, or in the table of this process.

use std::slice;
use std::sync::Arc;

use tollgate::decision::MAX_LIMITS;
use tollgate::store::stored_state::{StateAssignment, limits_for_keys};
use tollgate::store::{InspectedState, InspectedStates};
use tollgate::{Check, Consistency, Now, Outcome, Wait};

use crate::remote_store::RemoteStore;
use crate::time_source::TimeSource;

use super::SharedStoreInner;

/// The most calls for one request: one for each of its stores, and some for keys that this process decided until then.
const READS_MAX: usize = 2 * MAX_LIMITS;

impl<R: RemoteStore> SharedStoreInner<R> {
    /// The states of a request; `None` if a store does not answer.
    pub(super) async fn inspect(
        self: &Arc<Self>,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> Option<InspectedStates> {
        let limits = limits_for_keys(checks);
        let request = StateAssignment::new(checks, &limits);
        let first: Vec<Check<'_>> = request.first_checks().map(|one| one.check).collect();
        let mut read = InspectedStates::at(now.instant());
        if first.is_empty() {
            return Some(read);
        }
        let mut states = self.read_from_stores(&first, now, &mut read).await?;
        // Nothing is awaited from here on: the request that follows finds the same.
        for (check, state) in first.iter().zip(&mut states) {
            if self.is_synced_later(check) {
                let at = self.store_for(check).to_store_now(now);
                let local = self.local.inspect(slice::from_ref(check), at)?;
                read.at = read.at.max(local.at);
                *state = local.states.into_iter().next();
            }
        }
        read.states = states.into_iter().collect::<Option<_>>()?;
        if self.time == TimeSource::Server && first.len() == checks.len() {
            self.decide_here(checks, now, &mut read);
        }
        Some(read)
    }

    /// Adds the outcomes of checks that a take would not ask the store about. Nothing may be awaited behind this: the
    /// request that follows finds the same.
    fn decide_here(&self, checks: &[Check<'_>], now: Now<'_>, read: &mut InspectedStates) {
        let tags: Vec<u64> = checks.iter().map(|check| self.tag(check)).collect();
        let mut outcomes = vec![Outcome::default(); checks.len()];
        // A single check of `local_sync` does not ask the cache.
        let is_single_sync = matches!(checks, [check] if is_local_sync(check));
        if !is_single_sync && self.refuse_from_cache(checks, &tags, now, &mut outcomes) {
            read.remembered = outcomes;
            return;
        }
        let leased = |(check, tag): (&Check<'_>, &u64)| {
            let is_plain = !check.is_shadow() && check.units() > 0;
            is_plain.then(|| self.leased_outcome(check, *tag, now.instant())).flatten()
        };
        let mut taken: Vec<Option<Outcome>> = checks.iter().zip(&tags).map(leased).collect();
        let is_allowed = self.stores.iter().all(|asked| {
            let of_store = |check: &Check<'_>| std::ptr::eq(self.store_for(check), asked);
            self.rehearse_local_sync(checks, of_store, (now, read), &mut taken)
        });
        if !is_allowed {
            read.remembered = self.refused_here(checks, &taken, now);
        } else if taken.iter().any(Option::is_some) {
            read.taken_here = taken;
        }
    }

    /// Decides the checks of one store that are synchronised later. Returns false if one of them refuses.
    fn rehearse_local_sync(
        &self,
        checks: &[Check<'_>],
        of_store: impl Fn(&Check<'_>) -> bool,
        (now, read): (Now<'_>, &InspectedStates),
        taken: &mut [Option<Outcome>],
    ) -> bool {
        let is_of_it =
            |place: &usize| of_store(&checks[*place]) && self.is_synced_later(&checks[*place]);
        let places: Vec<usize> = (0..checks.len()).filter(is_of_it).collect();
        if places.is_empty() {
            return true;
        }
        let group: Vec<Check<'_>> = places.iter().map(|place| checks[*place]).collect();
        let states = places.iter().map(|place| read.states[*place].clone()).collect();
        let at = self.store_for(&group[0]).to_store_now(now).instant();
        let mut outcomes = vec![Outcome::default(); group.len()];
        let states = InspectedStates { states, ..InspectedStates::at(at) };
        let is_allowed = states.decide(&group, now.instant(), &mut outcomes).allowed();
        for (place, outcome) in places.into_iter().zip(outcomes) {
            taken[place] = Some(outcome);
        }
        is_allowed
    }

    /// The outcomes of a request that this process refuses before it asks a store.
    fn refused_here(
        &self,
        checks: &[Check<'_>],
        taken: &[Option<Outcome>],
        now: Now<'_>,
    ) -> Vec<Outcome> {
        let each = checks.iter().zip(taken).map(|(check, taken)| match taken {
            None => self.peek_local(check, now),
            Some(one) if check.counts_denied() => Outcome { charged: 0, ..*one },
            Some(one) => one.refunded(one.charged, check.limit()),
        });
        let alone = checks.len() == 1;
        each.map(|one| if alone { one } else { Outcome { delay: Wait::ZERO, ..one } }).collect()
    }

    /// The states of checks that a store decides, each in its place. `None` if a store does not answer, or if keys cease to
    /// be decided in this process again and again.
    async fn read_from_stores(
        self: &Arc<Self>,
        checks: &[Check<'_>],
        now: Now<'_>,
        read: &mut InspectedStates,
    ) -> Option<Vec<Option<InspectedState>>> {
        let mut states = vec![None; checks.len()];
        for _ in 0..READS_MAX {
            let is_missing =
                |place: &usize| states[*place].is_none() && !self.is_synced_later(&checks[*place]);
            let missing: Vec<usize> = (0..checks.len()).filter(is_missing).collect();
            let Some(first) = missing.first() else { return Some(states) };
            // One call for each store, so that its states are of one instant.
            let asked = self.store_for(&checks[*first]);
            let of_it = |place: &usize| std::ptr::eq(self.store_for(&checks[*place]), asked);
            let places: Vec<usize> = missing.into_iter().filter(of_it).collect();
            let group: Vec<Check<'_>> = places.iter().map(|place| checks[*place]).collect();
            for check in &group {
                self.send_unsent_units(check, asked.call_timing(now)).await;
            }
            let found = asked.store.inspect(&group, now).await.ok().flatten()?;
            read.at = read.at.max(found.at);
            for (place, state) in places.into_iter().zip(found.states) {
                states[place] = Some(state);
            }
        }
        None
    }

    /// Returns true if this process decides, and tells the store later.
    fn is_synced_later(&self, check: &Check<'_>) -> bool {
        is_local_sync(check)
            && self.time == TimeSource::Server
            && self.local_sync.is_ready(self.tag(check), check.limit())
    }
}

fn is_local_sync(check: &Check<'_>) -> bool {
    matches!(check.requested_terms().consistency, Consistency::LocalSync { .. })
}
