//! `AffectedCallers`: counts of each caller under both rule sets.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::ReplayedCaller;

/// Most callers that are counted one by one. Later ones are left out.
const CALLERS_MAX: usize = 100_000;

/// Most bytes of a caller's name that are kept.
const NAME_BYTES_MAX: usize = 128;

/// Counts by caller. Bound: [`CALLERS_MAX`].
#[derive(Default)]
pub(super) struct AffectedCallers {
    by_hash: HashMap<u64, AffectedCaller>,
    hasher: RandomState,
}

/// Counts of one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AffectedCaller {
    /// The name, such as `user=42`; shortened if it is long.
    pub(crate) name: String,
    /// The rule that decided the first changed request, empty if none decided it.
    pub(crate) rule: Box<str>,
    pub(crate) requests: u64,
    pub(crate) now_refused: u64,
    pub(crate) then_refused: u64,
    /// Requests whose answer changes.
    pub(crate) changed: u64,
}

/// One request of a caller, under both rule sets.
pub(super) struct CallerVerdicts<'a> {
    pub(super) now_refused: bool,
    pub(super) then_refused: bool,
    /// The rule that decided the change, if there is one.
    pub(super) changed_by: Option<&'a str>,
}

impl AffectedCallers {
    pub(super) fn add(&mut self, caller: ReplayedCaller<'_>, verdicts: &CallerVerdicts<'_>) {
        let hash = self.hasher.hash_one(caller);
        if self.by_hash.len() >= CALLERS_MAX && !self.by_hash.contains_key(&hash) {
            return;
        }
        let counts = self.by_hash.entry(hash).or_insert_with(|| AffectedCaller {
            name: shortened(caller.to_string()),
            rule: "".into(),
            requests: 0,
            now_refused: 0,
            then_refused: 0,
            changed: 0,
        });
        counts.requests += 1;
        counts.now_refused += u64::from(verdicts.now_refused);
        counts.then_refused += u64::from(verdicts.then_refused);
        if let Some(rule) = verdicts.changed_by {
            counts.changed += 1;
            if counts.rule.is_empty() {
                counts.rule = rule.into();
            }
        }
    }

    /// The callers with the most changed requests, the most first. Callers without any are left out.
    pub(super) fn most_affected(&self, most: usize) -> Vec<AffectedCaller> {
        let mut changed: Vec<_> = self.by_hash.values().filter(|one| one.changed > 0).collect();
        changed.sort_unstable_by(|one, other| {
            other.changed.cmp(&one.changed).then_with(|| one.name.cmp(&other.name))
        });
        changed.into_iter().take(most).cloned().collect()
    }
}

fn shortened(mut name: String) -> String {
    if name.len() > NAME_BYTES_MAX {
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name.push('…');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_listed_by_changes_and_bounded() {
        let mut callers = AffectedCallers::default();
        let add = |callers: &mut AffectedCallers, user: &str, refused: [bool; 2]| {
            let [now_refused, then_refused] = refused;
            let changed_by = (now_refused != then_refused).then_some("api");
            let verdicts = CallerVerdicts { now_refused, then_refused, changed_by };
            callers.add(ReplayedCaller::User(user), &verdicts);
        };
        for _ in 0..3 {
            add(&mut callers, "a", [false, true]);
            add(&mut callers, "same", [true, true]);
        }
        add(&mut callers, "b", [true, false]);
        add(&mut callers, "b", [false, false]);
        let listed = callers.most_affected(5);
        let told: Vec<_> = listed
            .iter()
            .map(|one| (&*one.name, one.requests, one.now_refused, one.then_refused, one.changed))
            .collect();
        assert_eq!(told, [("user=a", 3, 0, 3, 3), ("user=b", 2, 1, 0, 1)]);
        assert_eq!((&*listed[0].rule, callers.most_affected(1).len()), ("api", 1));
        for user in 0..CALLERS_MAX + 10 {
            add(&mut callers, &user.to_string(), [false, true]);
        }
        assert_eq!(callers.by_hash.len(), CALLERS_MAX);
        add(&mut callers, &"é".repeat(200), [false, true]);
    }
}
