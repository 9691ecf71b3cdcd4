//! `ReplayComparison`: the answers of two rule sets to the same requests.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use tollgate::Micros;
use tollgate_rules::Answer;

use super::ReplayedRequest;
use super::callers::{AffectedCaller, AffectedCallers, CallerVerdicts};
use super::series::ReplaySeries;
use super::tally::TraceTally;

/// Most distinct callers of one kind of change, in 2 MB. Beyond that the count is "at least".
pub(super) const CALLERS_MAX: usize = 100_000;

/// Most characters of a path that are shown.
const PATH_CHARS_MAX: usize = 60;

/// Most changed requests that are kept as examples.
const EXAMPLES_MAX: usize = 25;

/// Most examples of one reason.
const EXAMPLES_PER_REASON_MAX: u64 = 5;

/// Changes over a whole replay.
#[derive(Default)]
pub(crate) struct ReplayComparison {
    pub(crate) now: TraceTally,
    pub(crate) then: TraceTally,
    pub(super) newly_refused: ChangedRequests,
    pub(super) newly_allowed: ChangedRequests,
    /// Requests delayed for another time, or refused by another rule.
    pub(super) changed_otherwise: ChangedRequests,
    callers: AffectedCallers,
    pub(crate) series: ReplaySeries,
    /// Bound: [`EXAMPLES_MAX`].
    pub(crate) examples: Vec<ChangedExample>,
}

/// Requests that change in one way.
#[derive(Default)]
pub(super) struct ChangedRequests {
    pub(super) requests: u64,
    /// Hashes of callers. Bound: `CALLERS_MAX`.
    pub(super) callers: HashSet<u64>,
    hasher: RandomState,
    /// Reasons by rule and limit. Bound: the limits of both sets.
    pub(super) reasons: BTreeMap<(Box<str>, Box<str>), ChangeReason>,
}

/// Requests that change because of one limit.
pub(super) struct ChangeReason {
    pub(super) requests: u64,
    /// The first such request.
    pub(super) first: String,
}

/// A request that would be answered differently.
pub(crate) struct ChangedExample {
    pub(crate) at: Micros,
    pub(crate) method: Option<Box<str>>,
    /// The path without its query, shortened.
    pub(crate) path: Option<String>,
    /// The caller, such as `user=42`.
    pub(crate) caller: String,
    pub(crate) now: ExampleAnswer,
    pub(crate) then: ExampleAnswer,
}

/// One of the two answers of an example.
pub(crate) struct ExampleAnswer {
    pub(crate) allowed: bool,
    /// The rule and the limit that decided; empty if none applied.
    pub(crate) rule: Box<str>,
    pub(crate) limit: Box<str>,
}

impl ExampleAnswer {
    fn new(answer: &Answer) -> ExampleAnswer {
        let (rule, limit) = deciding_limit(answer);
        ExampleAnswer { allowed: answer.allowed(), rule: rule.into(), limit: limit.into() }
    }
}

impl ReplayComparison {
    /// Counts a request. Returns true if it has changed.
    pub(crate) fn add(&mut self, request: &ReplayedRequest<'_>, [now, then]: [&Answer; 2]) -> bool {
        self.now.add(now);
        self.then.add(then);
        let [now_refused, then_refused] = [now, then].map(|answer| !answer.allowed());
        self.series.add(request.at, [now_refused, then_refused]);
        let change = match (now.allowed(), then.allowed()) {
            (true, false) => Some((&mut self.newly_refused, then)),
            (false, true) => Some((&mut self.newly_allowed, now)),
            _ if now.delay() != then.delay() => Some((&mut self.changed_otherwise, then)),
            (false, false) if deciding_limit(now).0 != deciding_limit(then).0 => {
                Some((&mut self.changed_otherwise, then))
            }
            _ => None,
        };
        let mut changed_by = None;
        if let Some((change, reason)) = change {
            let limit = deciding_limit(reason);
            changed_by = Some(limit.0);
            let seen = change.add(request, limit);
            if seen <= EXAMPLES_PER_REASON_MAX && self.examples.len() < EXAMPLES_MAX {
                self.examples.push(ChangedExample::new(request, [now, then]));
            }
        }
        self.callers.add(request.caller, &CallerVerdicts { now_refused, then_refused, changed_by });
        changed_by.is_some()
    }

    /// The requests refused by each rule of either set, now and then, by name. Rules that refuse nothing are left out.
    pub(crate) fn refused_by_rule(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let mut refused: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (side, tally) in [&self.now, &self.then].into_iter().enumerate() {
            for (name, rule) in tally.rules.iter().filter(|(_, rule)| rule.refused > 0) {
                refused.entry(name).or_default()[side] = rule.refused;
            }
        }
        refused.into_iter().map(|(name, [now, then])| (name, now, then))
    }

    /// Number of requests whose answer changes.
    pub(crate) fn changed(&self) -> u64 {
        let kinds = [&self.newly_refused, &self.newly_allowed, &self.changed_otherwise];
        kinds.iter().map(|change| change.requests).sum()
    }

    /// The callers with the most changed requests, the most first.
    pub(crate) fn most_affected(&self, most: usize) -> Vec<AffectedCaller> {
        self.callers.most_affected(most)
    }
}

/// The rule and the limit that decided; empty if none applied.
fn deciding_limit(answer: &Answer) -> (&str, &str) {
    answer.binding().map(|binding| (binding.rule, binding.limit)).unwrap_or_default()
}

impl ChangedRequests {
    /// Counts a request. Returns the number of requests with the same reason.
    fn add(&mut self, request: &ReplayedRequest<'_>, (rule, limit): (&str, &str)) -> u64 {
        self.requests += 1;
        if self.callers.len() < CALLERS_MAX {
            self.callers.insert(self.hasher.hash_one(request.caller));
        }
        let reason = self
            .reasons
            .entry((rule.into(), limit.into()))
            .or_insert_with(|| ChangeReason { requests: 0, first: describe_request(request) });
        reason.requests += 1;
        reason.requests
    }

    pub(super) fn requests_of_rule(&self, rule: &str) -> u64 {
        let reasons = self.reasons.iter().filter(|((name, _), _)| **name == *rule);
        reasons.map(|(_, reason)| reason.requests).sum()
    }
}

impl ChangedExample {
    fn new(request: &ReplayedRequest<'_>, [now, then]: [&Answer; 2]) -> ChangedExample {
        ChangedExample {
            at: request.at,
            method: request.method.map(Into::into),
            path: request.path.map(short_path),
            caller: request.caller.to_string(),
            now: ExampleAnswer::new(now),
            then: ExampleAnswer::new(then),
        }
    }
}

/// Describes a request without its caller: names and addresses are personal data.
fn describe_request(request: &ReplayedRequest<'_>) -> String {
    let method = request.method.unwrap_or("-").escape_debug();
    let path = short_path(request.path.unwrap_or("-"));
    match request.position {
        Some(position) => format!("{position}: {method} {path}"),
        None => format!("{method} {path}"),
    }
}

/// A path without its query, shortened. Its control characters are escaped: they must not reach a terminal.
fn short_path(path: &str) -> String {
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let short: String = path.chars().take(PATH_CHARS_MAX).collect();
    let cut = if short.len() < path.len() { "…" } else { "" };
    format!("{}{cut}", short.escape_debug())
}
