//! The comparison of two rule sets as text.

use std::fmt;

use super::callers::AffectedCaller;
use super::comparison::{CALLERS_MAX, ChangeReason, ChangedRequests, ReplayComparison};
use super::tally::{RuleTally, TraceTally, table};

/// Most reasons that are shown for each kind of change.
const REASONS_SHOWN_MAX: usize = 10;

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

impl fmt::Display for ReplayComparison {
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

impl ReplayComparison {
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

/// Most callers that are shown.
const CALLERS_SHOWN_MAX: usize = 10;

/// Most characters of a caller's name that are shown.
const NAME_CHARS_MAX: usize = 40;

/// The callers with the most changed requests, as a table. Apart from the summary, which may go to a log.
pub(crate) struct AffectedCallersTable<'a>(pub(crate) &'a ReplayComparison);

impl fmt::Display for AffectedCallersTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers = self.0.most_affected(CALLERS_SHOWN_MAX);
        if callers.is_empty() {
            return Ok(());
        }
        // Control characters of a name must not reach a terminal.
        let short =
            |name: &str| name.chars().flat_map(char::escape_debug).take(NAME_CHARS_MAX).collect();
        let names: Vec<String> = callers.iter().map(|caller| short(&caller.name)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(6);
        writeln!(f, "\n{:<width$}  requests  refused now  refused then", "caller")?;
        for (name, caller) in names.iter().zip(&callers) {
            let AffectedCaller { requests, now_refused, then_refused, .. } = caller;
            writeln!(f, "{name:<width$}  {requests:>8}  {now_refused:>11}  {then_refused:>12}")?;
        }
        Ok(())
    }
}
