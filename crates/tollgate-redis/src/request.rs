//! Checks as one request to the script, and its reply as what the memory store would have said.

use std::borrow::Cow;

use tollgate::algorithm::State;
use tollgate::store::replay::{self, Asked, Purpose, Seen};
use tollgate::{Act, Check, Decision, Limit, Micros, Outcome};

use crate::call::Body;
use crate::keys::{self, Names};
use crate::options::TimeOf;
use crate::script::{self, Found, Reply, Write};
use crate::state::{self, Stored};

/// The limits of checks as they apply to their keys: those of a staggered one begin at its own time.
pub(crate) fn shifted<'a>(checks: &[Check<'a>]) -> Vec<Cow<'a, Limit>> {
    checks.iter().map(|check| check.limit().for_key(check.key().as_bytes())).collect()
}

/// Checks with the keys that their states have. All lists are at most as long as a decision may be.
pub(crate) struct Request<'a> {
    pub(crate) asked: Vec<Asked<'a>>,
    /// Which key each check is about.
    pub(crate) places: Vec<usize>,
    pub(crate) keys: Vec<Vec<u8>>,
    /// The check that each key was made for.
    pub(crate) first: Vec<usize>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(names: &Names, checks: &[Check<'a>], limits: &'a [Cow<'a, Limit>]) -> Self {
        let mut request = Request {
            asked: Vec::with_capacity(checks.len()),
            places: Vec::with_capacity(checks.len()),
            keys: Vec::with_capacity(checks.len()),
            first: Vec::with_capacity(checks.len()),
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
                Some(&twin) => (request.places[twin], request.asked[twin].twin),
                None => {
                    let twins = others.iter().map(|before| request.asked[*before].twin + 1);
                    let twin = twins.max().unwrap_or(0);
                    request.keys.push(names.key(subjects[index], check.limit(), twin));
                    request.first.push(index);
                    (request.keys.len() - 1, twin)
                }
            };
            request.asked.push(Asked { check: *check, limit, twin });
            request.places.push(place);
        }
        request
    }

    /// The same with what was granted instead of "up to", if that means the same: not where checks
    /// meet in one state, or are charged whatever the answer is.
    pub(crate) fn certain(&self, granted: &[Outcome]) -> Option<Request<'a>> {
        let plain = |one: &Asked<'_>| !one.check.is_shadow() && !one.check.counts_denied();
        if self.keys.len() < self.asked.len() || !self.asked.iter().all(plain) {
            return None;
        }
        let asked = self.asked.iter().zip(granted).map(|(one, granted)| match one.check.what() {
            Act::UpTo => Asked { check: one.check.act(Act::Take).cost(granted.charged), ..*one },
            _ => *one,
        });
        Some(Request {
            asked: asked.collect(),
            places: self.places.clone(),
            keys: self.keys.clone(),
            first: self.first.clone(),
        })
    }

    /// Whether how much is taken depends on what there is.
    pub(crate) fn has_up_to(&self) -> bool {
        self.asked.iter().any(|one| one.check.what() == Act::UpTo)
    }

    /// As the script reads it.
    pub(crate) fn body(&self) -> Body {
        script::decide(&self.asked, &self.places, self.keys.len())
    }

    /// The limit that a key is about.
    pub(crate) fn limit(&self, place: usize) -> &'a Limit {
        self.asked[self.first[place]].limit
    }

    /// The slots of the keys, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.keys.iter().map(|key| keys::slot(key))
    }

    /// What was found under the keys, as the checks about them see it, and how much could not be read.
    pub(crate) fn open_all(&self, reply: &Reply) -> (Vec<Seen>, usize) {
        let opened = reply.found.iter().enumerate().map(|(place, found)| {
            let purpose = replay::purpose_at(&self.asked, &self.places, place);
            open(self.limit(place), found, purpose, reply.now)
        });
        let (seen, read): (Vec<Seen>, Vec<bool>) = opened.unzip();
        (seen, read.iter().filter(|read| !**read).count())
    }

    /// Decides on what was found, and tells what is to be written.
    pub(crate) fn decide(
        &self,
        seen: &mut [Seen],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Decision {
        replay::decide(&self.asked, &self.places, seen, now, outcomes)
    }
}

/// What was found under a key, seen by a limit, and whether it could be read.
pub(crate) fn open(limit: &Limit, found: &Found, purpose: Purpose, now: Micros) -> (Seen, bool) {
    let stored = match found {
        Found::Nothing => return (Seen::nothing(limit), true),
        Found::Value(value) => state::decode(limit, value),
        Found::Foreign => Stored::Unreadable,
    };
    match stored {
        Stored::ByAsked(state) => (Seen::by_asked(state), true),
        Stored::ByOther(state, old) => (Seen::by_other(state, &old, limit, now), true),
        Stored::Unreadable => (Seen::unreadable(limit, purpose), false),
    }
}

/// What is to be stored instead of what was found.
pub(crate) fn write(limit: &Limit, seen: Seen, time: TimeOf, now: Micros) -> Write {
    let (state, numbers) = seen.written()?;
    let limit = numbers.as_ref().unwrap_or(limit);
    let mark = match &state {
        State::Token(state) => state.mark,
        State::Leaky(state) => state.0.mark,
        State::Window(state) => state.mark,
        State::Counter(state) => state.mark,
        State::Log(state) => state.mark,
    };
    // In debt it takes longer than a limit's usual memory until a state is fresh.
    let ahead = mark.saturating_sub(now.as_u64());
    let reset = tollgate::algorithm::judge(limit, &state, 0, now).reset_after;
    let lasts = reset.as_micros().unwrap_or(0).max(limit.memory_us() + ahead);
    Some((state::encode(limit, &state), script::ttl_ms(time, lasts)))
}
