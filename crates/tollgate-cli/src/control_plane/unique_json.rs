//! JSON objects without duplicate fields: readers disagree on which of two counts, so a proxy could check one
//! and this server apply the other.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Marks the error about a duplicate field among those of serde_json.
const DUPLICATE_MARK: &str = "appears twice";

/// Error of reading an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectError {
    /// A duplicate field, named in a sentence.
    DuplicateField(String),
    /// Another value, or not JSON.
    NotAnObject,
}

/// Reads one object. Nesting is bounded by serde_json, at 128 levels.
pub(super) fn read_object(body: &[u8]) -> Result<Map<String, Value>, ObjectError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read = UniqueValue.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match read {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ObjectError::NotAnObject),
        Err(error) => Err(match error.to_string().split_once(DUPLICATE_MARK) {
            Some((field, _)) => {
                ObjectError::DuplicateField(format!("{field}{DUPLICATE_MARK}: send it once."))
            }
            None => ObjectError::NotAnObject,
        }),
    }
}

/// Reads any value.
#[derive(Clone, Copy)]
struct UniqueValue;

impl<'de> DeserializeSeed<'de> for UniqueValue {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("The field {name:?} {DUPLICATE_MARK}")));
            }
            let value = fields.next_value_seed(self)?;
            object.insert(name, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_once_at_every_depth() {
        let good = r#"{"a":[1,-2,0.5,"x",true,null,{"a":{}}],"b":{"a":1}}"#;
        let read = read_object(good.as_bytes()).map(Value::Object);
        assert_eq!(read, Ok(serde_json::from_str(good).unwrap()));
        let twice = |name: &str| {
            ObjectError::DuplicateField(format!(
                "The field \"{name}\" appears twice: send it once."
            ))
        };
        let rows = [
            (r#"{"block":"1m","block":"1h"}"#, twice("block")),
            (r#"{"block":null,"bl\u006fck":null}"#, twice("block")),
            (r#"{"override":{"limits":[],"limits":["9/hour"]}}"#, twice("limits")),
            (r#"{"a":[{"b":1,"b":1}]}"#, twice("b")),
            (r#"{"a":1"#, ObjectError::NotAnObject),
            (r#"{"a":1} {}"#, ObjectError::NotAnObject),
            ("[]", ObjectError::NotAnObject),
            ("", ObjectError::NotAnObject),
        ];
        for (body, want) in rows {
            assert_eq!(read_object(body.as_bytes()), Err(want), "{body}");
        }
    }
}
