//! Checks as one request to the script, and its reply as what the memory store would have said.

use std::borrow::Cow;

use tollgate::algorithm::State;
use tollgate::store::stored_state::{self, Purpose, StoredCheck, StoredState};
use tollgate::{Act, Check, DecidedBy, Limit, Micros, Outcome};
use tollgate_shared::TimeSource;

use crate::script::call::ScriptBody;
use crate::script::keys::{self, RedisKeyNamer};
use crate::script::state::{self, DecodedState};
use crate::script::{self, ScriptReply, StateWrite, StoredValue};

/// The limits of checks as they apply to their keys: those of a staggered one begin at its own time.
pub(crate) fn limits_for_keys<'a>(checks: &[Check<'a>]) -> Vec<Cow<'a, Limit>> {
    checks.iter().map(|check| check.limit().for_key(check.key().as_bytes())).collect()
}

/// Checks with the keys that their states have. All lists are at most as long as a decision may be.
pub(crate) struct ScriptRequest<'a> {
    pub(crate) checks: Vec<StoredCheck<'a>>,
    /// The index of each check's key.
    pub(crate) key_indices: Vec<usize>,
    pub(crate) keys: Vec<Vec<u8>>,
    /// The check that each key was made for.
    pub(crate) first_checks: Vec<usize>,
}

impl<'a> ScriptRequest<'a> {
    pub(crate) fn new(
        names: &RedisKeyNamer,
        checks: &[Check<'a>],
        limits: &'a [Cow<'a, Limit>],
    ) -> Self {
        let mut request = ScriptRequest {
            checks: Vec::with_capacity(checks.len()),
            key_indices: Vec::with_capacity(checks.len()),
            keys: Vec::with_capacity(checks.len()),
            first_checks: Vec::with_capacity(checks.len()),
        };
        let mut subjects = Vec::with_capacity(checks.len());
        for (index, (check, limit)) in checks.iter().zip(limits).enumerate() {
            let known = checks[..index].iter().position(|before| before.key() == check.key());
            subjects.push(match known {
                Some(known) => subjects[known],
                None => names.subject(check.key().as_bytes()),
            });
            // The same limit asked twice is one state. Limits that differ in nothing but their numbers
            // would share one too; within one request that is never meant, so each gets its own.
            let same = |before: &usize| {
                let other = &checks[*before];
                other.key() == check.key() && other.limit().id() == check.limit().id()
            };
            let others: Vec<usize> = (0..index).filter(same).collect();
            let twin = others.iter().find(|before| {
                checks[**before].limit().fingerprint() == check.limit().fingerprint()
            });
            let (place, twin) = match twin {
                Some(&twin) => (request.key_indices[twin], request.checks[twin].twin),
                None => {
                    let twins = others.iter().map(|before| request.checks[*before].twin + 1);
                    let twin = twins.max().unwrap_or(0);
                    request.keys.push(names.key(subjects[index], check.limit(), twin));
                    request.first_checks.push(index);
                    (request.keys.len() - 1, twin)
                }
            };
            request.checks.push(StoredCheck { check: *check, limit, twin });
            request.key_indices.push(place);
        }
        request
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
            first_checks: self.first_checks.clone(),
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
        self.checks[self.first_checks[place]].limit
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
    // In debt it takes longer than a limit's usual memory until a state is fresh.
    let ahead = state.mark().saturating_sub(now.as_u64());
    let reset = tollgate::algorithm::judge(limit, &state, 0, now).reset_after;
    let lasts = reset.as_micros().unwrap_or(0).max(limit.memory_us() + ahead);
    Some((state::encode(limit, &state), script::ttl_ms(time, lasts)))
}
