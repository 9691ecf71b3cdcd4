//! `JsonNumberReader`: finds the numbers at some paths of a JSON document that arrives in pieces.
//!
//! It keeps no copy of the document: its memory is the open containers, the name of the current member and the
//! number being read, all bounded. A document counts only if it is valid to its end; text that is not UTF-8 is
//! tolerated inside of strings.

mod number;

use arrayvec::ArrayVec;

use crate::json_path::{JsonPath, SEGMENT_BYTES_MAX};
use number::NumberToken;

/// The deepest nesting of a document, as serde_json has it. A deeper one is not read.
const DEPTH_MAX: usize = 127;

/// Reads numbers from JSON text, which is fed in pieces of any size.
#[derive(Debug)]
pub struct JsonNumberReader {
    paths: Box<[JsonPath]>,
    /// The number found at each path of the current document.
    values: Box<[Option<u64>]>,
    /// Number of leading parts of each path that lead to the current value.
    matched: Box<[u8]>,
    repeated: RepeatedNumber,
    state: ReaderState,
    /// The open containers. Bound: [`DEPTH_MAX`].
    open: Vec<Container>,
    token: JsonToken,
}

/// The number that counts if a path appears twice in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedNumber {
    /// The last, as most readers of JSON have it.
    Last,
    /// The largest, because it is not known which of them another reader takes.
    Largest,
}

/// The end of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentEnd {
    /// There was no document: nothing but white space.
    Empty,
    /// It is complete and valid.
    Valid,
    /// It is valid so far and incomplete.
    Incomplete,
    /// It is no JSON, or nested too deeply.
    Invalid,
}

/// The next thing that a valid document has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    /// The value of the whole document.
    Document,
    /// A value of an array or a member.
    Value,
    /// The first item of an array, or its end.
    ItemOrEnd,
    /// The first name of an object, or its end.
    NameOrEnd,
    /// A name.
    Name,
    /// The colon after a name.
    Colon,
    /// A comma, or the end of a container.
    CommaOrEnd,
    /// White space after the document.
    Done,
    /// The document is invalid; the rest is skipped.
    Failed,
}

/// An open array or object.
#[derive(Clone, Copy, Debug)]
struct Container {
    is_object: bool,
    /// The number of the current item of an array.
    index: u32,
}

/// A token that may go on in the next piece.
#[derive(Debug)]
enum JsonToken {
    None,
    Text(TextToken),
    Number(NumberToken),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
}

/// A string being read.
#[derive(Debug, Default)]
struct TextToken {
    is_name: bool,
    escape: TextEscape,
    /// The decoded name of a member.
    name: ArrayVec<u8, SEGMENT_BYTES_MAX>,
    /// True if the name is too long to be part of a path.
    is_too_long: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TextEscape {
    #[default]
    None,
    /// After a backslash.
    Begun,
    /// Inside of `\uXXXX`, with the number of digits so far, and their value.
    Unicode { digits: u8, code: u16 },
}

impl JsonNumberReader {
    /// A reader for the numbers at these paths.
    pub fn new(
        paths: impl IntoIterator<Item = JsonPath>,
        repeated: RepeatedNumber,
    ) -> JsonNumberReader {
        let paths: Box<[JsonPath]> = paths.into_iter().collect();
        JsonNumberReader {
            values: vec![None; paths.len()].into(),
            matched: vec![0; paths.len()].into(),
            paths,
            repeated,
            state: ReaderState::Document,
            open: Vec::new(),
            token: JsonToken::None,
        }
    }

    /// The paths, in the order of [`values`](JsonNumberReader::values).
    pub fn paths(&self) -> &[JsonPath] {
        &self.paths
    }

    /// The number at each path of the current document so far.
    pub fn values(&self) -> &[Option<u64>] {
        &self.values
    }

    /// Reads a piece of the document.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != ReaderState::Failed {
            bytes = match &mut self.token {
                JsonToken::None => self.between_tokens(bytes),
                JsonToken::Text(_) => self.in_text(bytes),
                JsonToken::Number(_) => self.in_number(bytes),
                JsonToken::Literal(_) => self.in_literal(bytes),
            };
        }
    }

    /// Ends the document. The values stay until [`begin`](JsonNumberReader::begin).
    pub fn end(&mut self) -> DocumentEnd {
        if self.open.is_empty() && matches!(self.token, JsonToken::Number(_)) {
            self.end_number();
        }
        match self.state {
            ReaderState::Done => DocumentEnd::Valid,
            ReaderState::Failed => DocumentEnd::Invalid,
            ReaderState::Document if matches!(self.token, JsonToken::None) => DocumentEnd::Empty,
            _ => DocumentEnd::Incomplete,
        }
    }

    /// Begins another document.
    pub fn begin(&mut self) {
        self.values.fill(None);
        self.matched.fill(0);
        self.open.clear();
        (self.state, self.token) = (ReaderState::Document, JsonToken::None);
    }

    /// Reads the byte that begins the next token, and returns the rest.
    fn between_tokens<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (byte, rest) = (bytes[0], &bytes[1..]);
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return rest;
        }
        match (self.state, byte) {
            (ReaderState::NameOrEnd, b'}') | (ReaderState::ItemOrEnd, b']') => self.close(byte),
            (ReaderState::CommaOrEnd, b'}' | b']') => self.close(byte),
            (ReaderState::CommaOrEnd, b',') => self.next_item(),
            (ReaderState::Name | ReaderState::NameOrEnd, b'"') => {
                self.token = JsonToken::Text(TextToken { is_name: true, ..TextToken::default() });
            }
            (ReaderState::Colon, b':') => self.state = ReaderState::Value,
            (ReaderState::Document | ReaderState::Value | ReaderState::ItemOrEnd, _) => {
                self.begin_value(byte);
            }
            _ => self.state = ReaderState::Failed,
        }
        rest
    }

    fn begin_value(&mut self, byte: u8) {
        match byte {
            b'{' => self.open_container(true),
            b'[' => self.open_container(false),
            b'"' => self.token = JsonToken::Text(TextToken::default()),
            b't' => self.token = JsonToken::Literal(b"rue"),
            b'f' => self.token = JsonToken::Literal(b"alse"),
            b'n' => self.token = JsonToken::Literal(b"ull"),
            _ => match NumberToken::begin(byte) {
                Some(number) => self.token = JsonToken::Number(number),
                None => self.state = ReaderState::Failed,
            },
        }
    }

    fn open_container(&mut self, is_object: bool) {
        if self.open.len() == DEPTH_MAX {
            self.state = ReaderState::Failed;
            return;
        }
        self.open.push(Container { is_object, index: 0 });
        self.state = match is_object {
            true => ReaderState::NameOrEnd,
            false => {
                self.enter(|segment| segment == "0");
                ReaderState::ItemOrEnd
            }
        };
    }

    fn close(&mut self, byte: u8) {
        match self.open.pop() {
            Some(container) if container.is_object == (byte == b'}') => self.end_value(),
            _ => self.state = ReaderState::Failed,
        }
    }

    fn next_item(&mut self) {
        let Some(container) = self.open.last_mut() else {
            self.state = ReaderState::Failed;
            return;
        };
        if container.is_object {
            self.state = ReaderState::Name;
            return;
        }
        container.index = container.index.saturating_add(1);
        let index = container.index;
        self.state = ReaderState::Value;
        self.enter(|segment| segment.parse() == Ok(index));
    }

    /// Notes which paths lead through a member or item of the innermost container: those whose part `is_it`.
    fn enter(&mut self, is_it: impl Fn(&str) -> bool) {
        let depth = self.open.len() - 1;
        for ((path, matched), value) in
            self.paths.iter().zip(&mut self.matched).zip(&mut self.values)
        {
            if usize::from(*matched) < depth {
                continue;
            }
            *matched = depth as u8;
            if path.segment(depth).is_some_and(&is_it) {
                *matched += 1;
                // A member that appears twice replaces the first, with all that is in it.
                if self.repeated == RepeatedNumber::Last {
                    *value = None;
                }
            }
        }
    }

    /// Ends a value of any kind.
    fn end_value(&mut self) {
        self.state = match self.open.len() {
            0 => ReaderState::Done,
            _ => ReaderState::CommaOrEnd,
        };
    }

    fn end_number(&mut self) {
        let JsonToken::Number(number) = std::mem::replace(&mut self.token, JsonToken::None) else {
            return;
        };
        if !number.is_complete() {
            self.state = ReaderState::Failed;
            return;
        }
        let depth = self.open.len();
        for ((path, matched), value) in self.paths.iter().zip(&self.matched).zip(&mut self.values) {
            if path.len() == depth && usize::from(*matched) == depth {
                let found = number.whole();
                *value = match self.repeated {
                    RepeatedNumber::Last => found,
                    RepeatedNumber::Largest => found.max(*value),
                };
            }
        }
        self.end_value();
    }

    fn in_number<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let JsonToken::Number(number) = &mut self.token else { return bytes };
        let taken = bytes.iter().take_while(|byte| number.push(**byte)).count();
        if taken < bytes.len() {
            self.end_number();
        }
        &bytes[taken..]
    }

    fn in_literal<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let JsonToken::Literal(rest) = &mut self.token else { return bytes };
        if rest.first() != bytes.first() {
            self.state = ReaderState::Failed;
            return bytes;
        }
        *rest = &rest[1..];
        if rest.is_empty() {
            self.token = JsonToken::None;
            self.end_value();
        }
        &bytes[1..]
    }

    fn in_text<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let JsonToken::Text(text) = &mut self.token else { return bytes };
        if text.escape != TextEscape::None {
            if !text.push_escaped(bytes[0]) {
                self.state = ReaderState::Failed;
            }
            return &bytes[1..];
        }
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let plain = bytes.iter().position(is_special).unwrap_or(bytes.len());
        text.push(&bytes[..plain]);
        match bytes.get(plain) {
            None => return &[],
            Some(b'\\') => text.escape = TextEscape::Begun,
            Some(b'"') => self.end_text(),
            Some(_) => self.state = ReaderState::Failed,
        }
        &bytes[plain + 1..]
    }

    fn end_text(&mut self) {
        let JsonToken::Text(text) = std::mem::replace(&mut self.token, JsonToken::None) else {
            return;
        };
        if !text.is_name {
            self.end_value();
            return;
        }
        self.enter(|segment| !text.is_too_long && segment.as_bytes() == &*text.name);
        self.state = ReaderState::Colon;
    }
}

impl TextToken {
    /// Adds decoded bytes.
    fn push(&mut self, bytes: &[u8]) {
        if self.is_name && self.name.try_extend_from_slice(bytes).is_err() {
            self.is_too_long = true;
        }
    }

    /// Reads a byte of an escape; false if there is no such escape.
    fn push_escaped(&mut self, byte: u8) -> bool {
        let TextEscape::Unicode { digits, code } = self.escape else {
            self.escape = TextEscape::None;
            match byte {
                b'"' | b'\\' | b'/' => self.push(&[byte]),
                // No part of a path contains a control character.
                b'b' | b'f' | b'n' | b'r' | b't' => self.push(b"\0"),
                b'u' => self.escape = TextEscape::Unicode { digits: 0, code: 0 },
                _ => return false,
            }
            return true;
        };
        let Some(digit) = char::from(byte).to_digit(16) else { return false };
        let code = code << 4 | digit as u16;
        if digits < 3 {
            self.escape = TextEscape::Unicode { digits: digits + 1, code };
            return true;
        }
        self.escape = TextEscape::None;
        // Half of a pair becomes U+FFFD: names with characters beyond the basic plane are escaped by few writers.
        let char = char::from_u32(code.into()).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.push(char.encode_utf8(&mut [0; 4]).as_bytes());
        true
    }
}
