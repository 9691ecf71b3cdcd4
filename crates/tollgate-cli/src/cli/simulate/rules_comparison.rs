//! `--against`: shows what candidate rules would change for callers, before they are deployed.
//!
//! Both rule sets get the same requests, each with its own table. A request has changed if its caller would
//! notice: it is refused or allowed instead, delayed for another time, or refused by another rule. Other
//! numbers alone are not a change: every edited limit has other numbers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

use tollgate_rules::Answer;

use super::tally::{RuleTally, TraceTally, table};
use super::trace::{TraceReader, TraceRequest};
use super::trace_line::TraceLine;
use super::with_rules::SimRules;
use super::{CommandFailure, answer, replay};

/// Most reasons that are shown for each kind of change.
const REASONS_SHOWN_MAX: usize = 10;

/// Most distinct callers that are counted, in 2 MB. Beyond that the count is "at least".
const CALLERS_MAX: usize = 100_000;

/// Most characters of a path that are shown.
const PATH_CHARS_MAX: usize = 60;

/// Prints each request that the second rule set answers differently, and then a summary.
pub(super) fn compare(
    trace: &mut TraceReader,
    [now, then]: [&SimRules; 2],
    people: bool,
) -> Result<(), CommandFailure> {
    let mut comparison = RulesComparison::default();
    let outcome = replay(trace, |request, answers| {
        let asked = TraceLine::read(request)?;
        let both = [asked.decide(now, request.at)?, asked.decide(then, request.at)?];
        let both = [&both[0], &both[1]];
        let changed = comparison.add(request, &asked, both);
        if changed && !people {
            answer::print_both(request.subject, both, answers)
                .map_err(CommandFailure::from_output)?;
        }
        Ok(())
    });
    outcome?;
    match people {
        true => write!(io::stdout(), "{comparison}").map_err(CommandFailure::from_output)?,
        // The answers are printed: a closed standard error is no reason to fail.
        false => drop(write!(io::stderr(), "{comparison}")),
    }
    Ok(())
}

/// Changes over a whole trace.
#[derive(Default)]
struct RulesComparison {
    now: TraceTally,
    then: TraceTally,
    newly_refused: ChangedRequests,
    newly_allowed: ChangedRequests,
    /// Requests delayed for another time, or refused by another rule.
    changed_otherwise: ChangedRequests,
}

/// Requests that change in one way.
#[derive(Default)]
struct ChangedRequests {
    requests: u64,
    /// Hashes of callers. Bound: `CALLERS_MAX`.
    callers: HashSet<u64>,
    hasher: RandomState,
    /// Reasons by rule and limit. Bound: the limits of both sets.
    reasons: BTreeMap<(Box<str>, Box<str>), ChangeReason>,
}

/// Requests that change because of one limit.
struct ChangeReason {
    requests: u64,
    /// The first such request.
    first: String,
}

impl RulesComparison {
    /// Counts a request. Returns true if it has changed.
    fn add(
        &mut self,
        request: &TraceRequest<'_>,
        asked: &TraceLine<'_>,
        [now, then]: [&Answer; 2],
    ) -> bool {
        self.now.add(now);
        self.then.add(then);
        let (change, reason) = match (now.allowed(), then.allowed()) {
            (true, false) => (&mut self.newly_refused, then),
            (false, true) => (&mut self.newly_allowed, now),
            _ if now.delay() != then.delay() => (&mut self.changed_otherwise, then),
            (false, false) if deciding_limit(now).0 != deciding_limit(then).0 => {
                (&mut self.changed_otherwise, then)
            }
            _ => return false,
        };
        change.add(request, asked, deciding_limit(reason));
        true
    }
}

/// The rule and the limit that decided; empty if none applied.
fn deciding_limit(answer: &Answer) -> (&str, &str) {
    answer.binding().map(|binding| (binding.rule, binding.limit)).unwrap_or_default()
}

impl ChangedRequests {
    fn add(
        &mut self,
        request: &TraceRequest<'_>,
        asked: &TraceLine<'_>,
        (rule, limit): (&str, &str),
    ) {
        self.requests += 1;
        let caller = (&asked.user, asked.ip.filter(|_| asked.user.is_none()), &asked.api_key);
        if self.callers.len() < CALLERS_MAX {
            self.callers.insert(self.hasher.hash_one(caller));
        }
        self.reasons
            .entry((rule.into(), limit.into()))
            .or_insert_with(|| ChangeReason {
                requests: 0,
                first: describe_request(request, asked),
            })
            .requests += 1;
    }

    fn requests_of_rule(&self, rule: &str) -> u64 {
        let reasons = self.reasons.iter().filter(|((name, _), _)| **name == *rule);
        reasons.map(|(_, reason)| reason.requests).sum()
    }
}

/// Position, method and path of a request. The caller is left out: summaries are passed on, and names and
/// addresses are personal data.
fn describe_request(request: &TraceRequest<'_>, asked: &TraceLine<'_>) -> String {
    let method = asked.method.as_deref().unwrap_or("-");
    let path = asked.path.as_deref().unwrap_or("-");
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let short: String = path.chars().take(PATH_CHARS_MAX).collect();
    let cut = if short.len() < path.len() { "…" } else { "" };
    // Control characters of a path must not reach a terminal.
    format!("{}: {} {}{cut}", request.line.place(), method.escape_debug(), short.escape_debug())
}

impl fmt::Display for ChangedRequests {
    /// Writes the reasons, the most frequent first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, reason)| std::cmp::Reverse(reason.requests));
        for ((rule, limit), ChangeReason { requests, first }) in
            reasons.iter().take(REASONS_SHOWN_MAX)
        {
            let by = if rule.is_empty() { "no rule" } else { rule };
            writeln!(f, "{requests:>10} by {by} {limit}, the first {first}")?;
        }
        match reasons.len().saturating_sub(REASONS_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(f, "{:>10} and {more} more limits", ""),
        }
    }
}

impl fmt::Display for RulesComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20}{:>10}", "requests", self.now.requests)?;
        writeln!(f, "{:<20}{:>10}", "refused now", self.now.refused)?;
        writeln!(f, "{:<20}{:>10}", "refused then", self.then.refused)?;
        let changes = [
            ("newly refused", &self.newly_refused),
            ("newly allowed", &self.newly_allowed),
            ("changed otherwise", &self.changed_otherwise),
        ];
        for (name, change) in changes {
            write!(f, "{name:<20}{:>10}", change.requests)?;
            match change.callers.len() {
                0 => writeln!(f)?,
                1 => writeln!(f, "  of 1 caller")?,
                CALLERS_MAX => writeln!(f, "  of at least {CALLERS_MAX} callers")?,
                callers => writeln!(f, "  of {callers} callers")?,
            }
        }
        self.write_rules(f)?;
        for (name, change) in changes.iter().filter(|(_, change)| change.requests > 0) {
            write!(f, "\n{name}\n{change}")?;
        }
        Ok(())
    }
}

impl RulesComparison {
    /// Writes a line for each rule of either set.
    fn write_rules(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> =
            self.now.rules.keys().chain(self.then.rules.keys()).map(|name| &**name).collect();
        names.sort_unstable();
        names.dedup();
        let heads = [
            "refused now",
            "refused then",
            "newly refused",
            "newly allowed",
            "in shadow now",
            "in shadow then",
            "warned now",
            "warned then",
        ];
        let rows = names.into_iter().map(|name| {
            let of = |tally: &TraceTally| -> RuleTally {
                tally.rules.get(name).copied().unwrap_or_default()
            };
            let (now, then) = (of(&self.now), of(&self.then));
            let counts = vec![
                now.refused,
                then.refused,
                self.newly_refused.requests_of_rule(name),
                self.newly_allowed.requests_of_rule(name),
                now.in_shadow,
                then.in_shadow,
                now.warned,
                then.warned,
            ];
            (name, counts)
        });
        table(f, &heads, rows)
    }
}
