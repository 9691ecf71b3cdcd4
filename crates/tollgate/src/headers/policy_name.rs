//! Names of policies, as clients see them.

use std::fmt;

use super::HeaderError;
use super::field_value::write_policy_numbers;
use crate::hash::public_hash;
use crate::limit::{Calendar, CalendarUnit, Limit};

/// The name of a policy, as clients see it. Checked when it is made, because a structured field
/// carries printable ASCII only (RFC 9651, 3.3.3), and a reply must not fail on a name.
#[derive(Clone, Debug)]
pub struct PolicyName {
    text: Box<str>,
    /// The name as a String of a structured field, ready because replies write it by the million.
    quoted: Box<str>,
    /// Hash of the text: replies of many limits compare all their names.
    hash: u64,
    /// The policy of the limit that the name was made for.
    policy: Option<PolicyText>,
}

/// A policy in the words of the draft, such as `"api-1s";q=10;w=1`.
#[derive(Clone, Debug)]
struct PolicyText {
    /// Fingerprint of the limit's numbers, which the text contains.
    numbers: u64,
    text: Box<str>,
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
        let mut name = PolicyName::checked(format!("{name}-{count}{unit}"));
        let mut text = name.quoted.as_bytes().to_vec();
        write_policy_numbers(&mut text, limit);
        let text = String::from_utf8(text).expect("names and numbers are ASCII");
        name.policy = Some(PolicyText { numbers: limit.fingerprint(), text: text.into() });
        name
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
        self.hash == other.hash && self.text == other.text
    }

    /// The name as a String of a structured field.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// The policy of a limit, if the name was made for it: `"api-1s";q=10;w=1`.
    pub(super) fn policy_of(&self, limit: &Limit) -> Option<&str> {
        let policy = self.policy.as_ref()?;
        (policy.numbers == limit.fingerprint()).then_some(&*policy.text)
    }

    fn checked(text: String) -> PolicyName {
        let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
        let hash = public_hash(&[text.as_bytes()]);
        PolicyName {
            quoted: format!("\"{escaped}\"").into(),
            text: text.into(),
            hash,
            policy: None,
        }
    }
}

/// Names are equal if their texts are, whatever limit they were made for.
impl PartialEq for PolicyName {
    fn eq(&self, other: &PolicyName) -> bool {
        self.is(other)
    }
}

impl Eq for PolicyName {}

impl std::hash::Hash for PolicyName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_policy_belongs_to_its_numbers() {
        let limit = |text: &str| text.parse::<Limit>().expect(text);
        let (ten, five) = (limit("10/s burst 10"), limit("5/s burst 5"));
        let name = PolicyName::of(&ten);
        assert_eq!(name.policy_of(&ten), Some("\"default-1s\";q=10;w=1"));
        assert_eq!(name.policy_of(&five), None, "other numbers are written anew");
        assert_eq!(name, PolicyName::new("default-1s").expect("a name"), "equal by their text");
        assert_ne!(name, PolicyName::of(&limit("10/m burst 10")));
    }
}
