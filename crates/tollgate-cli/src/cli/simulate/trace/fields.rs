//! The fields of a line, unparsed.
//!
//! Values stay text until they are checked, so that no number is rounded as a float, and messages show the
//! value as written.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Most characters of a wrong value in a message.
const SHOWN_CHARS_MAX: usize = 40;

/// The names and values of an object, in order, borrowed from the line.
pub(in super::super) struct LineFields<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'a> LineFields<'a> {
    /// The values of these names. Fails with the first name that is unknown or duplicate, and the problem.
    pub(super) fn pick<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&'a RawValue>; N], (&'a RawValue, &'static str)> {
        let mut values = [None; N];
        for &(name, value) in &self.0 {
            let index = names.iter().position(|known| is_named(name, known));
            let Some(index) = index else { return Err((name, "is unknown")) };
            if values[index].replace(value).is_some() {
                return Err((name, "is given twice"));
            }
        }
        Ok(values)
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&'a RawValue, &'a RawValue)> {
        self.0.iter().copied()
    }
}

fn is_named(written: &RawValue, name: &str) -> bool {
    let inner = written.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner == Some(name)
}

impl<'de> Deserialize<'de> for LineFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LineFields<'de>, D::Error> {
        struct LineFieldsVisitor;

        impl<'de> Visitor<'de> for LineFieldsVisitor {
            type Value = LineFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LineFields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(LineFields(fields))
            }
        }

        deserializer.deserialize_map(LineFieldsVisitor)
    }
}

/// A string, borrowed if it has no escapes; `None` if the value is something else.
pub(in super::super) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct TraceText<'a>(#[serde(borrow)] Cow<'a, str>);

    serde_json::from_str(value.get()).ok().map(|TraceText(text)| text)
}

/// A whole number up to `most`, or the problem.
pub(super) fn whole_number(value: &RawValue, most: u64) -> Result<u64, &'static str> {
    let text = value.get();
    match text.as_bytes() {
        [b'-', ..] => Err("which is negative"),
        digits if digits.iter().all(u8::is_ascii_digit) => {
            text.parse().ok().filter(|&number| number <= most).ok_or("which is too large")
        }
        [b'0'..=b'9', ..] => Err("which is not a whole number"),
        _ => Err("which is not a number"),
    }
}

/// A value as written, shortened if it is long.
pub(super) fn shortened_value(value: &RawValue) -> Cow<'_, str> {
    let text = value.get();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}
