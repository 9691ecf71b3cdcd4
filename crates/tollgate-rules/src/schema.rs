//! The JSON Schema of rules files, for editors: the table of `shape` in other words.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::shape::{FILE, ShapeKind, ShapeObject, TextPattern};

/// The JSON Schema (draft 2020-12) of a rules file.
pub fn schema() -> Value {
    let mut definitions = BTreeMap::new();
    define(&FILE, &mut definitions);
    let definitions: Map<String, Value> =
        definitions.into_iter().map(|(id, value)| (id.to_owned(), value)).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tollgate rules file",
        "$ref": reference(&FILE),
        "minProperties": 1,
        "$defs": definitions,
    })
}

fn reference(object: &ShapeObject) -> String {
    format!("#/$defs/{}", object.id)
}

/// Adds an object and all that it refers to.
fn define(object: &ShapeObject, definitions: &mut BTreeMap<&'static str, Value>) {
    // Conditions contain conditions: an object that is being defined counts as defined.
    if definitions.contains_key(object.id) {
        return;
    }
    definitions.insert(object.id, Value::Null);
    let mut properties = Map::new();
    for field in object.fields {
        let mut value = of_kind(&field.kind, definitions);
        value["description"] = format!("{} Example: {}", field.doc, field.example).into();
        properties.insert(field.name.into(), value);
    }
    let required: Vec<&str> =
        object.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let others = object.free_fields.map_or(Value::Bool(false), |others| {
        let mut value = of_kind(&others.kind, definitions);
        value["description"] = format!("{} Example: {}", others.doc, others.example).into();
        value
    });
    let mut value = json!({
        "type": "object",
        "description": object.doc,
        "properties": properties,
        "required": required,
    });
    match object.free_fields.and_then(|others| others.pattern) {
        Some(pattern) => {
            value["patternProperties"] = json!({ pattern: others });
            value["additionalProperties"] = false.into();
        }
        None => value["additionalProperties"] = others,
    }
    if object.one_field.is_some() {
        value["minProperties"] = 1.into();
        value["maxProperties"] = 1.into();
    }
    definitions.insert(object.id, value);
}

fn of_kind(kind: &ShapeKind, definitions: &mut BTreeMap<&'static str, Value>) -> Value {
    match kind {
        // Without quotes `42` is a number in YAML, but a text here.
        ShapeKind::Text(_) => json!({ "type": ["string", "number", "boolean"] }),
        ShapeKind::PatternText(_, TextPattern::Loose(pattern)) => {
            json!({ "type": ["string", "number", "boolean"], "pattern": pattern })
        }
        ShapeKind::PatternText(_, TextPattern::Strict(pattern)) => {
            json!({ "type": "string", "pattern": pattern })
        }
        ShapeKind::Decimal(_) => json!({ "anyOf": [
            { "type": "number", "exclusiveMinimum": 0 },
            { "type": "string", "pattern": r"^[0-9]+(\.[0-9]*)?$" },
        ] }),
        ShapeKind::Whole(from, to) => json!({ "type": "integer", "minimum": from, "maximum": to }),
        ShapeKind::Boolean => json!({ "type": "boolean" }),
        ShapeKind::Any => json!({}),
        ShapeKind::Choice(["true"]) => json!({ "const": true }),
        ShapeKind::Choice(words) => json!({ "enum": words }),
        ShapeKind::List(_, kind) => json!({ "type": "array", "items": of_kind(kind, definitions) }),
        ShapeKind::BoundedList(_, kind, most) => {
            let items = of_kind(kind, definitions);
            json!({ "type": "array", "items": items, "minItems": 1, "maxItems": most })
        }
        ShapeKind::Object(object) => {
            define(object, definitions);
            json!({ "$ref": reference(object) })
        }
        ShapeKind::Either(kinds) => {
            let values: Vec<Value> = kinds.iter().map(|kind| of_kind(kind, definitions)).collect();
            json!({ "anyOf": values })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::compile::compile;
    use crate::diagnostic::Diagnostics;
    use crate::source::Source;
    use crate::yaml::{self, YamlNode};

    /// A tree as JSON, by the core schema of YAML, as editors see it.
    fn to_json(node: &YamlNode) -> Value {
        match &node.value {
            yaml::YamlValue::Null => Value::Null,
            yaml::YamlValue::Quoted(text) => (**text).into(),
            yaml::YamlValue::List(items) => items.iter().map(to_json).collect(),
            yaml::YamlValue::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.to_string(), to_json(&entry.node)))
                .collect::<Map<_, _>>()
                .into(),
            yaml::YamlValue::Plain(text) => match &**text {
                "true" => true.into(),
                "false" => false.into(),
                text => serde_json::from_str(text)
                    .ok()
                    .filter(Value::is_number)
                    .unwrap_or_else(|| text.into()),
            },
        }
    }

    /// Tests which files of a directory the schema accepts.
    fn accepted(directory: &str) -> Vec<(String, bool)> {
        let validator = jsonschema::draft202012::new(&schema()).expect("the schema is one");
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory);
        let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let yaml = files.filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
        let judged = yaml.filter_map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let source = Source::from_bytes(&name, &fs::read(&path).unwrap()).ok()?;
            let root = yaml::read(&source, &mut Diagnostics::default())?;
            // Files of envoyproxy/ratelimit have another form.
            if root.entry("domain").is_some() {
                return None;
            }
            Some((name, validator.is_valid(&to_json(&root))))
        });
        judged.collect()
    }

    #[test]
    fn the_schema_accepts_what_the_reader_accepts() {
        for directory in ["good", "warned"] {
            for (name, valid) in accepted(directory) {
                assert!(valid, "{directory}/{name}.yaml");
            }
        }
    }

    #[test]
    fn the_schema_refuses_what_has_the_wrong_shape() {
        let shapes = [
            "unknown_field",
            "unknown_field_far",
            "unknown_top_level",
            "missing_key",
            "missing_name",
            "wrong_kind",
            "misspelt_algorithm",
            "zero_requests",
            "bad_headers",
            "version_2",
            "rules_as_map",
            "no_value",
            "bad_mode",
            "bad_websocket",
            "list_at_top",
        ];
        let accepted = accepted("broken");
        for shape in shapes {
            assert!(accepted.contains(&(shape.into(), false)), "{shape}.yaml");
        }
    }

    /// Every tree that differs from this one in one value or one name.
    fn variants(node: &YamlNode) -> Vec<YamlNode> {
        let value = |value| YamlNode { span: node.span, value };
        let mut found = vec![
            value(yaml::YamlValue::Null),
            value(yaml::YamlValue::Plain("true".into())),
            value(yaml::YamlValue::Plain("-1".into())),
            value(yaml::YamlValue::Plain("7".into())),
            value(yaml::YamlValue::Quoted("text".into())),
            value(yaml::YamlValue::List(Vec::new())),
            value(yaml::YamlValue::Map(Vec::new())),
        ];
        if let yaml::YamlValue::List(items) = &node.value {
            for (index, item) in items.iter().enumerate() {
                for variant in variants(item) {
                    let mut items = items.clone();
                    items[index] = variant;
                    found.push(value(yaml::YamlValue::List(items)));
                }
            }
        }
        if let yaml::YamlValue::Map(entries) = &node.value {
            for (index, entry) in entries.iter().enumerate() {
                let mut renamed = entries.clone();
                renamed[index].key = "zzz".into();
                found.push(value(yaml::YamlValue::Map(renamed)));
                // The sizes of multipliers are checked by the compiler.
                let kept = matches!(&*entry.key, "tiers").then(Vec::new);
                for variant in kept.unwrap_or_else(|| variants(&entry.node)) {
                    let mut entries = entries.clone();
                    entries[index].node = variant;
                    found.push(value(yaml::YamlValue::Map(entries)));
                }
            }
        }
        found
    }

    #[test]
    fn the_schema_and_the_reader_agree_on_every_variant_of_the_full_form() {
        agree_on_every_variant(include_str!("../tests/good/full.yaml"), (100, 300));
    }

    #[test]
    fn the_schema_and_the_reader_agree_on_every_variant_of_the_gateway() {
        agree_on_every_variant(include_str!("../tests/good/gateway.yaml"), (40, 300));
    }

    /// Compares schema and reader on every variant; more than these must be accepted and refused.
    fn agree_on_every_variant(text: &str, (accepted_above, refused_above): (usize, usize)) {
        let validator = jsonschema::draft202012::new(&schema()).expect("the schema is one");
        let source = Source::from_text("full.yaml", text);
        let root = yaml::read(&source, &mut Diagnostics::default()).unwrap();
        let variants = variants(&root);
        let mut accepted = 0;
        for variant in &variants {
            let yaml::YamlValue::Map(_) = variant.value else { continue };
            let mut diagnostics = Diagnostics::default();
            crate::shape::check_file(&source, variant, &FILE, &mut diagnostics);
            let value = to_json(variant);
            let valid = validator.is_valid(&value);
            assert!(diagnostics.is_empty() || !valid, "{diagnostics}{value}");
            // What the schema refuses, the reader refuses, if not by its form then by its meaning.
            let text = value.to_string();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/good");
            let source = Source::from_text("full.json", &text).in_folder(&folder);
            let refused = || compile(&[source]).rules.is_none();
            assert!(valid || !diagnostics.is_empty() || refused(), "{text}");
            accepted += usize::from(valid);
        }
        // Both kinds occur.
        assert!(
            accepted > accepted_above && variants.len() - accepted > refused_above,
            "{accepted} of {}",
            variants.len()
        );
    }

    #[test]
    fn the_schema_refuses_what_can_mean_nothing() {
        let validator = jsonschema::draft202012::new(&schema()).expect("the schema is one");
        let rule = |field: &str, value: Value| {
            let mut rule = json!({ "name": "a", "key": "{user}", "limits": ["1/s"] });
            rule[field] = value;
            json!({ "rules": [rule] })
        };
        let short = |endpoint: &str, multiplier: Value| {
            let limit = json!({ "requests": 1, "window": 60 });
            json!({ "rate_limits": {
                "endpoints": { endpoint: limit },
                "tiers": { "free": { "multiplier": multiplier } },
            } })
        };
        let cases = [
            (rule("name", json!(42)), true),
            (rule("name", json!("")), false),
            (rule("name", json!("a b")), false),
            (rule("key", json!("global")), true),
            (rule("key", json!("user")), false),
            (rule("key", json!(42)), false),
            (rule("limits", json!("5 per 90s")), true),
            (rule("limits", json!([])), false),
            (rule("limits", json!(vec!["1/s"; 17])), false),
            (rule("limits", json!([{ "rate": 5 }])), false),
            (rule("match", json!({ "path": "api" })), false),
            (rule("match", json!({ "path": ["/api", "api"] })), false),
            (rule("match", json!({ "regex": ".*/api" })), true),
            (rule("match", json!({ "user": { "glob": "a", "regex": "b" } })), false),
            (rule("match", json!({ "user": {} })), false),
            (rule("mode", json!({ "enforce": "12.5%" })), true),
            (rule("mode", json!({ "enforce": 25 })), false),
            (rule("consistency", json!({})), false),
            (rule("cost", json!({ "POST /x": 1, "default": 1 })), true),
            (rule("cost", json!({ "x": 3 })), false),
            (rule("ban", json!({ "after": 1, "within": 60, "for": "1m" })), false),
            (short("/x", json!("1.5")), true),
            (short("/x", json!(1.5)), true),
            (short("GET /x", json!("fast")), false),
            (short("x", json!(1)), false),
            (json!({}), false),
        ];
        for (value, want) in cases {
            assert_eq!(validator.is_valid(&value), want, "{value}");
            let source = Source::from_text("t.json", &value.to_string());
            assert_eq!(compile(&[source]).rules.is_some(), want, "{value}");
        }
    }

    #[test]
    fn every_field_is_explained() {
        let schema = schema();
        let definitions = schema["$defs"].as_object().unwrap();
        assert!(definitions.len() > 20);
        for (id, definition) in definitions {
            for (name, field) in definition["properties"].as_object().unwrap() {
                let text = field["description"].as_str().unwrap();
                assert!(text.contains(". Example: "), "{id}.{name}: {text}");
            }
        }
    }
}
