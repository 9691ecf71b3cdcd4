//! The values of header fields, written without formatting machinery: every answer of a server
//! carries five of them.

use std::fmt;

use super::{Policy, Reply};

/// The value of one field; `Display` writes it, and so does [`Value::write_to`], faster.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a>(pub(super) Kind<'a>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    Number(u64),
    NoStore,
    DraftPolicies(&'a [Policy<'a>]),
    DraftLimits(Reply<'a>),
    LegacyPolicies(&'a [Policy<'a>]),
}

impl Value<'_> {
    pub(super) fn number(number: u64) -> Value<'static> {
        Value(Kind::Number(number))
    }

    /// A number of a structured field.
    pub(super) fn integer(number: u64) -> Value<'static> {
        Value::number(integer(number))
    }

    /// Appends the value's text, which is printable ASCII.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    fn write(&self, out: &mut impl Text) {
        match &self.0 {
            Kind::Number(number) => out.number(*number),
            Kind::NoStore => out.text("no-store"),
            Kind::DraftPolicies(policies) => write_list(out, policies.iter(), write_draft_policy),
            Kind::DraftLimits(reply) => write_list(out, reply.told(), write_draft_limit),
            Kind::LegacyPolicies(policies) => {
                write_list(
                    out,
                    policies.iter().filter(|policy| policy.window_s().is_some()),
                    |out, policy| {
                        out.number(integer(policy.limit.capacity()));
                        write_parameter(out, ";w=", policy.window_s());
                    },
                );
            }
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Formatted { f, result: Ok(()) };
        self.write(&mut out);
        out.result
    }
}

/// Where text goes.
trait Text {
    fn text(&mut self, text: &str);
    fn number(&mut self, number: u64);
}

impl Text for Vec<u8> {
    #[inline]
    fn text(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        // The largest has 20 digits; the last is written first.
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.extend_from_slice(&digits[first..]);
    }
}

/// Wherever `fmt` can write. An error is kept, and nothing is written after it.
struct Formatted<'f, 'b> {
    f: &'f mut fmt::Formatter<'b>,
    result: fmt::Result,
}

impl Text for Formatted<'_, '_> {
    fn text(&mut self, text: &str) {
        self.result = self.result.and_then(|()| self.f.write_str(text));
    }

    fn number(&mut self, number: u64) {
        self.result = self.result.and_then(|()| write!(self.f, "{number}"));
    }
}

fn write_draft_policy(out: &mut impl Text, policy: &Policy<'_>) {
    out.text(policy.name.quoted());
    write_parameter(out, ";q=", Some(integer(policy.limit.capacity())));
    write_parameter(out, ";w=", policy.window_s());
}

fn write_draft_limit(out: &mut impl Text, policy: &Policy<'_>) {
    out.text(policy.name.quoted());
    write_parameter(out, ";r=", Some(integer(policy.outcome.remaining)));
    write_parameter(out, ";t=", policy.more_after_s().map(integer));
}

fn write_parameter(out: &mut impl Text, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        out.text(name);
        out.number(number);
    }
}

fn write_list<'p, T: Text>(
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

/// A structured field carries no more than 15 digits (RFC 9651, 3.3.1).
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}
