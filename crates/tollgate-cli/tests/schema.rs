//! `tollgate schema`: what editors get.

use serde_json::Value;

use crate::command::run;

#[test]
fn the_schema_is_whole() {
    let ran = run(["schema"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let schema: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let definitions = schema["$defs"].as_object().expect("definitions");
    let mut wanted = Vec::new();
    references(&schema, &mut wanted);
    assert!(wanted.len() > definitions.len(), "{wanted:?}");
    for reference in wanted {
        let name = reference.strip_prefix("#/$defs/").expect(&reference);
        let definition = definitions.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(definition["type"], "object", "{name}");
        assert!(definition["properties"].is_object(), "{name}");
    }
}

/// Collects all references of the schema.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            found.extend(reference.map(str::to_owned));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn help_shows_how_an_editor_finds_it() {
    let help = run(["schema", "--help"]).stdout;
    for line in [
        "  tollgate schema > tollgate.schema.json\n",
        "  # yaml-language-server: $schema=tollgate.schema.json\n",
    ] {
        assert!(help.contains(line), "{help}");
    }
    assert_eq!(run(["schema", "extra"]).code, Some(2));
}
