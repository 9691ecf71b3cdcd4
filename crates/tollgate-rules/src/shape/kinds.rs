//! The small kinds of values that fields of several objects have, and how the table is written.

use super::rule_table::{LIMIT_FIELDS, TEXT_TEST};
use super::{Field, Kind, Object, Others};

/// Counts and capacities: what a decision can hold exactly, below 2^53.
pub(super) const MOST: u64 = (1 << 53) - 1;

pub(super) const PATH: Kind = Kind::Text("a path such as `/api/{*rest}`");
pub(super) const RATE: Kind = Kind::Text("a rate such as `10/second`");
pub(super) const DURATION: Kind = Kind::Text("a duration such as `90s`");
pub(super) const CIDR: Kind = Kind::Text("a network such as `10.0.0.0/8`");
pub(super) const HEADER: Kind = Kind::Text("the name of a header such as `x-user-id`");
pub(super) const WORD: Kind = Kind::Text("a text");
pub(super) const METHOD: Kind = Kind::Text("a method such as `POST`");
pub(super) const ALGORITHM: Kind = Kind::Choice(&[
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
]);
pub(super) const LIMIT: Kind = Kind::Either(&[RATE, Kind::Object(&LIMIT_FIELDS)]);
pub(super) const LIMITS: Kind =
    Kind::Either(&[RATE, Kind::List("limits", &LIMIT), Kind::Object(&LIMIT_FIELDS)]);
pub(super) const TEXTS: Kind =
    Kind::Either(&[WORD, Kind::List("texts", &WORD), Kind::Object(&TEXT_TEST)]);
pub(super) const MULTIPLIER: Kind = Kind::Decimal("a number above 0 such as `1.5`");

pub(super) const fn field(
    name: &'static str,
    kind: Kind,
    doc: &'static str,
    example: &'static str,
) -> Field {
    Field { name, kind, required: false, doc, example }
}

pub(super) const fn required(
    name: &'static str,
    kind: Kind,
    doc: &'static str,
    example: &'static str,
) -> Field {
    Field { name, kind, required: true, doc, example }
}

pub(super) const fn object(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    fields: &'static [Field],
) -> Object {
    Object { id, noun, doc, fields, others: None }
}

/// A map whose names the writer chooses.
pub(super) const fn map(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    others: &'static Others,
) -> Object {
    Object { id, noun, doc, fields: &[], others: Some(others) }
}
