//! Names of policies, as clients see them.

use std::fmt;

use super::HeaderError;
use crate::limit::{Calendar, CalendarUnit, Limit};

/// The name of a policy, as clients see it. Checked when it is made, because a structured field
/// carries printable ASCII only (RFC 9651, 3.3.3), and a reply must not fail on a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyName {
    text: Box<str>,
    /// The name as a String of a structured field, ready because replies write it by the million.
    quoted: Box<str>,
}

impl PolicyName {
    /// Cap on the bytes of a name. A limit's own name with its period is at most 83.
    pub const MAX_LEN: usize = 128;

    /// The name of a limit and its period, such as `api-1s`, `login-15m` or, by the calendar,
    /// `reports-1mo`. A limit without a name is called `default`, so `default-1s`.
    pub fn of(limit: &Limit) -> PolicyName {
        let name = if limit.name().is_empty() { "default" } else { limit.name() };
        let (count, unit) = match limit.calendar().map(Calendar::unit) {
            Some(CalendarUnit::Month) => (1, "mo"),
            _ => period_in_words(limit.period_us()),
        };
        PolicyName::checked(format!("{name}-{count}{unit}"))
    }

    /// A name given by the caller.
    pub fn new(text: &str) -> Result<PolicyName, HeaderError> {
        let bad = |problem: String| {
            let most = PolicyName::MAX_LEN;
            HeaderError(format!(
                "the policy name {text:?} {problem}: write 1 to {most} characters of printable ASCII"
            ))
        };
        if text.is_empty() {
            return Err(bad("is empty".into()));
        }
        if let Some(odd) = text.chars().find(|c| !matches!(c, ' '..='~')) {
            return Err(bad(format!("has the character {odd:?}, which a header cannot carry")));
        }
        if text.len() > PolicyName::MAX_LEN {
            return Err(bad(format!("has {} characters", text.len())));
        }
        Ok(PolicyName::checked(text.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if both names are equal; replies compare them by the million.
    #[inline]
    pub(super) fn is(&self, other: &PolicyName) -> bool {
        std::ptr::eq(self, other) || self.text == other.text
    }

    /// The name as a String of a structured field.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    fn checked(text: String) -> PolicyName {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        PolicyName { quoted: format!("\"{escaped}\"").into(), text: text.into() }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The period in the largest unit that divides it.
fn period_in_words(period_us: u64) -> (u64, &'static str) {
    const UNITS: [(u64, &str); 6] = [
        (604_800_000_000, "w"),
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let unit = UNITS.into_iter().find(|(length, _)| period_us.is_multiple_of(*length));
    let (length, unit) = unit.unwrap_or((1, "us"));
    (period_us / length, unit)
}
