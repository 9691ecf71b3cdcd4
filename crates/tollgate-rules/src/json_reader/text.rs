//! `TextToken`: a string of a JSON document, read piece by piece: the name of a member, or a value.

use arrayvec::ArrayVec;
use tollgate::time::MAX_EXACT;

use super::number;
use crate::json_path::SEGMENT_BYTES_MAX;

/// A string being read.
#[derive(Debug, Default)]
pub(super) struct TextToken {
    is_name: bool,
    escape: TextEscape,
    /// The decoded text.
    text: ArrayVec<u8, SEGMENT_BYTES_MAX>,
    /// True if a value has begun: the white space before it takes no room.
    has_begun: bool,
    /// True if the text is longer: such a name is no part of a path.
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

impl TextToken {
    /// The name of a member.
    pub(super) fn name() -> TextToken {
        TextToken { is_name: true, has_begun: true, ..TextToken::default() }
    }

    pub(super) fn is_name(&self) -> bool {
        self.is_name
    }

    /// Returns true after a backslash.
    pub(super) fn is_escaped(&self) -> bool {
        self.escape != TextEscape::None
    }

    pub(super) fn begin_escape(&mut self) {
        self.escape = TextEscape::Begun;
    }

    /// Returns true if the name is this part of a path.
    pub(super) fn equals(&self, segment: &str) -> bool {
        !self.is_too_long && segment.as_bytes() == &*self.text
    }

    /// Returns true if some readers take the name for this part of a path: Go's ignores capitals.
    pub(super) fn resembles(&self, segment: &str) -> bool {
        !self.is_too_long && segment.as_bytes().eq_ignore_ascii_case(&self.text)
    }

    /// The largest number that a reader could take the text for.
    pub(super) fn number(&self) -> Option<u64> {
        // A long text may end within a character.
        let text = String::from_utf8_lossy(&self.text);
        let number = number::largest_in_text(&text);
        match self.is_too_long {
            true => (number.is_some() || number::may_begin_number(&text)).then_some(MAX_EXACT),
            false => number,
        }
    }

    /// Adds decoded bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !self.has_begun
            && let Some((first, rest)) = bytes.split_first()
        {
            self.text.push(*first);
            bytes = rest;
            match std::str::from_utf8(&self.text) {
                Ok(text) if text.chars().all(number::is_blank) => self.text.clear(),
                // The rest of the character follows.
                Err(error) if error.error_len().is_none() => {}
                Ok(_) | Err(_) => self.has_begun = true,
            }
        }
        let room = self.text.remaining_capacity().min(bytes.len());
        self.text.extend(bytes[..room].iter().copied());
        self.is_too_long |= room < bytes.len();
    }

    /// Reads a byte of an escape; false if there is no such escape.
    pub(super) fn push_escaped(&mut self, byte: u8) -> bool {
        let TextEscape::Unicode { digits, code } = self.escape else {
            self.escape = TextEscape::None;
            match byte {
                b'"' | b'\\' | b'/' => self.push(&[byte]),
                b'b' => self.push(b"\x08"),
                b'f' => self.push(b"\x0c"),
                b'n' => self.push(b"\n"),
                b'r' => self.push(b"\r"),
                b't' => self.push(b"\t"),
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
