//! The small kinds of values that fields of several objects have, and how the table is written.

use tollgate::Algorithm;
use tollgate::decision::MAX_LIMITS;

use super::rule_table::{LIMIT_FIELDS, TEXT_TEST};
use super::{FreeFields, ShapeField, ShapeKind, ShapeObject, TextPattern};

/// Counts and capacities: what a decision can hold exactly, below 2^53.
pub(super) const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The beginning of an endpoint: a path, or a method and a path.
pub(super) const ENDPOINT_PATTERN: &str = r"^([A-Za-z-]+\s+)?/";

pub(super) const PATH: ShapeKind =
    ShapeKind::PatternText("a path such as `/api/{*rest}`", TextPattern::Strict("^/"));
pub(super) const PATH_EXPRESSION: ShapeKind = ShapeKind::Text("a path such as `/files/.*`");
pub(super) const RATE: ShapeKind = ShapeKind::PatternText(
    "a rate such as `10/second`",
    TextPattern::Strict(r"[0-9].*(/|\s[Pp][Ee][Rr]\s)"),
);
pub(super) const DURATION: ShapeKind =
    ShapeKind::PatternText("a duration such as `90s`", TextPattern::Strict("[A-Za-z]"));
pub(super) const CIDR: ShapeKind = ShapeKind::PatternText(
    "a network such as `10.0.0.0/8`",
    TextPattern::Strict("^[0-9A-Fa-f:.]+(/[0-9]+)?$"),
);
pub(super) const SHARE: ShapeKind = ShapeKind::PatternText(
    "a share such as `25%`",
    TextPattern::Strict(r"^[0-9]+(\.[0-9]{0,2})?\s*%$"),
);
pub(super) const KEY: ShapeKind = ShapeKind::PatternText(
    "a key such as `\"{user|ip}\"`",
    TextPattern::Strict(r"^global$|\{.+\}"),
);
pub(super) const RESERVE: ShapeKind = ShapeKind::PatternText(
    "a cost such as `2000` or `\"{request.json.max_tokens|2000}\"`",
    TextPattern::Loose(r"^([1-9][0-9]*|\{(.+\|)?[1-9][0-9]*\})$"),
);
pub(super) const ACTUAL: ShapeKind = ShapeKind::PatternText(
    "a part of the response such as `\"{response.json.usage.total_tokens}\"`",
    TextPattern::Strict(r"^\{response\.(bytes|(header|json)\..+)\}$"),
);
pub(super) const NAME: ShapeKind =
    ShapeKind::PatternText("a text", TextPattern::Loose("^[A-Za-z0-9_-]{1,64}$"));
pub(super) const HEADER: ShapeKind = ShapeKind::Text("the name of a header such as `x-user-id`");
pub(super) const HOST: ShapeKind = ShapeKind::Text("a host such as `*.example.com`");
pub(super) const WORD: ShapeKind = ShapeKind::Text("a text");
pub(super) const METHOD: ShapeKind = ShapeKind::Text("a method such as `POST`");
pub(super) const ALGORITHM: ShapeKind = ShapeKind::Choice(&Algorithm::NAMES);
// Statics, because older compilers do not promote a list that refers to one.
static LIMIT_FORMS: [ShapeKind; 2] = [RATE, ShapeKind::Object(&LIMIT_FIELDS)];
static LIMIT_LIST_FORMS: [ShapeKind; 3] =
    [RATE, ShapeKind::BoundedList("limits", &LIMIT, MAX_LIMITS), ShapeKind::Object(&LIMIT_FIELDS)];
static TEXT_FORMS: [ShapeKind; 3] =
    [WORD, ShapeKind::List("texts", &WORD), ShapeKind::Object(&TEXT_TEST)];
pub(super) const LIMIT: ShapeKind = ShapeKind::Either(&LIMIT_FORMS);
pub(super) const LIMITS: ShapeKind = ShapeKind::Either(&LIMIT_LIST_FORMS);
pub(super) const TEXTS: ShapeKind = ShapeKind::Either(&TEXT_FORMS);
pub(super) const MULTIPLIER: ShapeKind = ShapeKind::Decimal("a number above 0 such as `1.5`");

pub(super) const fn field(
    name: &'static str,
    kind: ShapeKind,
    doc: &'static str,
    example: &'static str,
) -> ShapeField {
    ShapeField { name, kind, required: false, doc, example }
}

pub(super) const fn required(
    name: &'static str,
    kind: ShapeKind,
    doc: &'static str,
    example: &'static str,
) -> ShapeField {
    ShapeField { name, kind, required: true, doc, example }
}

pub(super) const fn object(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    fields: &'static [ShapeField],
) -> ShapeObject {
    ShapeObject { id, noun, doc, fields, free_fields: None, one_field: None }
}

/// A map whose names the writer chooses.
pub(super) const fn map(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    others: &'static FreeFields,
) -> ShapeObject {
    ShapeObject { id, noun, doc, fields: &[], free_fields: Some(others), one_field: None }
}

/// An object of which exactly one field is given; the text says what to write.
pub(super) const fn one_of(object: ShapeObject, hint: &'static str) -> ShapeObject {
    ShapeObject { one_field: Some(hint), ..object }
}
