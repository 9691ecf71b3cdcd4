//! The small kinds of values that fields of several objects have, and how the table is written.

use tollgate::decision::MAX_LIMITS;

use super::rule_table::{LIMIT_FIELDS, TEXT_TEST};
use super::{Field, Kind, Object, Others, Spelling};

/// Counts and capacities: what a decision can hold exactly, below 2^53.
pub(super) const MOST: u64 = (1 << 53) - 1;

/// Where a path begins, or the method before it.
pub(super) const ENDPOINT_PATTERN: &str = r"^([A-Za-z-]+\s+)?/";

pub(super) const PATH: Kind =
    Kind::Spelled("a path such as `/api/{*rest}`", Spelling::Strict("^/"));
pub(super) const PATH_EXPRESSION: Kind = Kind::Text("a path such as `/files/.*`");
pub(super) const RATE: Kind =
    Kind::Spelled("a rate such as `10/second`", Spelling::Strict(r"[0-9].*(/|\s[Pp][Ee][Rr]\s)"));
pub(super) const DURATION: Kind =
    Kind::Spelled("a duration such as `90s`", Spelling::Strict("[A-Za-z]"));
pub(super) const CIDR: Kind =
    Kind::Spelled("a network such as `10.0.0.0/8`", Spelling::Strict("^[0-9A-Fa-f:.]+(/[0-9]+)?$"));
pub(super) const SHARE: Kind =
    Kind::Spelled("a share such as `25%`", Spelling::Strict(r"^[0-9]+(\.[0-9]{0,2})?\s*%$"));
pub(super) const KEY: Kind =
    Kind::Spelled("a key such as `\"{user|ip}\"`", Spelling::Strict(r"^global$|\{.+\}"));
pub(super) const NAME: Kind = Kind::Spelled("a text", Spelling::Loose("^[A-Za-z0-9_-]{1,64}$"));
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
    Kind::Either(&[RATE, Kind::Several("limits", &LIMIT, MAX_LIMITS), Kind::Object(&LIMIT_FIELDS)]);
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
    Object { id, noun, doc, fields, others: None, one_field: None }
}

/// A map whose names the writer chooses.
pub(super) const fn map(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    others: &'static Others,
) -> Object {
    Object { id, noun, doc, fields: &[], others: Some(others), one_field: None }
}

/// An object of which exactly one field is given; the text says what to write.
pub(super) const fn one_of(object: Object, hint: &'static str) -> Object {
    Object { one_field: Some(hint), ..object }
}
