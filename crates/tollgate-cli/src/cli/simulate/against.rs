//! `--against`: what a candidate would change for callers, before it is deployed.
//!
//! Both rule sets see the same requests, each with a table of its own. A request has changed if its
//! caller would notice: it is refused or allowed instead, held back for another time, or refused by
//! another rule. Other numbers alone are not a change: every edited limit has other numbers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

use tollgate::ManualClock;
use tollgate_rules::{Answer, Gatekeeper};

use super::facts::Asked;
use super::store::SimStore;
use super::tally::{RuleTally, Tally, table};
use super::trace::{Request, Trace};
use super::{Failure, answer, replay};

/// Reasons that are shown, of each kind of change.
const REASONS_SHOWN_MAX: usize = 10;

/// Callers that are told apart: 2 MB. More are counted as "at least".
const CALLERS_MAX: usize = 100_000;

/// Characters of a path that are shown.
const PATH_CHARS_MAX: usize = 60;

/// Prints each request that the second rule set answers differently, and then a summary.
pub(super) fn compare(
    trace: &mut Trace,
    [now, then]: [&Gatekeeper<SimStore, ManualClock>; 2],
    people: bool,
) -> Result<(), Failure> {
    let mut comparison = Comparison::default();
    let outcome = replay(trace, |request, answers| {
        let asked = Asked::read(request)?;
        let both = [asked.decide(now, request.at)?, asked.decide(then, request.at)?];
        let both = [&both[0], &both[1]];
        let changed = comparison.add(request, &asked, both);
        if changed && !people {
            answer::print_both(request.who, both, answers).map_err(Failure::from_output)?;
        }
        Ok(())
    });
    outcome?;
    match people {
        true => write!(io::stdout(), "{comparison}").map_err(Failure::from_output)?,
        // The answers are out; a closed standard error is no reason to fail.
        false => drop(write!(io::stderr(), "{comparison}")),
    }
    Ok(())
}

/// What changes over a whole trace.
#[derive(Default)]
struct Comparison {
    now: Tally,
    then: Tally,
    newly_refused: Change,
    newly_allowed: Change,
    /// Held back for another time, or refused by another rule.
    otherwise: Change,
}

/// Requests that change in one way.
#[derive(Default)]
struct Change {
    requests: u64,
    /// By hash. Bound: `CALLERS_MAX`.
    callers: HashSet<u64>,
    hasher: RandomState,
    /// By rule and limit. Bound: the limits of both sets.
    reasons: BTreeMap<(Box<str>, Box<str>), Reason>,
}

/// Requests that change because of one limit.
struct Reason {
    requests: u64,
    /// The first of them.
    first: String,
}

impl Comparison {
    /// Counts a request. Whether it has changed.
    fn add(&mut self, request: &Request<'_>, asked: &Asked<'_>, [now, then]: [&Answer; 2]) -> bool {
        self.now.add(now);
        self.then.add(then);
        let (change, reason) = match (now.allowed(), then.allowed()) {
            (true, false) => (&mut self.newly_refused, then),
            (false, true) => (&mut self.newly_allowed, now),
            _ if now.delay() != then.delay() => (&mut self.otherwise, then),
            (false, false) if blame(now).0 != blame(then).0 => (&mut self.otherwise, then),
            _ => return false,
        };
        change.add(request, asked, blame(reason));
        true
    }
}

/// The rule and the limit that decided; nothing if none applied.
fn blame(answer: &Answer) -> (&str, &str) {
    answer.binding().map(|binding| (binding.rule, binding.limit)).unwrap_or_default()
}

impl Change {
    fn add(&mut self, request: &Request<'_>, asked: &Asked<'_>, (rule, limit): (&str, &str)) {
        self.requests += 1;
        let caller = (&asked.user, asked.ip.filter(|_| asked.user.is_none()), &asked.api_key);
        if self.callers.len() < CALLERS_MAX {
            self.callers.insert(self.hasher.hash_one(caller));
        }
        self.reasons
            .entry((rule.into(), limit.into()))
            .or_insert_with(|| Reason { requests: 0, first: show(request, asked) })
            .requests += 1;
    }

    fn of_rule(&self, rule: &str) -> u64 {
        let reasons = self.reasons.iter().filter(|((name, _), _)| **name == *rule);
        reasons.map(|(_, reason)| reason.requests).sum()
    }
}

/// Where it is in the trace, and what it was. Who it was stands in the trace: names and addresses
/// are people's, and summaries are passed on.
fn show(request: &Request<'_>, asked: &Asked<'_>) -> String {
    let method = asked.method.as_deref().unwrap_or("-");
    let path = asked.path.as_deref().unwrap_or("-");
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let short: String = path.chars().take(PATH_CHARS_MAX).collect();
    let cut = if short.len() < path.len() { "…" } else { "" };
    // Control characters of a path must not reach a terminal.
    format!("{}: {} {}{cut}", request.line.place(), method.escape_debug(), short.escape_debug())
}

impl fmt::Display for Change {
    /// The reasons, most frequent first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, reason)| std::cmp::Reverse(reason.requests));
        for ((rule, limit), Reason { requests, first }) in reasons.iter().take(REASONS_SHOWN_MAX) {
            let by = if rule.is_empty() { "no rule" } else { rule };
            writeln!(f, "{requests:>10} by {by} {limit}, the first {first}")?;
        }
        match reasons.len().saturating_sub(REASONS_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(f, "{:>10} and {more} more limits", ""),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20}{:>10}", "requests", self.now.requests)?;
        writeln!(f, "{:<20}{:>10}", "refused now", self.now.refused)?;
        writeln!(f, "{:<20}{:>10}", "refused then", self.then.refused)?;
        let changes = [
            ("newly refused", &self.newly_refused),
            ("newly allowed", &self.newly_allowed),
            ("changed otherwise", &self.otherwise),
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

impl Comparison {
    /// Each rule of either set.
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
            let of =
                |tally: &Tally| -> RuleTally { tally.rules.get(name).copied().unwrap_or_default() };
            let (now, then) = (of(&self.now), of(&self.then));
            let counts = vec![
                now.refused,
                then.refused,
                self.newly_refused.of_rule(name),
                self.newly_allowed.of_rule(name),
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
