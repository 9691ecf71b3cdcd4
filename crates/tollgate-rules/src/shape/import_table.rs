//! The table of files of envoyproxy/ratelimit: the same fields in the same places, and a few of our
//! own at the top.

use super::kinds::{ALGORITHM, WORD, field, object, required};
use super::{Kind, Object};

pub(crate) static IMPORT: Object = object(
    "import",
    "a file of envoyproxy/ratelimit",
    "The limits of one domain.",
    &[
        required("domain", WORD, "Whose descriptors these are.", "domain: edge"),
        field(
            "descriptors",
            Kind::List("descriptors", &A_DESCRIPTOR),
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
            Kind::Boolean,
            "Tollgate's own: whether refused hits are charged. The default is true with fixed_window.",
            "count_denied: false",
        ),
        field(
            "on_store_failure",
            Kind::Choice(&["local", "open", "closed"]),
            "Tollgate's own: what to do while a shared store does not answer. The default is local.",
            "on_store_failure: open",
        ),
    ],
);

// Descriptors contain descriptors: only statics may refer to each other in a circle.
static A_DESCRIPTOR: Kind = Kind::Object(&DESCRIPTOR);

static DESCRIPTOR: Object = object(
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
            Kind::Object(&RATE_LIMIT),
            "How much is allowed.",
            "rate_limit: { unit: minute, requests_per_unit: 100 }",
        ),
        field(
            "descriptors",
            Kind::List("descriptors", &A_DESCRIPTOR),
            "The next entries.",
            "descriptors: [{ key: path }]",
        ),
        field("shadow_mode", Kind::Boolean, "Count, do not refuse.", "shadow_mode: true"),
        field(
            "quota_mode",
            Kind::Boolean,
            "Refuse only where all limits in quota mode do.",
            "quota_mode: true",
        ),
        field(
            "share_threshold",
            Kind::Boolean,
            "All values that fit a `*` share one count.",
            "share_threshold: true",
        ),
        field("detailed_metric", Kind::Boolean, "Changes nothing here.", "detailed_metric: true"),
        field("value_to_metric", Kind::Boolean, "Changes nothing here.", "value_to_metric: true"),
        field("metadata", Kind::Any, "Changes nothing here.", "metadata: { team: edge }"),
    ],
);

static RATE_LIMIT: Object = object(
    "rate_limit",
    "a `rate_limit`",
    "How much in which time.",
    &[
        field(
            "unit",
            Kind::Text("a unit such as `minute`"),
            "second, minute, hour, day, week, month (30 days) or year (365 days).",
            "unit: minute",
        ),
        field(
            "requests_per_unit",
            Kind::Whole(0, u32::MAX as u64),
            "How much; 0 refuses everything.",
            "requests_per_unit: 100",
        ),
        field("unlimited", Kind::Boolean, "No limit, and no unit.", "unlimited: true"),
        field("name", WORD, "What clients and `replaces` call it.", "name: per-address"),
        field(
            "replaces",
            Kind::List("names", &Kind::Object(&REPLACED)),
            "Limits that do not count where this one does.",
            "replaces: [{ name: per-address }]",
        ),
    ],
);

static REPLACED: Object = object(
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
