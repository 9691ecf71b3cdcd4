//! Values of header fields, written without formatting machinery: every reply of a server has five
//! of them.

use std::fmt;

use super::{Policy, RateLimitReply, window_s};
use crate::limit::Limit;

/// The value of one field; `Display` writes it, and so does [`RateLimitFieldValue::write_to`], faster.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitFieldValue<'a>(pub(super) RateLimitFieldContent<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum RateLimitFieldContent<'a> {
    Number(u64),
    NoStore,
    DraftPolicies(RateLimitReply<'a>),
    DraftLimits(RateLimitReply<'a>),
    LegacyPolicies(RateLimitReply<'a>),
}

impl RateLimitFieldValue<'_> {
    pub(super) fn number(number: u64) -> RateLimitFieldValue<'static> {
        RateLimitFieldValue(RateLimitFieldContent::Number(number))
    }

    /// A number of a structured field.
    pub(super) fn integer(number: u64) -> RateLimitFieldValue<'static> {
        RateLimitFieldValue::number(integer(number))
    }

    /// Appends the value's text, which is printable ASCII.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    fn write(&self, out: &mut impl TextSink) {
        match &self.0 {
            RateLimitFieldContent::Number(number) => out.number(*number),
            RateLimitFieldContent::NoStore => out.text("no-store"),
            RateLimitFieldContent::DraftPolicies(reply) => {
                write_list(out, reply.named_policies(), write_draft_policy)
            }
            RateLimitFieldContent::DraftLimits(reply) => {
                write_list(out, reply.reported_policies(), write_draft_limit)
            }
            RateLimitFieldContent::LegacyPolicies(reply) => {
                write_list(
                    out,
                    reply.named_policies().filter(|policy| window_s(policy.limit).is_some()),
                    |out, policy| {
                        out.number(integer(policy.limit.capacity()));
                        write_parameter(out, ";w=", window_s(policy.limit));
                    },
                );
            }
        }
    }
}

impl fmt::Display for RateLimitFieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = FormatterSink { f, result: Ok(()) };
        self.write(&mut out);
        out.result
    }
}

/// A destination of text.
pub(super) trait TextSink {
    fn text(&mut self, text: &str);
    fn number(&mut self, number: u64);
}

impl TextSink for Vec<u8> {
    #[inline]
    fn text(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        // The largest number has 20 digits; the last two are written first.
        let mut digits = [0; 20];
        let mut first = digits.len();
        while number >= 10 {
            let pair = (number % 100) as usize * 2;
            number /= 100;
            first -= 2;
            digits[first..first + 2].copy_from_slice(&DIGIT_PAIRS[pair..pair + 2]);
        }
        if number > 0 || first == digits.len() {
            first -= 1;
            digits[first] = b'0' + number as u8;
        }
        self.extend_from_slice(&digits[first..]);
    }
}

/// The digits of `00` to `99`.
const DIGIT_PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// A `fmt` destination. It keeps the first error, and writes nothing after it.
struct FormatterSink<'f, 'b> {
    f: &'f mut fmt::Formatter<'b>,
    result: fmt::Result,
}

impl TextSink for FormatterSink<'_, '_> {
    fn text(&mut self, text: &str) {
        self.result = self.result.and_then(|()| self.f.write_str(text));
    }

    fn number(&mut self, number: u64) {
        self.result = self.result.and_then(|()| write!(self.f, "{number}"));
    }
}

fn write_draft_policy(out: &mut impl TextSink, policy: &Policy<'_>) {
    match policy.name.policy_of(policy.limit) {
        Some(text) => out.text(text),
        None => {
            out.text(policy.name.quoted());
            write_policy_numbers(out, policy.limit);
        }
    }
}

/// Writes capacity and window of a limit: `;q=10;w=1`.
pub(super) fn write_policy_numbers(out: &mut impl TextSink, limit: &Limit) {
    write_parameter(out, ";q=", Some(integer(limit.capacity())));
    write_parameter(out, ";w=", window_s(limit));
}

fn write_draft_limit(out: &mut impl TextSink, policy: &Policy<'_>) {
    out.text(policy.name.quoted());
    write_parameter(out, ";r=", Some(integer(policy.outcome.remaining)));
    write_parameter(out, ";t=", policy.more_after_s().map(integer));
}

fn write_parameter(out: &mut impl TextSink, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        out.text(name);
        out.number(number);
    }
}

fn write_list<'p, T: TextSink>(
    out: &mut T,
    policies: impl Iterator<Item = &'p Policy<'p>>,
    write_policy: impl Fn(&mut T, &Policy<'_>),
) {
    for (index, policy) in policies.enumerate() {
        if index > 0 {
            out.text(", ");
        }
        write_policy(out, policy);
    }
}

/// Caps a number: a structured field has no more than 15 digits (RFC 9651, 3.3.1).
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_fmt_writes_them() {
        let edges = (0..20).flat_map(|power| {
            let ten = 10u64.pow(power);
            [ten - 1, ten, ten + 1, ten.saturating_mul(9), 123_456_789 % ten]
        });
        for number in edges.chain([u64::MAX, u64::MAX - 1]).chain(0..2_000) {
            let mut bytes = Vec::new();
            bytes.number(number);
            assert_eq!(String::from_utf8(bytes).unwrap(), number.to_string());
        }
    }
}
