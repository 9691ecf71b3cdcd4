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
    rate_in_fields(object, name).or_else(|| advice_for(object, name))
}

/// The same for a field whose name is misspelt as well.
pub(super) fn advice_for_misspelt(object: &ShapeObject, name: &str) -> Option<String> {
    let meant = homes_of(object).find_map(|home| home.belongs_to.suggest(name))?;
    let advice = advice_for(object, meant)?;
    Some(format!("did you mean `{meant}`? {advice}"))
}

fn homes_of(object: &ShapeObject) -> impl Iterator<Item = &'static FieldHome> {
    HOMES.iter().filter(move |home| std::ptr::eq(home.found_in, object))
}

fn advice_for(object: &ShapeObject, name: &str) -> Option<String> {
    homes_of(object).find_map(|home| {
        let field = home.belongs_to.field(name)?;
        let place = (home.place)(field.example);
        Some(format!("`{name}` is a field of {}: {place}", home.belongs_to.noun))
    })
}

/// The advice for a limit whose rate is spread over fields, as in `{ minute: 10, hour: 100 }` and in the short form.
fn rate_in_fields(object: &ShapeObject, name: &str) -> Option<String> {
    if !std::ptr::eq(object, &LIMIT_FIELDS) {
        return None;
    }
    match name.strip_prefix("per_").unwrap_or(name).trim_end_matches('s') {
        unit @ ("second" | "minute" | "hour" | "day" | "week" | "month") => {
            Some(format!("a rate is one text, with its number: `limits: [100/{unit}]`"))
        }
        "request" | "window" | "period" | "limit" | "unit" => {
            Some("a rate is one text: write `rate: 100/60s`".into())
        }
        _ => None,
    }
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
            (
                &LIMIT_FIELDS,
                "minute",
                Some("a rate is one text, with its number: `limits: [100/minute]`"),
            ),
            (&LIMIT_FIELDS, "window", Some("write `rate: 100/60s`")),
            (&RULE, "minute", None),
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
        let misspelt = advice_for_misspelt(&RULE, "algoritm").unwrap();
        assert!(
            misspelt.starts_with("did you mean `algorithm`? `algorithm` is a field of a limit: ")
        );
        assert_eq!(advice_for_misspelt(&RULE, "colour"), None);
    }
}
