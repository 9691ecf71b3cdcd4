//! Fields that stand in the wrong object, such as `mode` at the top of a file: where they belong.

use super::rule_table::{LIMIT_FIELDS, MATCH, RULE};
use super::{FILE, ShapeObject};

/// An object with fields that people write into another one, and the advice for such a field.
struct FieldHome {
    /// The object that the field stands in.
    found_in: &'static ShapeObject,
    /// The object that has the field.
    belongs_to: &'static ShapeObject,
    /// The place to write it.
    place: fn(example: &str) -> String,
}

static HOMES: [FieldHome; 6] = [
    FieldHome {
        found_in: &FILE,
        belongs_to: &RULE,
        place: |_| "write it below the rule's `name`".into(),
    },
    FieldHome {
        found_in: &RULE,
        belongs_to: &LIMIT_FIELDS,
        place: |example| {
            let rate = if example.starts_with("rate:") { "" } else { "rate: 10/second, " };
            format!("write it there, such as `limits: [{{ {rate}{example} }}]`")
        },
    },
    FieldHome {
        found_in: &RULE,
        belongs_to: &MATCH,
        place: |example| format!("write it there, such as `match: {{ {example} }}`"),
    },
    FieldHome {
        found_in: &RULE,
        belongs_to: &FILE,
        place: |_| "write it at the top of the file, without indentation".into(),
    },
    FieldHome {
        found_in: &LIMIT_FIELDS,
        belongs_to: &RULE,
        place: |_| "write it beside `limits`".into(),
    },
    FieldHome { found_in: &MATCH, belongs_to: &RULE, place: |_| "write it beside `match`".into() },
];

/// The advice for a field that does not belong to this object but to one around or inside it.
pub(super) fn advice(object: &ShapeObject, name: &str) -> Option<String> {
    let homes = HOMES.iter().filter(|home| std::ptr::eq(home.found_in, object));
    homes.into_iter().find_map(|home| {
        let field = home.belongs_to.field(name)?;
        let place = (home.place)(field.example);
        Some(format!("`{name}` is a field of {}: {place}", home.belongs_to.noun))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_sent_to_the_object_that_has_it() {
        let rows = [
            (&FILE, "mode", Some("`mode` is a field of a rule: write it below the rule's `name`")),
            (&RULE, "rate", Some("such as `limits: [{ rate: 100/minute }]`")),
            (&RULE, "burst", Some("such as `limits: [{ rate: 10/second, burst: 20 }]`")),
            (&RULE, "ip", Some("`ip` is a field of a `match`: write it there, such as `match: {")),
            (&RULE, "tiers", Some("`tiers` is a field of a rules file: write it at the top")),
            (&LIMIT_FIELDS, "cost", Some("`cost` is a field of a rule: write it beside `limits`")),
            (&MATCH, "key", Some("`key` is a field of a rule: write it beside `match`")),
            (&FILE, "algorithm", None),
            (&RULE, "colour", None),
        ];
        for (object, name, want) in rows {
            let found = advice(object, name);
            let fits = match want {
                Some(want) => found.as_ref().is_some_and(|found| found.contains(want)),
                None => found.is_none(),
            };
            assert!(fits, "{name}: {found:?}");
        }
    }
}
