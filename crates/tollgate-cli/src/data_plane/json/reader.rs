//! A strict JSON reader (RFC 8259) for strings, whole numbers, booleans, null, objects and arrays of known shape.
//! Strings are borrowed unless they have escapes.

use std::borrow::Cow;

use tollgate::headers::escape_non_utf8;
use tollgate::time::MAX_EXACT;

use super::plain_prefix_len;

/// Maximum characters of a wrong value that an error shows.
const SHOWN_CHARS_MAX: usize = 60;

/// Reads a whole body with `what`. An error names its line and column.
pub(crate) fn read<'a, T>(
    body: &'a [u8],
    what: impl FnOnce(&mut JsonReader<'a>) -> Result<T, JsonError>,
) -> Result<T, String> {
    // Validated once as a whole, so that strings need not be.
    let text = std::str::from_utf8(body)
        .map_err(|error| format!("The body is not UTF-8: see byte {}.", error.valid_up_to()))?;
    let mut reader = JsonReader { text, offset: 0 };
    let read = what(&mut reader).and_then(|value| match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.expected_error("the end of the body")),
    });
    read.map_err(|mistake| {
        let before = &text[..mistake.offset];
        let line_at = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_at..].chars().count() + 1;
        format!("Line {line}, column {column}: {}.", mistake.problem)
    })
}

/// A problem and its offset. Boxed, because errors are rare and most functions return a result.
pub(crate) type JsonError = Box<JsonErrorDetails>;

#[derive(Debug)]
pub(crate) struct JsonErrorDetails {
    offset: usize,
    pub(crate) problem: String,
}

/// A position in a JSON text.
pub(crate) struct JsonReader<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> JsonReader<'a> {
    #[inline]
    pub(crate) fn text_or_null(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            _ if self.take_null_here() => Ok(None),
            _ => Err(self.expected_error(&format!("a string for {name:?}"))),
        }
    }

    /// Reads a whole number or null; `1.0` and `1e3` are errors.
    pub(crate) fn number_or_null(&mut self, name: &str) -> Result<Option<u64>, JsonError> {
        if self.peek() == Some(b'n') && self.take_null_here() {
            return Ok(None);
        }
        let rest = &self.text.as_bytes()[self.offset..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, next) = (&self.text[self.offset..self.offset + length], rest.get(length));
        let padded = length > 1 && digits.starts_with('0');
        let number = digits.parse().ok().filter(|number| *number <= MAX_EXACT);
        match number {
            Some(number) if !padded && !matches!(next, Some(b'.' | b'e' | b'E')) => {
                self.offset += length;
                Ok(Some(number))
            }
            _ => {
                Err(self
                    .expected_error(&format!("a whole number from 0 to {MAX_EXACT} for {name:?}")))
            }
        }
    }

    /// Reads a whole number up to `most`, with or without quotes, or null.
    pub(crate) fn number_or_text_or_null(
        &mut self,
        name: &str,
        most: u64,
    ) -> Result<Option<u64>, JsonError> {
        let at = self.next_offset();
        let digits = match self.peek() {
            Some(b'"') => self.string()?,
            _ if self.take_null_here() => return Ok(None),
            _ => {
                let rest = &self.text[self.offset..];
                let ends = |c: char| c.is_whitespace() || ",]}".contains(c);
                let length = rest.find(ends).unwrap_or(rest.len());
                self.offset += length;
                Cow::Borrowed(&rest[..length])
            }
        };
        let padded = digits.len() > 1 && digits.starts_with('0');
        let all = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|number| *number <= most && all && !padded);
        number.map(Some).ok_or_else(|| {
            self.rewind_to(at);
            self.expected_error(&format!("a whole number from 0 to {most} for {name:?}"))
        })
    }

    /// Reads `true`, `false` or null.
    pub(crate) fn boolean_or_null(&mut self, name: &str) -> Result<Option<bool>, JsonError> {
        let rest = &self.text.as_bytes()[self.next_offset()..];
        for (word, value) in [("true", Some(true)), ("false", Some(false)), ("null", None)] {
            if rest.starts_with(word.as_bytes()) {
                self.offset += word.len();
                return Ok(value);
            }
        }
        Err(self.expected_error(&format!("true or false for {name:?}")))
    }

    /// Reads an object of these fields, each at most once and in either spelling (`oneName`, `one_name`). `value` reads
    /// the value of the field with the given index. At most 32 fields.
    pub(crate) fn object(
        &mut self,
        fields: &[&str],
        mut value: impl FnMut(&mut JsonReader<'a>, usize) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if !self.take_byte(b'{') {
            return Err(
                self.expected_error(&format!("an object with any of {}", fields.join(", ")))
            );
        }
        if self.take_byte(b'}') {
            return Ok(());
        }
        let mut seen = 0_u32;
        loop {
            let (at, name) = self.member_name()?;
            let Some(field) = fields.iter().position(|field| matches_field_name(field, &name))
            else {
                let known = fields.join(", ");
                let problem = format!("there is no field {name:?}: write any of {known}");
                return Err(self.error_at(at, problem));
            };
            if seen >> field & 1 == 1 {
                return Err(self.error_at(at, format!("{name:?} appears twice")));
            }
            seen |= 1 << field;
            value(self, field)?;
            if !self.has_another_member()? {
                return Ok(());
            }
        }
    }

    /// Reads an array of at most `most` items, or null as an empty one. `what` names it in errors.
    pub(crate) fn list<T>(
        &mut self,
        what: &str,
        most: usize,
        mut item: impl FnMut(&mut JsonReader<'a>) -> Result<T, JsonError>,
    ) -> Result<Vec<T>, JsonError> {
        let mut items = Vec::new();
        if !self.take_byte(b'[') {
            return if self.take_null_here() { Ok(items) } else { Err(self.expected_error(what)) };
        }
        if self.take_byte(b']') {
            return Ok(items);
        }
        loop {
            if items.len() == most {
                let place = self.next_offset();
                return Err(self.error_at(place, format!("there are more than {most}")));
            }
            items.push(item(self)?);
            if self.take_byte(b']') {
                return Ok(items);
            }
            if !self.take_byte(b',') {
                return Err(self.expected_error("`,` or `]`"));
            }
        }
    }

    /// Skips a null. Returns true if there was one.
    pub(crate) fn take_null(&mut self) -> bool {
        self.peek();
        self.take_null_here()
    }

    /// Returns true if a string begins here.
    pub(crate) fn is_string(&mut self) -> bool {
        self.peek() == Some(b'"')
    }

    /// Reads the name of a member and the colon after it. Returns the offset of the name, too.
    pub(crate) fn member_name(&mut self) -> Result<(usize, Cow<'a, str>), JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.expected_error("the name of a field, in quotes"));
        }
        let at = self.offset;
        let name = self.string()?;
        match self.take_byte(b':') {
            true => Ok((at, name)),
            false => Err(self.expected_error("`:`")),
        }
    }

    /// Reads a comma or the end of the object. Returns true if another member follows.
    #[inline]
    pub(crate) fn has_another_member(&mut self) -> Result<bool, JsonError> {
        if self.take_byte(b',') {
            return Ok(true);
        }
        if self.take_byte(b'}') {
            return Ok(false);
        }
        Err(self.expected_error("`,` or `}`"))
    }

    /// Reads the string that begins here.
    #[inline]
    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        let start = self.offset + 1;
        let end = start + plain_prefix_len(&self.text.as_bytes()[start..]);
        if self.text.as_bytes().get(end) == Some(&b'"') {
            self.offset = end + 1;
            return Ok(Cow::Borrowed(&self.text[start..end]));
        }
        self.string_with_escapes(end).map(Cow::Owned)
    }

    /// Reads a string with escapes; there are none before `end`.
    #[cold]
    fn string_with_escapes(&mut self, mut end: usize) -> Result<String, JsonError> {
        let begin = self.offset;
        let mut start = begin + 1;
        let mut whole = Vec::new();
        loop {
            whole.extend_from_slice(&self.text.as_bytes()[start..end]);
            match self.text.as_bytes().get(end) {
                None => return Err(self.error_at(begin, "this string has no closing quote".into())),
                Some(b'"') => {
                    self.offset = end + 1;
                    return Ok(escape_non_utf8(&whole).into_owned());
                }
                Some(b'\\') => {
                    let (code, length) = parse_escape(&self.text[end..])
                        .ok_or_else(|| self.error_at(end, "there is no such escape".into()))?;
                    push_code(&mut whole, code);
                    start = end + length;
                }
                Some(_) => {
                    let problem =
                        "control character in a string: write it as an escape, such as \\n";
                    return Err(self.error_at(end, problem.into()));
                }
            }
            end = start + plain_prefix_len(&self.text.as_bytes()[start..]);
        }
    }

    /// Offset of the next token.
    pub(crate) fn next_offset(&mut self) -> usize {
        self.peek();
        self.offset
    }

    /// Goes back to an offset, for an error about the token there.
    pub(crate) fn rewind_to(&mut self, place: usize) {
        self.offset = place;
    }

    /// Skips white space and returns the next byte.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.offset) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.offset += 1,
                byte => return byte.copied(),
            }
        }
    }

    /// Skips white space and this byte. Returns true if it was there.
    #[inline]
    pub(crate) fn take_byte(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.offset += usize::from(is_next);
        is_next
    }

    pub(crate) fn take_null_here(&mut self) -> bool {
        let is_next = self.text.as_bytes()[self.offset..].starts_with(b"null");
        self.offset += if is_next { 4 } else { 0 };
        is_next
    }

    #[cold]
    pub(crate) fn error_at(&self, at: usize, problem: String) -> JsonError {
        Box::new(JsonErrorDetails { offset: at, problem })
    }

    /// The error for an unexpected token.
    #[cold]
    pub(crate) fn expected_error(&self, what: &str) -> JsonError {
        let found = match self.text.as_bytes().get(self.offset) {
            None => "the end of the body".into(),
            Some(b'{') => "an object".into(),
            Some(b'[') => "an array".into(),
            Some(_) => format!("`{}`", self.token()),
        };
        self.error_at(self.offset, format!("expected {what}, found {found}"))
    }

    /// Text of the token that begins here.
    fn token(&self) -> String {
        let rest = &self.text[self.offset..];
        let is_string = rest.starts_with('"');
        let ends =
            |c: char| if is_string { c == '"' } else { c.is_whitespace() || ",:]}".contains(c) };
        let behind = rest.char_indices().skip(1).find(|(_, c)| ends(*c));
        let end = behind.map_or(rest.len(), |(end, _)| end + usize::from(is_string));
        match rest[..end].char_indices().nth(SHOWN_CHARS_MAX) {
            None => rest[..end].into(),
            Some((cut, _)) => format!("{}…", &rest[..cut]),
        }
    }
}

/// Returns true if `name` is this field in camelCase or snake_case.
fn matches_field_name(field: &str, name: &str) -> bool {
    let mut letters = name.bytes();
    field == name
        || field.bytes().all(|letter| match letter.is_ascii_uppercase() {
            true => {
                letters.next() == Some(b'_') && letters.next() == Some(letter.to_ascii_lowercase())
            }
            false => letters.next() == Some(letter),
        }) && letters.next().is_none()
}

/// Appends a character. A lone surrogate becomes its three bytes, which are not UTF-8, so that it is escaped like
/// invalid bytes at other listeners and does not count as absent.
fn push_code(bytes: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let six = |shift: u32| 0x80 | (code >> shift & 0x3f) as u8;
            bytes.extend([0xe0 | (code >> 12) as u8, six(6), six(0)]);
        }
    }
}

/// The code point of the escape at the start of a text, which may be a lone surrogate, and the length of the escape.
fn parse_escape(text: &str) -> Option<(u32, usize)> {
    let simple = match text.as_bytes().get(1)? {
        b'"' => b'"',
        b'\\' => b'\\',
        b'/' => b'/',
        b'b' => 8,
        b'f' => 0xc,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => return parse_unicode_escape(text),
        _ => return None,
    };
    Some((simple.into(), 2))
}

/// Parses `\u0041`, a surrogate pair such as `\ud83d\ude00`, or a lone surrogate.
fn parse_unicode_escape(text: &str) -> Option<(u32, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        all.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    let first = unit(0)?;
    let low = unit(6).filter(|low| (0xdc00..0xe000).contains(low));
    Some(match (first, low) {
        (high @ 0xd800..0xdc00, Some(low)) => {
            (0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00), 12)
        }
        (code, _) => (code, 6),
    })
}
