//! Checks as one request to the script, and its reply as what the memory store would have said.

use std::borrow::Cow;

use tollgate::algorithm::State;
use tollgate::store::stored_state::{self, Purpose, StateAssignment, StoredCheck, StoredState};
use tollgate::{Act, Check, DecidedBy, Key, Limit, Micros, Outcome};
use tollgate_shared::TimeSource;

use crate::script::call::ScriptBody;
use crate::script::keys::{self, RedisKeyNamer, SubjectHash};
use crate::script::state::{self, DecodedState};
use crate::script::{self, ScriptReply, StateWrite, StoredValue};

/// Checks with the keys that their states have. All lists are at most as long as a decision may be.
pub(crate) struct ScriptRequest<'a> {
    pub(crate) checks: Vec<StoredCheck<'a>>,
    /// The index of each check's key.
    pub(crate) key_indices: Vec<usize>,
    pub(crate) keys: Vec<Vec<u8>>,
    /// The limit of each key.
    limits: Vec<&'a Limit>,
}

impl<'a> ScriptRequest<'a> {
    /// A request of checks, whose limits are those of [`stored_state::limits_for_keys`].
    pub(crate) fn new(
        names: &RedisKeyNamer,
        checks: &[Check<'a>],
        limits: &'a [Cow<'a, Limit>],
    ) -> Self {
        let assignment = StateAssignment::new(checks, limits);
        let states = assignment.first_checks();
        let mut subjects: Vec<(Key<'_>, SubjectHash)> = Vec::with_capacity(states.len());
        let mut keys = Vec::with_capacity(states.len());
        for StoredCheck { check, limit, twin } in states.clone() {
            // A hash is the dearest part of a name, and most requests are about one or two subjects.
            let known = subjects.iter().find(|(key, _)| *key == check.key());
            let subject = match known {
                Some((_, subject)) => *subject,
                None => names.subject(check.key().as_bytes()),
            };
            subjects.push((check.key(), subject));
            keys.push(names.key(subject, limit, *twin));
        }
        ScriptRequest {
            checks: assignment.checks().to_vec(),
            key_indices: assignment.places().to_vec(),
            keys,
            limits: states.map(|first| first.limit).collect(),
        }
    }

    /// The same with what was granted instead of "up to", if that means the same: not where checks
    /// meet in one state, or are charged whatever the answer is.
    pub(crate) fn with_granted_costs(&self, granted: &[Outcome]) -> Option<ScriptRequest<'a>> {
        let plain = |one: &StoredCheck<'_>| !one.check.is_shadow() && !one.check.counts_denied();
        if self.keys.len() < self.checks.len() || !self.checks.iter().all(plain) {
            return None;
        }
        let asked =
            self.checks.iter().zip(granted).map(|(one, granted)| match one.check.requested_act() {
                Act::UpTo => {
                    StoredCheck { check: one.check.act(Act::Take).cost(granted.charged), ..*one }
                }
                _ => *one,
            });
        Some(ScriptRequest {
            checks: asked.collect(),
            key_indices: self.key_indices.clone(),
            keys: self.keys.clone(),
            limits: self.limits.clone(),
        })
    }

    /// The state of each check, of states by key.
    pub(crate) fn states_by_check(&self, states: Vec<State>) -> Vec<State> {
        // If every check has a key of its own, both are in the same order.
        match self.keys.len() == self.checks.len() {
            true => states,
            false => self.key_indices.iter().map(|place| states[*place].clone()).collect(),
        }
    }

    /// Returns true if the cost depends on the units left.
    pub(crate) fn has_up_to(&self) -> bool {
        self.checks.iter().any(|one| one.check.requested_act() == Act::UpTo)
    }

    /// The request as the script reads it.
    pub(crate) fn body(&self) -> ScriptBody {
        script::decide(&self.checks, &self.key_indices, self.keys.len())
    }

    /// The limit that a key is about.
    pub(crate) fn limit(&self, place: usize) -> &'a Limit {
        self.limits[place]
    }

    /// The slots of the keys, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.keys.iter().map(|key| keys::slot(key))
    }

    /// Decodes the values found under the keys for their checks, and counts the unreadable ones.
    pub(crate) fn decode_all(&self, reply: &ScriptReply) -> (Vec<StoredState>, usize) {
        let opened = reply.stored_values.iter().enumerate().map(|(place, found)| {
            let purpose = stored_state::purpose_at(&self.checks, &self.key_indices, place);
            decode_value(self.limit(place), found, purpose, reply.now)
        });
        let (seen, read): (Vec<StoredState>, Vec<bool>) = opened.unzip();
        (seen, read.iter().filter(|read| !**read).count())
    }

    /// Decides on the states found, and changes them by what is to be written. Returns true if the request
    /// passes.
    pub(crate) fn decide(
        &self,
        seen: &mut [StoredState],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> bool {
        let (checks, places) = (&self.checks, &self.key_indices);
        stored_state::decide_outcomes(checks, places, seen, DecidedBy::Redis, now, outcomes)
    }
}

/// Decodes the value found under a key for a limit; false if it is unreadable.
pub(crate) fn decode_value(
    limit: &Limit,
    found: &StoredValue,
    purpose: Purpose,
    now: Micros,
) -> (StoredState, bool) {
    let stored = match found {
        StoredValue::Nothing => return (StoredState::absent(limit), true),
        StoredValue::Value(value) => state::decode(limit, value),
        StoredValue::Foreign => DecodedState::Unreadable,
    };
    match stored {
        DecodedState::SameNumbers(state) => (StoredState::from_own_numbers(state), true),
        DecodedState::OtherNumbers(state, old) => {
            (StoredState::from_other_numbers(state, &old, limit, now), true)
        }
        DecodedState::Unreadable => (StoredState::unreadable(limit, purpose), false),
    }
}

/// The value to store in place of the one found.
pub(crate) fn state_write(
    limit: &Limit,
    seen: StoredState,
    time: TimeSource,
    now: Micros,
) -> StateWrite {
    let (state, numbers) = seen.into_pending_write()?;
    let limit = numbers.as_ref().unwrap_or(limit);
    // In debt or with excess it takes longer than a limit's usual memory until a state is fresh.
    let ahead = state.mark().saturating_sub(now.as_u64());
    let fresh = tollgate::algorithm::fresh_after(limit, &state, now);
    let lasts = fresh.as_micros().unwrap_or(0).max(limit.memory_us() + ahead);
    Some((state::encode(limit, &state), script::ttl_ms(time, lasts)))
}
