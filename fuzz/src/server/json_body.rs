//! Bodies of checks, batches, reservations and refunds, read twice: by the server's reader, which
//! reads in place and keeps only what it knows, and by `serde_json` into a tree.
//!
//! Both refuse text that is not JSON. JSON is accepted if, and only if, the tree has known fields of the right
//! types, each once; the values are those of the tree then.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use tollgate::time::MAX_EXACT;

use super::json::{
    BATCH_MAX, BodyFieldSet, CHECK_FIELDS, COMMIT_FIELDS, CheckBody, REFUND_FIELDS, RESERVE_FIELDS,
    read_batch,
};
use super::source::FuzzSource;

/// The bytes as a body, and as choices of what a body is made of.
pub fn json_body(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let body = match source.below(4) {
        0 => source.rest().to_vec(),
        _ => body(&mut source),
    };
    for fields in [CHECK_FIELDS, RESERVE_FIELDS, COMMIT_FIELDS, REFUND_FIELDS] {
        check_one(&body, fields);
    }
    check_batch(&body);
}

fn check_one(body: &[u8], fields: BodyFieldSet) {
    let got = CheckBody::read(body, fields);
    let want = match body {
        [] => Ok(CheckBody::default()),
        _ => read_json(body).and_then(|tree| expected_body(&tree, fields)),
    };
    compare(body, got, want);
}

fn check_batch(body: &[u8]) {
    let want = read_json(body).and_then(|tree| match tree {
        OracleJson::List(list) if list.len() <= BATCH_MAX => {
            let read: Result<Vec<_>, ExpectedRefusal> =
                list.iter().map(|one| expected_body(one, CHECK_FIELDS)).collect();
            read.map_err(|_| ExpectedRefusal::Unspecified)
        }
        _ => Err(ExpectedRefusal::Unspecified),
    });
    compare(body, read_batch(body), want);
}

/// Checks that both accept with equal values, or both refuse. A refusal must name the place, and the field if
/// one is wrong.
fn compare<T: fmt::Debug + PartialEq>(
    body: &[u8],
    got: Result<T, String>,
    want: Result<T, ExpectedRefusal>,
) {
    let text = String::from_utf8_lossy(body);
    match (got, want) {
        (Ok(got), Ok(want)) => assert_eq!(got, want, "{text}"),
        (Err(problem), Err(why)) => check_problem(&problem, &why, body),
        (got, want) => panic!("{text:?}: {got:?}, not {want:?}"),
    }
}

fn check_problem(problem: &str, why: &ExpectedRefusal, body: &[u8]) {
    if let Some(at) = problem.strip_prefix("The body is not UTF-8: see byte ") {
        let good = std::str::from_utf8(body).expect_err("it is UTF-8").valid_up_to();
        assert_eq!(at, format!("{good}."), "{problem}");
        return;
    }
    let place = problem.strip_prefix("Line ").and_then(|rest| rest.split_once(", column "));
    let (line, rest) = place.unwrap_or_else(|| panic!("no place: {problem}"));
    let (column, said) = rest.split_once(": ").expect("a text behind the place");
    let numbers = [line, column].map(|number| number.parse::<usize>().expect("a number"));
    let lines = body.iter().filter(|byte| **byte == b'\n').count() + 1;
    assert!((1..=lines).contains(&numbers[0]) && numbers[1] <= body.len() + 1, "{problem}");
    assert!(said.len() > 1 && said.ends_with('.'), "{problem}");
    assert!(said.len() <= 6 * body.len() + 300, "{problem}");
    if let ExpectedRefusal::Field(name) = why {
        // An error inside the headers names one of them.
        let named = said.contains(&format!("{name:?}"));
        assert!(named || (name == "headers" && said.contains("header")), "{problem}: {name:?}");
    }
}

/// The expected reason for a refusal.
#[derive(Debug)]
enum ExpectedRefusal {
    /// The body is not JSON, has another shape, or has several errors, of which the first is reported.
    Unspecified,
    /// Only this field is wrong.
    Field(String),
}

/// JSON with its duplicate keys, which `serde_json::Value` drops.
#[derive(Clone, Debug, PartialEq)]
enum OracleJson {
    Null,
    Text(String),
    Number(Option<u64>),
    List(Vec<OracleJson>),
    Map(Vec<(String, OracleJson)>),
    Bool,
}

/// Maximum depth, the same as that of `serde_json`.
const DEPTH_MAX: usize = 127;

fn read_json(body: &[u8]) -> Result<OracleJson, ExpectedRefusal> {
    let raw: &RawValue = serde_json::from_slice(body).map_err(|_| ExpectedRefusal::Unspecified)?;
    read_value(raw.get(), DEPTH_MAX).ok_or(ExpectedRefusal::Unspecified)
}

/// One value of the tree. Value by value, because `serde_json` gives the bytes of a string, and with them
/// the halves of surrogate pairs, only to those who know that it is one.
fn read_value(text: &str, depth: usize) -> Option<OracleJson> {
    let depth = depth.checked_sub(1)?;
    Some(match text.as_bytes().first()? {
        b'"' => OracleJson::Text(serde_json::from_str::<OracleText>(text).ok()?.0),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            OracleJson::List(
                items.iter().map(|item| read_value(item.get(), depth)).collect::<Option<_>>()?,
            )
        }
        b'{' => {
            let OracleMembers(members) = serde_json::from_str(text).ok()?;
            let member = |(OracleText(name), value): (OracleText, &RawValue)| {
                Some((name, read_value(value.get(), depth)?))
            };
            OracleJson::Map(members.into_iter().map(member).collect::<Option<_>>()?)
        }
        _ => match serde_json::from_str(text).ok()? {
            serde_json::Value::Null => OracleJson::Null,
            serde_json::Value::Bool(_) => OracleJson::Bool,
            serde_json::Value::Number(number) => OracleJson::Number(number.as_u64()),
            _ => return None,
        },
    })
}

/// A string. One with half of a surrogate pair is no text: its bytes that are not ASCII are escaped.
struct OracleText(String);

impl<'de> Deserialize<'de> for OracleText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OracleText, D::Error> {
        from.deserialize_bytes(OracleTextVisitor)
    }
}

struct OracleTextVisitor;

impl Visitor<'_> for OracleTextVisitor {
    type Value = OracleText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<OracleText, E> {
        let escaped = |byte: &u8| match byte.is_ascii() {
            true => char::from(*byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        let text = std::str::from_utf8(bytes).map(String::from);
        Ok(OracleText(text.unwrap_or_else(|_| bytes.iter().map(escaped).collect())))
    }
}

/// An object, with the names that stand in it twice.
struct OracleMembers<'a>(Vec<(OracleText, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for OracleMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OracleMembers<'a>, D::Error> {
        from.deserialize_map(OracleMembersVisitor(PhantomData))
    }
}

struct OracleMembersVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for OracleMembersVisitor<'a> {
    type Value = OracleMembers<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<OracleMembers<'a>, M::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(OracleMembers(members))
    }
}

/// The body that the server should read from a tree.
fn expected_body(
    tree: &OracleJson,
    fields: BodyFieldSet,
) -> Result<CheckBody<'static>, ExpectedRefusal> {
    let OracleJson::Map(entries) = tree else { return Err(ExpectedRefusal::Unspecified) };
    let mut asked = CheckBody::default();
    let mut wrong = Vec::new();
    for (index, (name, value)) in entries.iter().enumerate() {
        let again = entries[..index].iter().any(|(other, _)| other == name);
        let known = fields.names().contains(&name.as_str());
        if again || !known || !set_field(&mut asked, name, value) {
            wrong.push(name.clone());
        }
    }
    match wrong.len() {
        0 => Ok(asked),
        1 => Err(ExpectedRefusal::Field(wrong.remove(0))),
        _ => Err(ExpectedRefusal::Unspecified),
    }
}

/// Sets one field. Returns false if its type is wrong.
fn set_field(asked: &mut CheckBody<'static>, name: &str, value: &OracleJson) -> bool {
    let text = |place: &mut Option<Cow<'static, str>>| match value {
        OracleJson::Null => true,
        OracleJson::Text(text) => {
            *place = Some(Cow::Owned(text.clone()));
            true
        }
        _ => false,
    };
    let number = |place: &mut Option<u64>| match value {
        OracleJson::Null => true,
        OracleJson::Number(Some(number)) if *number <= MAX_EXACT => {
            *place = Some(*number);
            true
        }
        _ => false,
    };
    match name {
        "method" => {
            let fits = text(&mut asked.method);
            asked.method = asked.method.take().map(|method| method.to_ascii_uppercase().into());
            fits
        }
        "path" => text(&mut asked.path),
        "user" => text(&mut asked.user),
        "tier" => text(&mut asked.tier),
        "api_key" => text(&mut asked.api_key),
        "reservation" => text(&mut asked.reservation),
        "cost" => number(&mut asked.cost),
        "expires_in_ms" => number(&mut asked.expires_in_ms),
        "ip" => match value {
            OracleJson::Null => true,
            OracleJson::Text(text) => {
                asked.ip = text.parse().ok().map(|ip: IpAddr| ip.to_canonical());
                asked.ip.is_some()
            }
            _ => false,
        },
        "headers" => headers(asked, value),
        _ => false,
    }
}

/// Sets the headers: at most a hundred, each name once in any case; null means no header.
fn headers(asked: &mut CheckBody<'static>, value: &OracleJson) -> bool {
    let entries = match value {
        OracleJson::Null => return true,
        OracleJson::Map(entries) => entries,
        _ => return false,
    };
    let mut names = Vec::new();
    for (name, value) in entries {
        // A header that is null is none, but must not stand behind one of its name.
        let lower = name.to_ascii_lowercase();
        if names.contains(&lower) || names.len() == 100 {
            return false;
        }
        match value {
            OracleJson::Null => {}
            OracleJson::Text(text) => {
                names.push(lower);
                asked.headers.push((name.clone().into(), text.clone().into()));
            }
            _ => return false,
        }
    }
    true
}

/// Something like a body.
fn body(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let mut text = match source.below(4) {
        0 => list(source),
        _ => object(source),
    };
    if source.one_in(6) {
        text.push_str(source.pick(&[" ", "\n", "x", "{}", ",", "\u{feff}", "\0"]));
    }
    let mut body = text.into_bytes();
    if source.one_in(6) {
        body.truncate(source.below(body.len() + 1));
    }
    if source.one_in(6) && !body.is_empty() {
        let at = source.below(body.len());
        body[at] = source.byte();
    }
    body
}

fn list(source: &mut FuzzSource<'_>) -> String {
    if source.one_in(64) {
        return format!("[{}]", vec!["{}"; 998 + source.below(5)].join(","));
    }
    let items: Vec<String> = (0..source.below(4)).map(|_| object(source)).collect();
    format!("[{}]", items.join(source.pick(&[",", " , ", ",\n", ",,"])))
}

const NAMES: [&str; 16] = [
    "method",
    "path",
    "ip",
    "user",
    "tier",
    "api_key",
    "headers",
    "cost",
    "expires_in_ms",
    "reservation",
    "cost",
    "headers",
    "Cost",
    "",
    "\\u0063ost",
    "pa\\/th",
];

fn object(source: &mut FuzzSource<'_>) -> String {
    let mut text = String::from("{");
    for index in 0..source.below(6) {
        if index > 0 {
            text.push_str(source.pick(&[",", ", ", ",\n", ",\r\n\t"]));
        }
        let name = source.pick(&NAMES);
        let value = match name {
            _ if source.one_in(4) => any(source),
            "cost" | "expires_in_ms" | "\\u0063ost" => number(source),
            "headers" => fields(source),
            "ip" => {
                format!("\"{}\"", source.pick(&["192.0.2.1", "::ffff:10.0.0.1", "::1", "1.2", ""]))
            }
            _ => string(source),
        };
        text.push_str(&format!("\"{name}\":{value}"));
    }
    text.push_str(source.pick(&["}", "}", "}", " }", ",}", ""]));
    text
}

fn fields(source: &mut FuzzSource<'_>) -> String {
    if source.one_in(16) {
        let many = 98 + source.below(5);
        let names: Vec<String> = (0..many).map(|number| format!("\"h{number}\":\"\"")).collect();
        return format!("{{{}}}", names.join(","));
    }
    let names = ["x-a", "X-A", "x-b", "", "é", "\\u0078-a"];
    let field = |source: &mut FuzzSource<'_>| {
        let value = if source.one_in(6) { any(source) } else { string(source) };
        format!("\"{}\":{value}", source.pick(&names))
    };
    let all: Vec<String> = (0..source.below(4)).map(|_| field(source)).collect();
    format!("{{{}}}", all.join(","))
}

fn number(source: &mut FuzzSource<'_>) -> String {
    const NUMBERS: [&str; 14] = [
        "9007199254740991",
        "9007199254740992",
        "18446744073709551615",
        "18446744073709551616",
        "-0",
        "-1",
        "1.0",
        "1e2",
        "1e400",
        "01",
        "NaN",
        "+1",
        "0x1",
        "1e-999999999999",
    ];
    match source.below(3) {
        0 => source.number().to_string(),
        1 => (source.number() >> 12).to_string(),
        _ => source.pick(&NUMBERS).into(),
    }
}

fn string(source: &mut FuzzSource<'_>) -> String {
    const PIECES: [&str; 18] = [
        "a",
        "/",
        "42",
        "é",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\u0041",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\ude00",
        "\\u00",
        "\\x",
        "\u{1}",
        "\u{7f}",
        "\\u0000",
        " ",
    ];
    let text: String = (0..source.below(5)).map(|_| source.pick(&PIECES)).collect();
    format!("\"{text}\"")
}

fn any(source: &mut FuzzSource<'_>) -> String {
    match source.below(8) {
        0 => source.pick(&["null", "true", "false", "nul", "{}", "[]", "", "'a'"]).into(),
        1 => number(source),
        2 => string(source),
        3 => fields(source),
        4 => {
            let deep = 1 + source.below(200);
            let (open, close) = source.pick(&[("[", "]"), ("{\"a\":", "}")]);
            format!("{}1{}", open.repeat(deep), close.repeat(deep))
        }
        _ => "null".into(),
    }
}
