//! The table of files of envoyproxy/ratelimit: the same fields in the same places, and a few of our
//! own at the top.

use super::kinds::{ALGORITHM, WORD, field, object, required};
use super::{ShapeKind, ShapeObject};

pub(crate) static IMPORT: ShapeObject = object(
    "import",
    "a file of envoyproxy/ratelimit",
    "The limits of one domain.",
    &[
        required("domain", WORD, "The domain of the descriptors.", "domain: edge"),
        field(
            "descriptors",
            ShapeKind::List("descriptors", &DESCRIPTOR_KIND),
            "The descriptors and their limits.",
            "descriptors: [{ key: remote_address, rate_limit: { unit: second, requests_per_unit: 10 } }]",
        ),
        field(
            "algorithm",
            ALGORITHM,
            "Tollgate's own: the algorithm. The default is fixed_window, as in the reference server.",
            "algorithm: token_bucket",
        ),
        field(
            "count_denied",
            ShapeKind::Boolean,
            "Tollgate's own: charge refused hits. The default is true with fixed_window.",
            "count_denied: false",
        ),
        field(
            "on_store_failure",
            ShapeKind::Choice(&["local", "open", "closed"]),
            "Tollgate's own: the behaviour while the shared store is unavailable. The default is local.",
            "on_store_failure: open",
        ),
    ],
);

// Descriptors contain descriptors: only statics may refer to each other in a circle.
static DESCRIPTOR_KIND: ShapeKind = ShapeKind::Object(&DESCRIPTOR);

static DESCRIPTOR: ShapeObject = object(
    "descriptor",
    "a descriptor",
    "An entry, its limit, and the entries that may follow it.",
    &[
        required("key", WORD, "The key of the entry.", "key: remote_address"),
        field(
            "value",
            WORD,
            "The value of the entry; `*` stands for any text. Without it, any value.",
            "value: 192.0.2.1",
        ),
        field(
            "rate_limit",
            ShapeKind::Object(&RATE_LIMIT),
            "The limit.",
            "rate_limit: { unit: minute, requests_per_unit: 100 }",
        ),
        field(
            "descriptors",
            ShapeKind::List("descriptors", &DESCRIPTOR_KIND),
            "The entries that may follow.",
            "descriptors: [{ key: path }]",
        ),
        field("shadow_mode", ShapeKind::Boolean, "Count, but never refuse.", "shadow_mode: true"),
        field(
            "quota_mode",
            ShapeKind::Boolean,
            "Refuse only if all limits in quota mode do.",
            "quota_mode: true",
        ),
        field(
            "share_threshold",
            ShapeKind::Boolean,
            "Count all values that match a `*` together.",
            "share_threshold: true",
        ),
        field(
            "detailed_metric",
            ShapeKind::Boolean,
            "Accepted and ignored.",
            "detailed_metric: true",
        ),
        field(
            "value_to_metric",
            ShapeKind::Boolean,
            "Accepted and ignored.",
            "value_to_metric: true",
        ),
        field("metadata", ShapeKind::Any, "Accepted and ignored.", "metadata: { team: edge }"),
    ],
);

static RATE_LIMIT: ShapeObject = object(
    "rate_limit",
    "a `rate_limit`",
    "Units per period.",
    &[
        field(
            "unit",
            ShapeKind::Text("a unit such as `minute`"),
            "The period: second, minute, hour, day, week, month (30 days) or year (365 days).",
            "unit: minute",
        ),
        field(
            "requests_per_unit",
            ShapeKind::Whole(0, u32::MAX as u64),
            "The number of requests per period; 0 refuses everything.",
            "requests_per_unit: 100",
        ),
        field(
            "unlimited",
            ShapeKind::Boolean,
            "No limit; written without a unit.",
            "unlimited: true",
        ),
        field("name", WORD, "The name for clients and for `replaces`.", "name: per-address"),
        field(
            "replaces",
            ShapeKind::List("names", &ShapeKind::Object(&REPLACED)),
            "Limits that do not apply where this one does.",
            "replaces: [{ name: per-address }]",
        ),
    ],
);

static REPLACED: ShapeObject = object(
    "replaced",
    "an entry of `replaces`",
    "A limit that is replaced.",
    &[required("name", WORD, "The name of the limit.", "name: per-address")],
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
