//! The trace as people write it: JSON lines, read one at a time, with the place of every mistake.
//!
//! Values stay text until they are checked here. So a number is never rounded on its way through a
//! float, and a message shows what was written.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use tollgate::Micros;
use tollgate::time::MAX_EXACT;

use super::{Failure, Report};

/// The key of requests that name none.
const DEFAULT_KEY: &str = "default";

/// The longest line, without its end. A trace without line ends must not fill the memory.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes read at once.
const INPUT_BYTES: usize = 64 << 10;

/// Characters of a wrong value that a message shows.
const SHOWN_CHARS_MAX: usize = 40;

const LINE_HINT: &str = r#"write one object per line, such as {"at":1500000,"cost":1,"key":"a"}"#;
const FIELDS_HINT: &str = r#"a line has "at" and, once each if at all, "cost" and "key""#;
const AT_HINT: &str =
    "write whole microseconds since the Unix epoch, from 0 to 9007199254740991 (2^53 - 1)";
const COST_HINT: &str = "write a whole number of units, from 0 to 18446744073709551615 (2^64 - 1)";
const KEY_HINT: &str = r#"write text in quotes, such as "key":"a""#;

/// One line of a trace.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) at: Micros,
    pub(super) cost: u64,
    pub(super) key: Cow<'a, str>,
}

/// A trace, and the line it is at.
pub(super) struct Trace {
    name: String,
    reader: BufReader<Box<dyn Read>>,
    /// Bound: `LINE_BYTES_MAX` and its end.
    line: Vec<u8>,
    /// Counts from 1; blank lines too.
    number: u64,
}

impl Trace {
    /// Opens a file, or standard input if the path is `-`.
    pub(super) fn open(path: &Path) -> Result<Trace, Failure> {
        if path == Path::new("-") {
            return Ok(Trace::new("<stdin>".into(), Box::new(io::stdin())));
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Ok(Trace::new(name, Box::new(file))),
            Err(error) => Err(cannot_read(&name, &error)),
        }
    }

    fn new(name: String, source: Box<dyn Read>) -> Trace {
        let reader = BufReader::with_capacity(INPUT_BYTES, source);
        Trace { name, reader, line: Vec::new(), number: 0 }
    }

    /// Whether the next line is not here yet.
    pub(super) fn may_wait(&self) -> bool {
        !self.reader.buffer().contains(&b'\n')
    }

    /// Moves to the next line that is not blank. `false`: there is none.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        loop {
            self.line.clear();
            let most = LINE_BYTES_MAX as u64 + 2; // with \r\n
            let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line);
            if read.map_err(|error| cannot_read(&self.name, &error))? == 0 {
                return Ok(false);
            }
            self.number += 1;
            for end in [b'\n', b'\r'] {
                self.line.pop_if(|last| *last == end);
            }
            if self.line.len() > LINE_BYTES_MAX {
                let problem = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                return Err(self.wrong(LINE_BYTES_MAX, problem, LINE_HINT));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The request on this line.
    pub(super) fn request(&self) -> Result<Request<'_>, Failure> {
        let text = str::from_utf8(&self.line).map_err(|error| {
            self.wrong(error.valid_up_to(), "the line is not UTF-8", "save the trace as UTF-8")
        })?;
        let fields: Fields<'_> =
            serde_json::from_str(text).map_err(|error| self.not_an_object(text, &error))?;
        if let Some((name, is)) = fields.odd {
            let problem = format!("the field {} {is}", shown(name));
            return Err(self.wrong(offset(name, text), problem, FIELDS_HINT));
        }
        let start = text.len() - text.trim_ascii_start().len();
        let Some(at) = fields.at else {
            return Err(self.wrong(start, "the line has no field \"at\"", AT_HINT));
        };
        let wrong = |value: &RawValue, name: &str, is: &str, hint: &str| {
            self.wrong(offset(value, text), format!("{name:?} is {}, {is}", shown(value)), hint)
        };
        Ok(Request {
            at: match whole_number(at, MAX_EXACT) {
                Ok(at) => Micros::new(at),
                Err(is) => return Err(wrong(at, "at", is, AT_HINT)),
            },
            cost: match fields.cost.map(|cost| (cost, whole_number(cost, u64::MAX))) {
                None => 1,
                Some((_, Ok(cost))) => cost,
                Some((cost, Err(is))) => return Err(wrong(cost, "cost", is, COST_HINT)),
            },
            key: match fields.key.map(|key| (key, serde_json::from_str(key.get()))) {
                None => DEFAULT_KEY.into(),
                Some((_, Ok(Text(key)))) => key,
                Some((key, Err(_))) => {
                    return Err(wrong(key, "key", "which is not text", KEY_HINT));
                }
            },
        })
    }

    fn not_an_object(&self, text: &str, error: &serde_json::Error) -> Failure {
        if error.classify() == Category::Data {
            let start = text.len() - text.trim_ascii_start().len();
            return self.wrong(start, "the line is not a JSON object", LINE_HINT);
        }
        if error.classify() == Category::Eof {
            return self.wrong(text.len(), "the line ends before its object does", LINE_HINT);
        }
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or(&message);
        let offset = error.column().saturating_sub(1);
        if what.starts_with("control character") {
            // The column is that of the last character before it.
            let problem = "the line has a bare control character";
            return self.wrong(offset + 1, problem, r"write it as \u0000, with its own number");
        }
        self.wrong(offset, format!("the line is not JSON: {what}"), LINE_HINT)
    }

    /// A mistake `offset` bytes into this line. Columns count characters, from 1.
    fn wrong(&self, offset: usize, problem: impl fmt::Display, hint: &str) -> Failure {
        let before = &self.line[..offset.min(self.line.len())];
        let column = String::from_utf8_lossy(before).chars().count() + 1;
        let place = format!("{}:{}:{column}", self.name, self.number);
        Failure::Input(Report::new(format!("{place}: {problem}")).hint(hint))
    }
}

fn cannot_read(name: &str, error: &io::Error) -> Failure {
    Failure::Input(match error.kind() {
        io::ErrorKind::NotFound => Report::new(format!("there is no file {name}"))
            .hint("write the path of a trace, or - for standard input"),
        io::ErrorKind::IsADirectory => Report::new(format!("{name} is a directory"))
            .hint("write the path of a trace, or - for standard input"),
        _ => Report::new(format!("cannot read {name}: {error}")),
    })
}

/// The fields of a line as they are written, each a part of it.
#[derive(Default)]
struct Fields<'a> {
    at: Option<&'a RawValue>,
    cost: Option<&'a RawValue>,
    key: Option<&'a RawValue>,
    /// The first name that has no business here, and why.
    odd: Option<(&'a RawValue, &'static str)>,
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a request")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some(name) = map.next_key::<&RawValue>()? {
                    let field = match name.get() {
                        "\"at\"" => &mut fields.at,
                        "\"cost\"" => &mut fields.cost,
                        "\"key\"" => &mut fields.key,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            fields.odd.get_or_insert((name, "is unknown"));
                            continue;
                        }
                    };
                    if field.replace(map.next_value()?).is_some() {
                        fields.odd.get_or_insert((name, "is given twice"));
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

/// Text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A whole number up to `most`, or what is wrong with it.
fn whole_number(value: &RawValue, most: u64) -> Result<u64, &'static str> {
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

/// Where a part of a line begins.
fn offset(part: &RawValue, line: &str) -> usize {
    part.get().as_ptr().addr().saturating_sub(line.as_ptr().addr())
}

/// A value as it is written, unless it is long.
fn shown(value: &RawValue) -> Cow<'_, str> {
    let text = value.get();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}
