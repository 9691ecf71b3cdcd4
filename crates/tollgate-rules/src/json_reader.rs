//! `JsonNumberReader`: finds the numbers at some paths of a JSON document that arrives in pieces.
//!
//! It keeps no copy of the document: its memory is the open containers, the current name or text and the number being
//! read, all bounded. Text that is not UTF-8 is tolerated inside of strings.
//!
//! Answers of an upstream are read exactly: a document counts only if it is valid to its end. Requests are read
//! generously, because a client must not hide a number from this reader that the upstream finds.

mod deep;
mod encoding;
mod number;
mod text;

use tollgate::time::MAX_EXACT;

use crate::json_path::JsonPath;
use deep::DeepValue;
pub(crate) use encoding::TextDecoder;
use number::NumberToken;
use text::TextToken;

/// The deepest nesting of a document whose containers are kept, as serde_json has it. Paths are much shorter.
const DEPTH_MAX: usize = 127;

/// Reads numbers from JSON text, which is fed in pieces of any size.
#[derive(Debug)]
pub struct JsonNumberReader {
    paths: Box<[JsonPath]>,
    /// The number found at each path of the current document.
    values: Box<[Option<u64>]>,
    /// Number of leading parts of each path that lead to the current value.
    matched: Box<[u8]>,
    policy: NumberPolicy,
    state: ReaderState,
    /// The open containers. Bound: [`DEPTH_MAX`].
    open: Vec<Container>,
    token: JsonToken,
}

/// The numbers of a document that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberPolicy {
    /// Whole numbers of valid JSON, at most 127 levels deep. If a path appears twice, the last counts, as most readers of
    /// JSON have it.
    Exact,
    /// The largest number that some reader could take: also a text with a number, an array of numbers, a fraction (rounded up), a
    /// number that is too long to be read (more than any limit), and a name in other capitals. `NaN`, `Infinity`, control
    /// characters in strings and any depth are tolerated.
    LargestPossible,
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
    /// The rest of `true`, `false`, `null` or `NaN`.
    Literal(&'static [u8]),
    /// The rest of `Infinity`, and its number if it is positive.
    Infinity(&'static [u8], Option<u64>),
    /// A value below the deepest level that is read.
    Deep(DeepValue),
}

impl JsonNumberReader {
    /// A reader for the numbers at these paths.
    pub fn new(
        paths: impl IntoIterator<Item = JsonPath>,
        policy: NumberPolicy,
    ) -> JsonNumberReader {
        let paths: Box<[JsonPath]> = paths.into_iter().collect();
        JsonNumberReader {
            values: vec![None; paths.len()].into(),
            matched: vec![0; paths.len()].into(),
            paths,
            policy,
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
                JsonToken::Literal(_) | JsonToken::Infinity(..) => self.in_literal(bytes),
                JsonToken::Deep(_) => self.in_deep_value(bytes),
            };
        }
    }

    /// Returns true if the document is invalid, so that the rest of it changes nothing.
    pub fn has_failed(&self) -> bool {
        self.state == ReaderState::Failed
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
                self.token = JsonToken::Text(TextToken::name());
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
            b'N' if self.is_generous() => self.token = JsonToken::Literal(b"aN"),
            b'I' if self.is_generous() => {
                self.token = JsonToken::Infinity(b"nfinity", Some(MAX_EXACT));
            }
            _ => match NumberToken::begin(byte) {
                Some(number) => self.token = JsonToken::Number(number),
                None => self.state = ReaderState::Failed,
            },
        }
    }

    fn open_container(&mut self, is_object: bool) {
        if self.open.len() == DEPTH_MAX {
            match self.is_generous() {
                true => self.token = JsonToken::Deep(DeepValue::default()),
                false => self.state = ReaderState::Failed,
            }
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
                if self.policy == NumberPolicy::Exact {
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
        self.found(match self.policy {
            NumberPolicy::Exact => number.whole(),
            NumberPolicy::LargestPossible => number.largest(),
        });
        self.end_value();
    }

    /// Notes the number of the current value at the paths that lead to it. To some readers an array of one number is that
    /// number.
    fn found(&mut self, number: Option<u64>) {
        let arrays = self.open.iter().rev().take_while(|one| self.is_generous() && !one.is_object);
        let (depth, arrays) = (self.open.len(), arrays.count());
        for ((path, matched), value) in self.paths.iter().zip(&self.matched).zip(&mut self.values) {
            let is_here = (depth - arrays..=depth).contains(&path.len());
            if is_here && usize::from(*matched) == path.len() {
                *value = match self.policy {
                    NumberPolicy::Exact => number,
                    NumberPolicy::LargestPossible => number.max(*value),
                };
            }
        }
    }

    fn is_generous(&self) -> bool {
        self.policy == NumberPolicy::LargestPossible
    }

    fn in_number<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let is_generous = self.is_generous();
        let JsonToken::Number(number) = &mut self.token else { return bytes };
        if is_generous && bytes[0] == b'I' && number.is_minus() {
            self.token = JsonToken::Infinity(b"nfinity", None);
            return &bytes[1..];
        }
        let taken = bytes.iter().take_while(|byte| number.push(**byte)).count();
        if taken < bytes.len() {
            self.end_number();
        }
        &bytes[taken..]
    }

    fn in_literal<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let rest = match &mut self.token {
            JsonToken::Literal(rest) | JsonToken::Infinity(rest, _) => rest,
            _ => return bytes,
        };
        if rest.first() != bytes.first() {
            self.state = ReaderState::Failed;
            return bytes;
        }
        *rest = &rest[1..];
        if rest.is_empty() {
            let token = std::mem::replace(&mut self.token, JsonToken::None);
            if let JsonToken::Infinity(_, Some(number)) = token {
                self.found(Some(number));
            }
            self.end_value();
        }
        &bytes[1..]
    }

    fn in_deep_value<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let JsonToken::Deep(deep) = &mut self.token else { return bytes };
        let (rest, is_at_end) = deep.skip(bytes);
        if is_at_end {
            self.token = JsonToken::None;
            self.end_value();
        }
        rest
    }

    fn in_text<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let is_generous = self.is_generous();
        let JsonToken::Text(text) = &mut self.token else { return bytes };
        if text.is_escaped() {
            if !text.push_escaped(bytes[0]) {
                self.state = ReaderState::Failed;
            }
            return &bytes[1..];
        }
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\') || !is_generous && *byte < b' ';
        let plain = bytes.iter().position(is_special).unwrap_or(bytes.len());
        text.push(&bytes[..plain]);
        match bytes.get(plain) {
            None => return &[],
            Some(b'\\') => text.begin_escape(),
            Some(b'"') => self.end_text(),
            Some(_) => self.state = ReaderState::Failed,
        }
        &bytes[plain + 1..]
    }

    fn end_text(&mut self) {
        let JsonToken::Text(text) = std::mem::replace(&mut self.token, JsonToken::None) else {
            return;
        };
        if !text.is_name() {
            if self.is_generous() {
                self.found(text.number());
            }
            self.end_value();
            return;
        }
        match self.is_generous() {
            true => self.enter(|segment| text.resembles(segment)),
            false => self.enter(|segment| text.equals(segment)),
        }
        self.state = ReaderState::Colon;
    }
}
