//! What callers send, as JSON: read in place, and strictly, because a misspelt field that is
//! ignored would be a limit that is not applied.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use tollgate::time::MAX_EXACT;

/// The most header fields of one question.
const HEADERS_MAX: usize = 100;

/// The most questions of a batch.
pub(super) const BATCH_MAX: usize = 1_000;

/// The fields that a body may have.
pub(super) type Fields = &'static [&'static str];

pub(super) const CHECK: Fields =
    &["method", "path", "ip", "user", "tier", "api_key", "headers", "cost"];
pub(super) const RESERVE: Fields =
    &["method", "path", "ip", "user", "tier", "api_key", "headers", "cost", "expires_in_ms"];
pub(super) const COMMIT: Fields = &["reservation", "cost"];
pub(super) const REFUND: Fields =
    &["method", "path", "ip", "user", "tier", "api_key", "headers", "cost", "reservation"];

/// A question as it was sent. Everything is optional, and `null` is nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) path: Option<Cow<'a, str>>,
    pub(super) ip: Option<IpAddr>,
    pub(super) user: Option<Cow<'a, str>>,
    pub(super) tier: Option<Cow<'a, str>>,
    pub(super) api_key: Option<Cow<'a, str>>,
    /// Bound: `HEADERS_MAX`.
    pub(super) headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) cost: Option<u64>,
    pub(super) expires_in_ms: Option<u64>,
    pub(super) reservation: Option<Cow<'a, str>>,
}

impl<'a> Asked<'a> {
    /// Reads a body that may have these fields; an empty one has none.
    pub(super) fn read(body: &'a [u8], fields: Fields) -> Result<Asked<'a>, String> {
        if body.is_empty() {
            return Ok(Asked::default());
        }
        read(body, Question(fields))
    }

    /// Whether it has a fact or a cost, not only a reservation.
    pub(super) fn is_a_check(&self) -> bool {
        *self != Asked { reservation: self.reservation.clone(), ..Asked::default() }
    }
}

/// Reads a batch of checks.
pub(super) fn read_batch(body: &[u8]) -> Result<Vec<Asked<'_>>, String> {
    read(body, Batch)
}

fn read<'a, S: DeserializeSeed<'a>>(body: &'a [u8], what: S) -> Result<S::Value, String> {
    // Looked at once as a whole; the reader would look at each string.
    let text = std::str::from_utf8(body)
        .map_err(|error| format!("The body is not UTF-8: see byte {}.", error.valid_up_to()))?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = what.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    read.map_err(|error| {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let problem = text.strip_suffix(&place).unwrap_or(&text);
        format!("Line {}, column {}: {problem}.", error.line(), error.column())
    })
}

/// One question: an object of these fields.
struct Question(Fields);

impl<'de> DeserializeSeed<'de> for Question {
    type Value = Asked<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Asked<'de>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Question {
    type Value = Asked<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with any of {}", self.0.join(", "))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Asked<'de>, M::Error> {
        let mut asked = Asked::default();
        let mut seen = 0_u16;
        while let Some(name) = map.next_key_seed(Text("a field"))?.flatten() {
            let Some(index) = self.0.iter().position(|field| *field == name) else {
                let known = self.0.join(", ");
                return Err(M::Error::custom(format!(
                    "there is no field {name:?}: write any of {known}"
                )));
            };
            if seen >> index & 1 == 1 {
                return Err(M::Error::custom(format!("{name:?} stands twice")));
            }
            seen |= 1 << index;
            asked.read_field(self.0[index], &mut map)?;
        }
        Ok(asked)
    }
}

impl<'de> Asked<'de> {
    fn read_field<M: MapAccess<'de>>(
        &mut self,
        field: &'static str,
        map: &mut M,
    ) -> Result<(), M::Error> {
        match field {
            "method" => self.method = map.next_value_seed(Text(field))?.map(in_capitals),
            "path" => self.path = map.next_value_seed(Text(field))?,
            "ip" => self.ip = map.next_value_seed(Address)?,
            "user" => self.user = map.next_value_seed(Text(field))?,
            "tier" => self.tier = map.next_value_seed(Text(field))?,
            "api_key" => self.api_key = map.next_value_seed(Text(field))?,
            "headers" => self.headers = map.next_value_seed(HeaderFields)?,
            "cost" => self.cost = map.next_value_seed(Number(field))?,
            "expires_in_ms" => self.expires_in_ms = map.next_value_seed(Number(field))?,
            "reservation" => self.reservation = map.next_value_seed(Text(field))?,
            _ => unreachable!("{field} is in one of the lists above"),
        }
        Ok(())
    }
}

/// Rules know methods in capitals.
fn in_capitals(method: Cow<'_, str>) -> Cow<'_, str> {
    match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(method.to_ascii_uppercase()),
        false => method,
    }
}

/// A string or null, in the field of this name.
struct Text(&'static str);

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string for {:?}", self.0)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.into())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// An IP address or null.
struct Address;

impl<'de> DeserializeSeed<'de> for Address {
    type Value = Option<IpAddr>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Address {
    type Value = Option<IpAddr>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address for \"ip\", such as 192.0.2.1 or 2001:db8::1")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text.parse::<IpAddr>() {
            Ok(ip) => Ok(Some(ip.to_canonical())),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A count or null, in the field of this name.
struct Number(&'static str);

impl<'de> DeserializeSeed<'de> for Number {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Number {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX_EXACT} for {:?}", self.0)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        match number {
            0..=MAX_EXACT => Ok(Some(number)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Header fields: an object of strings, or null.
struct HeaderFields;

impl<'de> DeserializeSeed<'de> for HeaderFields {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for HeaderFields {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings for \"headers\"")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut fields: Self::Value = Vec::new();
        while let Some(name) = map.next_key_seed(Text("a header"))?.flatten() {
            if fields.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
                return Err(M::Error::custom(format!("the header {name:?} stands twice")));
            }
            if fields.len() == HEADERS_MAX {
                let problem = format!("\"headers\" has more than {HEADERS_MAX} fields");
                return Err(M::Error::custom(problem));
            }
            let value = map.next_value_seed(Text("a header"))?;
            fields.extend(value.map(|value| (name, value)));
        }
        Ok(fields)
    }
}

/// A list of checks.
struct Batch;

impl<'de> DeserializeSeed<'de> for Batch {
    type Value = Vec<Asked<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Batch {
    type Value = Vec<Asked<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of at most {BATCH_MAX} checks")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let mut batch = Vec::new();
        loop {
            let index = batch.len();
            // The place stands at the end of the text, and is found there again.
            let next = list.next_element_seed(Question(CHECK));
            let next = next.map_err(|error| S::Error::custom(format!("in check {index}, {error}")));
            let Some(asked) = next? else { return Ok(batch) };
            if index == BATCH_MAX {
                return Err(S::Error::custom(format!("there are more than {BATCH_MAX} checks")));
            }
            batch.push(asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_none_is_needed() {
        let text = r#" {"method":"get","path":"/a\u00e9","ip":"::ffff:192.0.2.1","user":"42",
            "tier":null,"api_key":"k","headers":{"X-A":"1","x-b":"2"},"cost":9007199254740991} "#;
        let asked = Asked::read(text.as_bytes(), CHECK).unwrap();
        assert_eq!(asked.method.as_deref(), Some("GET"));
        assert_eq!(asked.path.as_deref(), Some("/a\u{e9}"));
        assert_eq!(asked.ip, Some("192.0.2.1".parse().unwrap()));
        assert!(matches!(asked.user, Some(Cow::Borrowed("42"))), "read in place");
        assert_eq!((asked.tier, asked.cost), (None, Some(MAX_EXACT)));
        assert_eq!(asked.headers, [("X-A".into(), "1".into()), ("x-b".into(), "2".into())]);
        for nothing in ["", "{}", r#"{"user":null,"headers":null,"cost":null,"ip":null}"#] {
            assert_eq!(Asked::read(nothing.as_bytes(), CHECK), Ok(Asked::default()), "{nothing}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let many = (0..101).map(|n| format!("\"h{n}\":\"\"")).collect::<Vec<_>>().join(",");
        let many = format!("{{\"headers\":{{{many}}}}}");
        let rows = [
            (
                "[]",
                "Line 1, column 0: invalid type: sequence, expected an object with any of method",
            ),
            ("{", "Line 1, column 1: EOF while parsing an object."),
            ("{} x", "Line 1, column 4: trailing characters."),
            (
                r#"{"pth":"/"}"#,
                "Line 1, column 6: there is no field \"pth\": write any of method, path, ip, user, tier, api_key, headers, cost.",
            ),
            (
                r#"{"path":5}"#,
                "Line 1, column 9: invalid type: integer `5`, expected a string for \"path\".",
            ),
            (r#"{"user":"a","user":"b"}"#, "Line 1, column 18: \"user\" stands twice."),
            (
                r#"{"cost":-1}"#,
                "Line 1, column 10: invalid value: integer `-1`, expected a whole number from 0 to 9007199254740991 for \"cost\".",
            ),
            (
                r#"{"cost":1.5}"#,
                "Line 1, column 11: invalid type: floating point `1.5`, expected a whole",
            ),
            (
                r#"{"cost":9007199254740992}"#,
                "Line 1, column 24: invalid value: integer `9007199254740992`",
            ),
            (r#"{"cost":"1"}"#, "Line 1, column 11: invalid type: string \"1\", expected a whole"),
            (
                r#"{"ip":"300.0.0.1"}"#,
                "Line 1, column 17: invalid value: string \"300.0.0.1\", expected an address for \"ip\", such as 192.0.2.1",
            ),
            (
                r#"{"headers":[]}"#,
                "Line 1, column 13: invalid type: sequence, expected an object of strings for \"headers\".",
            ),
            (
                r#"{"headers":{"a":1}}"#,
                "Line 1, column 17: invalid type: integer `1`, expected a string for",
            ),
            (r#"{"headers":{"A":"","a":""}}"#, "Line 1, column 22: the header \"a\" stands twice."),
            ("{\n \"path\": tru}", "Line 2, column 13: expected ident."),
            ("{\"path\":\"\u{1}\"}", "Line 1, column 10: control character"),
            (&many, "Line 1, column 908: \"headers\" has more than 100 fields."),
        ];
        for (text, want) in rows {
            let problem = Asked::read(text.as_bytes(), CHECK).expect_err(text);
            assert!(problem.starts_with(want), "{text}:\n{problem}\n{want}");
        }
    }

    #[test]
    fn batches_name_the_check() {
        assert_eq!(read_batch(b"[]").unwrap().len(), 0);
        assert_eq!(read_batch(br#"[{},{"user":"1"}]"#).unwrap()[1].user.as_deref(), Some("1"));
        let full = format!("[{}]", vec!["{}"; 1_000].join(","));
        assert_eq!(read_batch(full.as_bytes()).unwrap().len(), 1_000);
        let more = format!("[{}]", vec!["{}"; 1_001].join(","));
        let rows = [
            ("{}", "expected an array of at most 1000 checks"),
            (r#"[{},{"cost":-1}]"#, "Line 1, column 14: in check 1, invalid value: integer `-1`"),
            (&more, "there are more than 1000 checks."),
        ];
        for (text, want) in rows {
            let problem = read_batch(text.as_bytes()).expect_err(text);
            assert!(problem.contains(want), "{problem}");
        }
    }
}
