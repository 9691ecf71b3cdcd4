//! The JSON Schema of rules files, for editors: the table of `shape` in other words.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::shape::{FILE, Kind, Object};

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
        "$defs": definitions,
    })
}

fn reference(object: &Object) -> String {
    format!("#/$defs/{}", object.id)
}

/// Adds an object and all that it refers to.
fn define(object: &Object, definitions: &mut BTreeMap<&'static str, Value>) {
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
    let others = object.others.map_or(Value::Bool(false), |others| {
        let mut value = of_kind(&others.kind, definitions);
        value["description"] = format!("{} Example: {}", others.doc, others.example).into();
        value
    });
    let value = json!({
        "type": "object",
        "description": object.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": others,
    });
    definitions.insert(object.id, value);
}

fn of_kind(kind: &Kind, definitions: &mut BTreeMap<&'static str, Value>) -> Value {
    match kind {
        // Without quotes YAML takes `42` for a number; to us it is a text.
        Kind::Text(_) => json!({ "type": ["string", "number", "boolean"] }),
        Kind::Decimal(_) => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Whole(from, to) => json!({ "type": "integer", "minimum": from, "maximum": to }),
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Choice(["true"]) => json!({ "const": true }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::List(_, kind) => json!({ "type": "array", "items": of_kind(kind, definitions) }),
        Kind::Object(object) => {
            define(object, definitions);
            json!({ "$ref": reference(object) })
        }
        Kind::Either(kinds) => {
            let values: Vec<Value> = kinds.iter().map(|kind| of_kind(kind, definitions)).collect();
            json!({ "anyOf": values })
        }
    }
}
