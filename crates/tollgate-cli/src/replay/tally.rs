//! Summary of the decisions of a whole trace, for people.

use std::collections::BTreeMap;
use std::fmt;

use tollgate::Wait;
use tollgate_rules::{Answer, Enforcement};

/// Counts of one rule set.
#[derive(Debug, Default)]
pub(crate) struct TraceTally {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    delayed: u64,
    /// Requests to which no rule applied.
    unmatched: u64,
    /// Counts by rule. Bound: the rules of a set.
    pub(crate) rules: BTreeMap<Box<str>, RuleTally>,
}

/// Counts of one rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleTally {
    /// Requests that the rule applied to.
    matched: u64,
    /// Requests refused by the rule: if several refuse, by the one with the longest wait.
    pub(crate) refused: u64,
    /// Requests that the rule would have refused if it were not in shadow.
    pub(crate) in_shadow: u64,
    /// Requests that the rule warned about.
    pub(crate) warned: u64,
}

impl TraceTally {
    pub(crate) fn add(&mut self, answer: &Answer) {
        self.add_after(answer, Wait::ZERO);
    }

    /// Counts a request that was decided after a wait in a queue.
    pub(crate) fn add_after(&mut self, answer: &Answer, waited: Wait) {
        self.requests += 1;
        self.refused += u64::from(!answer.allowed());
        let is_delayed = !answer.delay().is_zero() || !waited.is_zero();
        self.delayed += u64::from(answer.allowed() && is_delayed);
        self.unmatched += u64::from(answer.limits().len() == 0);
        if let Some(binding) = answer.binding().filter(|_| !answer.allowed()) {
            self.rule(binding.rule).refused += 1;
        }
        let (mut last, mut said) = (None, [false; 2]);
        for judged in answer.limits() {
            // The limits of a rule are adjacent, and count as one.
            if last.replace(judged.rule) != Some(judged.rule) {
                said = [false; 2];
                self.rule(judged.rule).matched += 1;
            }
            let index = match judged.enforcement {
                _ if judged.outcome.allowed => continue,
                Enforcement::Enforced => continue,
                Enforcement::Shadow => 0,
                Enforcement::Soft => 1,
            };
            if !std::mem::replace(&mut said[index], true) {
                let rule = self.rule(judged.rule);
                *[&mut rule.in_shadow, &mut rule.warned][index] += 1;
            }
        }
    }

    fn rule(&mut self, name: &str) -> &mut RuleTally {
        // Most names exist already: no string is allocated for them.
        if !self.rules.contains_key(name) {
            self.rules.insert(name.into(), RuleTally::default());
        }
        self.rules.get_mut(name).expect("just made")
    }
}

impl fmt::Display for TraceTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = self.requests - self.refused;
        let counts = [
            ("requests", self.requests),
            ("allowed", allowed),
            ("  after a delay", self.delayed),
            ("  no rule applies", self.unmatched),
            ("refused", self.refused),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:<20}{count:>10}")?;
        }
        let rows = self.rules.iter().map(|(name, rule)| {
            (&**name, vec![rule.matched, rule.refused, rule.in_shadow, rule.warned])
        });
        table(f, &["requests", "refused", "in shadow", "warned"], rows)
    }
}

/// Writes a line for each rule with a count. After the first two, empty columns are left out.
pub(crate) fn table<'a>(
    f: &mut fmt::Formatter<'_>,
    heads: &[&str],
    rows: impl Iterator<Item = (&'a str, Vec<u64>)>,
) -> fmt::Result {
    let rows: Vec<_> = rows.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let name_width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(4);
    let is_shown =
        |column: &usize| *column < 2 || rows.iter().any(|(_, counts)| counts[*column] > 0);
    let columns: Vec<usize> = (0..heads.len()).filter(is_shown).collect();
    write!(f, "\n{:<name_width$}", "rule")?;
    for &column in &columns {
        write!(f, "  {:>width$}", heads[column], width = width(heads[column]))?;
    }
    for (name, counts) in &rows {
        write!(f, "\n{name:<name_width$}")?;
        for &column in &columns {
            write!(f, "  {:>width$}", counts[column], width = width(heads[column]))?;
        }
    }
    writeln!(f)
}

/// Width of a column: enough for its head and for most numbers.
fn width(head: &str) -> usize {
    head.len().max(8)
}
