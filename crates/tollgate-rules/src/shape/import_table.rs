//! The table of files of envoyproxy/ratelimit: the same fields in the same places, and a few of our
//! own at the top.

use super::kinds::{ALGORITHM, WORD, field, object, required};
use super::{ShapeKind, ShapeObject};

pub(crate) static IMPORT: ShapeObject = object(
    "import",
    "a file of envoyproxy/ratelimit",
    "The limits of one domain.",
    &[
        required("domain", WORD, "Whose descriptors these are.", "domain: edge"),
        field(
            "descriptors",
            ShapeKind::List("descriptors", &DESCRIPTOR_KIND),
            "What is limited.",
            "descriptors: [{ key: remote_address, rate_limit: { unit: second, requests_per_unit: 10 } }]",
        ),
        field(
            "algorithm",
            ALGORITHM,
            "Tollgate's own: who decides. The default is fixed_window, as in the reference server.",
            "algorithm: token_bucket",
        ),
        field(
            "count_denied",
            ShapeKind::Boolean,
            "Tollgate's own: whether refused hits are charged. The default is true with fixed_window.",
            "count_denied: false",
        ),
        field(
            "on_store_failure",
            ShapeKind::Choice(&["local", "open", "closed"]),
            "Tollgate's own: what to do while a shared store does not answer. The default is local.",
            "on_store_failure: open",
        ),
    ],
);

// Descriptors contain descriptors: only statics may refer to each other in a circle.
static DESCRIPTOR_KIND: ShapeKind = ShapeKind::Object(&DESCRIPTOR);

static DESCRIPTOR: ShapeObject = object(
    "descriptor",
    "a descriptor",
    "An entry, its limit, and what may stand behind it.",
    &[
        required("key", WORD, "The key of the entry.", "key: remote_address"),
        field(
            "value",
            WORD,
            "Its value; `*` stands for any text. Without it, any value.",
            "value: 192.0.2.1",
        ),
        field(
            "rate_limit",
            ShapeKind::Object(&RATE_LIMIT),
            "How much is allowed.",
            "rate_limit: { unit: minute, requests_per_unit: 100 }",
        ),
        field(
            "descriptors",
            ShapeKind::List("descriptors", &DESCRIPTOR_KIND),
            "The next entries.",
            "descriptors: [{ key: path }]",
        ),
        field("shadow_mode", ShapeKind::Boolean, "Count, do not refuse.", "shadow_mode: true"),
        field(
            "quota_mode",
            ShapeKind::Boolean,
            "Refuse only where all limits in quota mode do.",
            "quota_mode: true",
        ),
        field(
            "share_threshold",
            ShapeKind::Boolean,
            "All values that fit a `*` share one count.",
            "share_threshold: true",
        ),
        field(
            "detailed_metric",
            ShapeKind::Boolean,
            "Changes nothing here.",
            "detailed_metric: true",
        ),
        field(
            "value_to_metric",
            ShapeKind::Boolean,
            "Changes nothing here.",
            "value_to_metric: true",
        ),
        field("metadata", ShapeKind::Any, "Changes nothing here.", "metadata: { team: edge }"),
    ],
);

static RATE_LIMIT: ShapeObject = object(
    "rate_limit",
    "a `rate_limit`",
    "How much in which time.",
    &[
        field(
            "unit",
            ShapeKind::Text("a unit such as `minute`"),
            "second, minute, hour, day, week, month (30 days) or year (365 days).",
            "unit: minute",
        ),
        field(
            "requests_per_unit",
            ShapeKind::Whole(0, u32::MAX as u64),
            "How much; 0 refuses everything.",
            "requests_per_unit: 100",
        ),
        field("unlimited", ShapeKind::Boolean, "No limit, and no unit.", "unlimited: true"),
        field("name", WORD, "What clients and `replaces` call it.", "name: per-address"),
        field(
            "replaces",
            ShapeKind::List("names", &ShapeKind::Object(&REPLACED)),
            "Limits that do not count where this one does.",
            "replaces: [{ name: per-address }]",
        ),
    ],
);

static REPLACED: ShapeObject = object(
    "replaced",
    "an entry of `replaces`",
    "A limit that does not count.",
    &[required("name", WORD, "Its name.", "name: per-address")],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_these_files_has_every_field() {
        let page = include_str!("../../../../docs/reference/envoy-files.md");
        for object in [&IMPORT, &DESCRIPTOR, &RATE_LIMIT] {
            for field in object.fields {
                let row = page.lines().find(|line| {
                    let first = line.split('|').nth(1).unwrap_or_default();
                    line.starts_with('|') && first.contains(&format!("`{}`", field.name))
                });
                assert!(row.is_some(), "docs/reference/envoy-files.md has no `{}`", field.name);
            }
        }
    }
}
