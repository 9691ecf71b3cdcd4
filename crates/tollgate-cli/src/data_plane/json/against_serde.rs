//! Compares the reader with serde_json, on randomly mutated bodies.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use tollgate::headers::escape_non_utf8;
use tollgate::time::MAX_EXACT;

use super::{CHECK_FIELDS, CheckBody, read_batch};

const SEEDS: u64 = 20_000;

/// Bodies to mutate; together they have every construct of JSON.
const BODIES: [&str; 6] = [
    r#"{"method":"get","path":"/a\u00e9\ud83d\ude00","ip":"::ffff:192.0.2.1","user":"42"}"#,
    r#" { "tier" : null , "api_key" : "k\"\\\/\b\f\n\r\t" , "cost" : 9007199254740991 } "#,
    r#"{"headers":{"X-A":"1","x-b":null,"é":"\u0041"},"cost":0}"#,
    r#"{"cost":120,"us\u0065r":"a","ip":"192.0.2.1"}"#,
    r#"{"cost":-1.5e+3,"user":true,"path":[{}],"x":{}}"#,
    "{}",
];

/// Pieces that mutations insert.
const PIECES: [&str; 26] = [
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "0",
    "1",
    "-",
    ".",
    "e",
    "E",
    "null",
    "true",
    " ",
    "\n",
    "\u{b}",
    "\u{1}",
    "\u{7f}",
    "\u{feff}",
    "\\u",
    "\\ud800",
    "\\udc00",
    "\"user\":\"b\",",
];

#[test]
fn it_takes_what_serde_takes_and_reads_the_same() {
    let mut taken = 0;
    for seed in 0..SEEDS {
        let body = mutated(seed);
        let want = read_with_serde(&body);
        let shown = String::from_utf8_lossy(&body);
        assert_eq!(CheckBody::read(&body, CHECK_FIELDS).ok(), want, "seed {seed}: {shown}");
        let batch = [b"[{},".as_slice(), &body, b"]"].concat();
        if !body.is_empty() && !shown.contains("},{") {
            let read = read_batch(&batch).ok().map(|mut batch| batch.pop().unwrap());
            assert_eq!(read, want, "seed {seed}: a batch of {shown}");
        }
        taken += u64::from(want.is_some());
    }
    assert!((SEEDS / 20..SEEDS * 19 / 20).contains(&taken), "{taken} of {SEEDS} show little");
}

/// A body with up to three changes.
fn mutated(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut below = |bound: usize| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % bound
    };
    let mut body = BODIES[below(BODIES.len())].as_bytes().to_vec();
    for _ in 0..below(4) {
        let at = below(body.len() + 1);
        let piece = PIECES[below(PIECES.len())].bytes();
        match below(4) {
            0 => drop(body.splice(at..at, piece)),
            1 => drop(body.splice(at..(at + 1).min(body.len()), piece)),
            2 => drop(body.drain(at..(at + 1 + below(3)).min(body.len()))),
            _ => body.extend_from_within(at..(at + below(4)).min(body.len())),
        }
    }
    body
}

fn read_with_serde(body: &[u8]) -> Option<CheckBody<'_>> {
    let mut asked = CheckBody::default();
    if body.is_empty() {
        return Some(asked);
    }
    let members: SerdeMembers<Box<RawValue>> = serde_json::from_slice(body).ok()?;
    for (index, (name, value)) in members.0.iter().enumerate() {
        let SerdeText(name) = name;
        if members.0[..index].iter().any(|(other, _)| other.0 == *name) {
            return None;
        }
        let value = value.get();
        let text =
            || Some(serde_json::from_str::<Option<SerdeText>>(value).ok()?.map(|text| text.0));
        match name.as_str() {
            "method" => asked.method = text()?.map(|text| text.to_ascii_uppercase().into()),
            "path" => asked.path = text()?.map(Into::into),
            "user" => asked.user = text()?.map(Into::into),
            "tier" => asked.tier = text()?.map(Into::into),
            "host" => asked.host = text()?.map(Into::into),
            "api_key" => asked.api_key = text()?.map(Into::into),
            "ip" => {
                let ip = text()?.map(|text| text.parse::<IpAddr>()).transpose().ok()?;
                asked.ip = ip.map(|ip| ip.to_canonical());
            }
            "cost" => {
                asked.cost = serde_json::from_str(value).ok()?;
                asked.cost.is_none_or(|cost| cost <= MAX_EXACT).then_some(())?;
            }
            "headers" => {
                let fields: Option<SerdeMembers<Option<SerdeText>>> =
                    serde_json::from_str(value).ok()?;
                for (SerdeText(name), value) in fields.into_iter().flat_map(|fields| fields.0) {
                    if asked.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
                        return None;
                    }
                    asked.headers.extend(value.map(|value| (name.into(), value.0.into())));
                }
            }
            _ => return None,
        }
    }
    Some(asked)
}

/// A string whose lone surrogates are escaped like bytes that are not UTF-8; serde passes them as bytes.
struct SerdeText(String);

impl<'de> Deserialize<'de> for SerdeText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SerdeTextVisitor;
        impl Visitor<'_> for SerdeTextVisitor {
            type Value = SerdeText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<SerdeText, E> {
                Ok(SerdeText(escape_non_utf8(bytes).into_owned()))
            }

            fn visit_str<E>(self, text: &str) -> Result<SerdeText, E> {
                Ok(SerdeText(text.into()))
            }
        }
        from.deserialize_bytes(SerdeTextVisitor)
    }
}

/// Members of an object, in order.
struct SerdeMembers<V>(Vec<(SerdeText, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for SerdeMembers<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SerdeMembersVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for SerdeMembersVisitor<V> {
            type Value = SerdeMembers<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<SerdeMembers<V>, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(SerdeMembers(members))
            }
        }
        from.deserialize_map(SerdeMembersVisitor(PhantomData))
    }
}
