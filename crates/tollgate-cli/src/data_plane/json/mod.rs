//! JSON bodies of checks, read in place. Unknown fields are errors: if a misspelt one were ignored, its limit would not
//! apply.
//!
//! The fields are here, the syntax is in `reader.rs`. Both are written for these bodies only: every value has one type,
//! so nothing is skipped and nothing nests. `against_serde.rs` checks that they accept the same bodies as serde_json.
//! By hand, because a typical check takes 1,056 instructions instead of serde_json's 1,572, and errors name the field and
//! its position.

#[cfg(test)]
mod against_serde;
mod plain_prefix;
pub(crate) mod reader;

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate_rules::matcher::to_uppercase;

use self::reader::{JsonError, JsonReader};

pub(crate) use self::plain_prefix::plain_prefix_len;

/// Maximum header fields of one check.
const HEADERS_MAX: usize = 100;

/// Maximum checks of a batch.
pub(super) const BATCH_MAX: usize = 1_000;

/// A field of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyField {
    Method,
    Path,
    Host,
    Ip,
    User,
    Tier,
    ApiKey,
    Headers,
    Cost,
    ExpiresInMs,
    Reservation,
}

/// Names of the fields, in the order of [`BodyField`].
const FIELD_NAMES: [&str; 11] = [
    "method",
    "path",
    "host",
    "ip",
    "user",
    "tier",
    "api_key",
    "headers",
    "cost",
    "expires_in_ms",
    "reservation",
];

impl BodyField {
    fn from_name(name: &str) -> Option<BodyField> {
        Some(match name {
            "method" => BodyField::Method,
            "path" => BodyField::Path,
            "host" => BodyField::Host,
            "ip" => BodyField::Ip,
            "user" => BodyField::User,
            "tier" => BodyField::Tier,
            "api_key" => BodyField::ApiKey,
            "headers" => BodyField::Headers,
            "cost" => BodyField::Cost,
            "expires_in_ms" => BodyField::ExpiresInMs,
            "reservation" => BodyField::Reservation,
            _ => return None,
        })
    }
}

/// A set of fields, one bit each.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyFieldSet(u16);

pub(super) const CHECK_FIELDS: BodyFieldSet = BodyFieldSet(0x1ff);
pub(super) const RESERVE_FIELDS: BodyFieldSet = CHECK_FIELDS.with(BodyField::ExpiresInMs);
pub(super) const COMMIT_FIELDS: BodyFieldSet =
    BodyFieldSet(0).with(BodyField::Cost).with(BodyField::Reservation);
pub(super) const REFUND_FIELDS: BodyFieldSet = CHECK_FIELDS.with(BodyField::Reservation);

impl BodyFieldSet {
    const fn with(self, field: BodyField) -> BodyFieldSet {
        BodyFieldSet(self.0 | 1 << field as u16)
    }

    fn has(self, field: BodyField) -> bool {
        self.0 >> field as u16 & 1 == 1
    }

    /// Names of the fields.
    pub(super) fn names(self) -> Vec<&'static str> {
        let known = FIELD_NAMES.iter().enumerate().filter(|(index, _)| self.0 >> index & 1 == 1);
        known.map(|(_, name)| *name).collect()
    }
}

/// The body of a check. Every field is optional, and `null` counts as absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CheckBody<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) path: Option<Cow<'a, str>>,
    pub(super) host: Option<Cow<'a, str>>,
    pub(super) ip: Option<IpAddr>,
    pub(super) user: Option<Cow<'a, str>>,
    pub(super) tier: Option<Cow<'a, str>>,
    pub(super) api_key: Option<Cow<'a, str>>,
    /// Bound: `HEADERS_MAX`.
    pub(super) headers: Vec<JsonHeader<'a>>,
    pub(super) cost: Option<u64>,
    pub(super) expires_in_ms: Option<u64>,
    pub(super) reservation: Option<Cow<'a, str>>,
}

/// Name and value.
type JsonHeader<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> CheckBody<'a> {
    /// Reads a body that may have these fields. An empty body is `{}`.
    pub(super) fn read(body: &'a [u8], fields: BodyFieldSet) -> Result<CheckBody<'a>, String> {
        let mut asked = CheckBody::default();
        if !body.is_empty() {
            reader::read(body, |reader| reader.check_body(fields, &mut asked))?;
        }
        Ok(asked)
    }

    /// Returns true if it has a fact or a cost, not only a reservation.
    pub(super) fn has_check_fields(&self) -> bool {
        *self != CheckBody { reservation: self.reservation.clone(), ..CheckBody::default() }
    }
}

/// Reads a batch of checks.
pub(super) fn read_batch(body: &[u8]) -> Result<Vec<CheckBody<'_>>, String> {
    reader::read(body, JsonReader::check_batch)
}

impl<'a> JsonReader<'a> {
    /// Reads an array of checks.
    fn check_batch(&mut self) -> Result<Vec<CheckBody<'a>>, JsonError> {
        if !self.take_byte(b'[') {
            return Err(self.expected_error(&format!("an array of at most {BATCH_MAX} checks")));
        }
        let mut batch = Vec::new();
        if self.take_byte(b']') {
            return Ok(batch);
        }
        loop {
            let index = batch.len();
            if index == BATCH_MAX {
                let place = self.next_offset();
                return Err(self.error_at(place, format!("there are more than {BATCH_MAX} checks")));
            }
            let asked = batch.push_mut(CheckBody::default());
            self.check_body(CHECK_FIELDS, asked).map_err(|mut mistake| {
                mistake.problem = format!("in check {index}, {}", mistake.problem);
                mistake
            })?;
            if self.take_byte(b']') {
                return Ok(batch);
            }
            if !self.take_byte(b',') {
                return Err(self.expected_error("`,` or `]`"));
            }
        }
    }

    /// Reads one check: an object of these fields. Filled in place, because it is large.
    fn check_body(
        &mut self,
        fields: BodyFieldSet,
        asked: &mut CheckBody<'a>,
    ) -> Result<(), JsonError> {
        let mut seen = BodyFieldSet(0);
        if !self.take_byte(b'{') {
            return Err(self
                .expected_error(&format!("an object with any of {}", fields.names().join(", "))));
        }
        if self.take_byte(b'}') {
            return Ok(());
        }
        loop {
            let (name_at, name) = self.member_name()?;
            let Some(field) = BodyField::from_name(&name).filter(|field| fields.has(*field)) else {
                let known = fields.names().join(", ");
                let problem = format!("there is no field {name:?}: write any of {known}");
                return Err(self.error_at(name_at, problem));
            };
            if seen.has(field) {
                return Err(self.error_at(name_at, format!("{name:?} appears twice")));
            }
            seen = seen.with(field);
            self.check_body_field(field, asked)?;
            if !self.has_another_member()? {
                return Ok(());
            }
        }
    }

    fn check_body_field(
        &mut self,
        field: BodyField,
        asked: &mut CheckBody<'a>,
    ) -> Result<(), JsonError> {
        let name = FIELD_NAMES[field as usize];
        match field {
            BodyField::Method => asked.method = self.text_or_null(name)?.map(to_uppercase),
            BodyField::Path => asked.path = self.text_or_null(name)?,
            BodyField::Host => asked.host = self.text_or_null(name)?,
            BodyField::Ip => asked.ip = self.address_or_null()?,
            BodyField::User => asked.user = self.text_or_null(name)?,
            BodyField::Tier => asked.tier = self.text_or_null(name)?,
            BodyField::ApiKey => asked.api_key = self.text_or_null(name)?,
            BodyField::Headers => asked.headers = self.headers_or_null()?,
            BodyField::Cost => asked.cost = self.number_or_null(name)?,
            BodyField::ExpiresInMs => asked.expires_in_ms = self.number_or_null(name)?,
            BodyField::Reservation => asked.reservation = self.text_or_null(name)?,
        }
        Ok(())
    }

    fn headers_or_null(&mut self) -> Result<Vec<JsonHeader<'a>>, JsonError> {
        let mut headers: Vec<JsonHeader<'a>> = Vec::new();
        if !self.take_byte(b'{') {
            return match self.take_null_here() {
                true => Ok(headers),
                false => Err(self.expected_error("an object of strings for \"headers\"")),
            };
        }
        if self.take_byte(b'}') {
            return Ok(headers);
        }
        loop {
            let (name_at, name) = self.member_name()?;
            if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
                return Err(self.error_at(name_at, format!("the header {name:?} appears twice")));
            }
            if headers.len() == HEADERS_MAX {
                let problem = format!("\"headers\" has more than {HEADERS_MAX} fields");
                return Err(self.error_at(name_at, problem));
            }
            if let Some(value) = self.text_or_null("a header")? {
                headers.push((name, value));
            }
            if !self.has_another_member()? {
                return Ok(headers);
            }
        }
    }

    fn address_or_null(&mut self) -> Result<Option<IpAddr>, JsonError> {
        let at = self.next_offset();
        let Some(text) = self.text_or_null("ip")? else { return Ok(None) };
        let Ok(ip) = text.parse::<IpAddr>() else {
            self.rewind_to(at);
            return Err(
                self.expected_error("an address for \"ip\", such as 192.0.2.1 or 2001:db8::1")
            );
        };
        Ok(Some(ip.to_canonical()))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::time::MAX_EXACT;

    use super::*;

    #[test]
    fn every_field_is_read_and_none_is_needed() {
        let text = r#" {"method":"get","path":"/a\u00e9","ip":"::ffff:192.0.2.1","user":"42",
            "tier":null,"api_key":"k","headers":{"X-A":"1","x-b":"2"},"cost":9007199254740991} "#;
        let asked = CheckBody::read(text.as_bytes(), CHECK_FIELDS).unwrap();
        assert_eq!(asked.method.as_deref(), Some("GET"));
        assert_eq!(asked.path.as_deref(), Some("/a\u{e9}"));
        assert_eq!(asked.ip, Some("192.0.2.1".parse().unwrap()));
        assert!(matches!(asked.user, Some(Cow::Borrowed("42"))), "read in place");
        assert_eq!((asked.tier, asked.cost), (None, Some(MAX_EXACT)));
        assert_eq!(asked.headers, [("X-A".into(), "1".into()), ("x-b".into(), "2".into())]);
        for nothing in ["", "{}", r#"{"user":null,"headers":null,"cost":null,"ip":null}"#] {
            assert_eq!(
                CheckBody::read(nothing.as_bytes(), CHECK_FIELDS),
                Ok(CheckBody::default()),
                "{nothing}"
            );
        }
        for (index, name) in FIELD_NAMES.iter().enumerate() {
            assert_eq!(
                BodyField::from_name(name).map(|field| field as usize),
                Some(index),
                "{name}"
            );
        }
    }

    #[test]
    fn errors_name_their_position() {
        let many = (0..101).map(|n| format!("\"h{n}\":\"\"")).collect::<Vec<_>>().join(",");
        let many = format!("{{\"headers\":{{{many}}}}}");
        let whole = "expected a whole number from 0 to 9007199254740991 for \"cost\", found";
        let rows = [
            (
                "[]",
                "column 1: expected an object with any of method, path, host, ip, user, tier, api_key, headers, cost, found an array.",
            ),
            ("{", "column 2: expected the name of a field, in quotes, found the end of the body."),
            ("{} x", "column 4: expected the end of the body, found `x`."),
            (r#"{"user":"a",}"#, "column 13: expected the name of a field, in quotes, found `}`."),
            (r#"{"user" "a"}"#, "column 9: expected `:`, found `\"a\"`."),
            (r#"{"user":"a" "tier":"b"}"#, "column 13: expected `,` or `}`, found `\"tier\"`."),
            (
                r#"{"pth":"/"}"#,
                "column 2: there is no field \"pth\": write any of method, path, host, ip, user, tier, api_key, headers, cost.",
            ),
            (
                r#"{"reservation":"/"}"#,
                "column 2: there is no field \"reservation\": write any of method",
            ),
            (r#"{"path":5}"#, "column 9: expected a string for \"path\", found `5`."),
            (r#"{"path":nul}"#, "column 9: expected a string for \"path\", found `nul`."),
            (r#"{"path":"a}"#, "column 9: this string has no closing quote."),
            (r#"{"path":"\ud83"}"#, "column 10: there is no such escape."),
            (r#"{"user":"a","user":"b"}"#, "column 13: \"user\" appears twice."),
            (r#"{"cost":-1}"#, &format!("column 9: {whole} `-1`.")),
            (r#"{"cost":1.0}"#, &format!("column 9: {whole} `1.0`.")),
            (r#"{"cost":01}"#, &format!("column 9: {whole} `01`.")),
            (r#"{"cost":9007199254740992}"#, &format!("column 9: {whole} `9007199254740992`.")),
            (r#"{"cost":"1"}"#, &format!("column 9: {whole} `\"1\"`.")),
            (
                r#"{"ip":"300.0.0.1"}"#,
                "column 7: expected an address for \"ip\", such as 192.0.2.1 or 2001:db8::1, found `\"300.0.0.1\"`.",
            ),
            (
                r#"{"headers":[]}"#,
                "column 12: expected an object of strings for \"headers\", found an array.",
            ),
            (r#"{"headers":{"a":1}}"#, "column 17: expected a string for \"a header\", found `1`."),
            (r#"{"headers":{"A":"","a":""}}"#, "column 20: the header \"a\" appears twice."),
            ("{\"path\":\"\u{e9}\u{1}\"}", "column 11: control character in a string"),
            (&many, "column 903: \"headers\" has more than 100 fields."),
        ];
        for (text, want) in rows {
            let problem = CheckBody::read(text.as_bytes(), CHECK_FIELDS).expect_err(text);
            assert!(problem.starts_with(&format!("Line 1, {want}")), "{text}:\n{problem}\n{want}");
        }
        let problem = CheckBody::read(b"{\n \"path\": tru}", CHECK_FIELDS).unwrap_err();
        assert!(problem.starts_with("Line 2, column 10: expected a string"), "{problem}");
    }

    #[test]
    fn lone_surrogates_are_escaped_like_bytes_that_are_not_utf8() {
        // As the bytes ED A0 80, which other listeners get.
        let rows = [
            (r"\ud800", "%ED%A0%80"),
            (r"a\udfff", "a%ED%BF%BF"),
            (r"\ud800\ud83d\ude00", "%ED%A0%80%F0%9F%98%80"),
            (r"\ude00\ud83d", "%ED%B8%80%ED%A0%BD"),
            (r"\ud800\n", "%ED%A0%80\n"),
            (r"\ud83d\ude00", "\u{1f600}"),
            ("\u{e9}\\ud800", "%C3%A9%ED%A0%80"),
        ];
        for (text, want) in rows {
            let body = format!(r#"{{"user":"{text}","headers":{{"{text}":"{text}"}}}}"#);
            let asked = CheckBody::read(body.as_bytes(), CHECK_FIELDS).expect(text);
            assert_eq!(asked.user.as_deref(), Some(want), "{text}");
            assert_eq!(asked.headers, [(want.into(), want.into())]);
        }
        let bytes = tollgate::headers::escape_non_utf8(b"\xed\xa0\x80");
        assert_eq!(bytes, "%ED%A0%80", "the same as from Envoy and RESP");
    }

    #[test]
    fn batches_name_the_check() {
        assert_eq!(read_batch(b"[]").unwrap().len(), 0);
        assert_eq!(read_batch(br#"[{},{"user":"1"}]"#).unwrap()[1].user.as_deref(), Some("1"));
        let full = format!("[{}]", vec!["{}"; 1_000].join(","));
        assert_eq!(read_batch(full.as_bytes()).unwrap().len(), 1_000);
        let more = format!("[{}]", vec!["{}"; 1_001].join(","));
        let rows = [
            ("{}", "Line 1, column 1: expected an array of at most 1000 checks, found an object."),
            (r#"[{},{"cost":-1}]"#, "Line 1, column 13: in check 1, expected a whole number"),
            ("[{},]", "Line 1, column 5: in check 1, expected an object with any of"),
            ("[{}", "Line 1, column 4: expected `,` or `]`, found the end of the body."),
            (&more, "Line 1, column 3002: there are more than 1000 checks."),
        ];
        for (text, want) in rows {
            let problem = read_batch(text.as_bytes()).expect_err(text);
            assert!(problem.starts_with(want), "{problem}");
        }
    }
}
