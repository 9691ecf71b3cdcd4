//! `TextDecoder`: the encodings in which JSON text may arrive, as UTF-8.
//!
//! The standard allows UTF-8 only, but readers of other languages, such as Python's, take UTF-16 and UTF-32 as well, with
//! or without a byte order mark. Units that encode no character become U+FFFD.

use arrayvec::ArrayVec;

/// Number of bytes that tell the encoding.
const BEGIN_BYTES: usize = 4;

/// Converts text that arrives in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct TextDecoder {
    /// `None` until the first bytes are there.
    encoding: Option<TextEncoding>,
    /// The first bytes, or an incomplete unit.
    bytes: ArrayVec<u8, BEGIN_BYTES>,
    /// The first half of a pair of UTF-16.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEncoding {
    Utf8,
    Wide { unit: usize, is_big: bool },
}

impl TextDecoder {
    /// Converts a piece of the text.
    pub(crate) fn decode(&mut self, mut bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        if self.encoding.is_none() {
            let room = self.bytes.remaining_capacity().min(bytes.len());
            self.bytes.extend(bytes[..room].iter().copied());
            bytes = &bytes[room..];
            if !self.bytes.is_full() {
                return;
            }
            self.begin(out);
        }
        match self.encoding {
            Some(TextEncoding::Wide { .. }) => self.decode_units(bytes, out),
            _ => out(bytes),
        }
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.encoding.is_none() {
            self.begin(out);
        }
    }

    /// Finds the encoding, and converts the first bytes.
    fn begin(&mut self, out: &mut impl FnMut(&[u8])) {
        let bytes = std::mem::take(&mut self.bytes);
        let (encoding, mark) = TextEncoding::of(&bytes);
        self.encoding = Some(encoding);
        self.decode(&bytes[mark..], out);
    }

    fn decode_units(&mut self, bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        let Some(TextEncoding::Wide { unit, is_big }) = self.encoding else { return };
        for byte in bytes {
            self.bytes.push(*byte);
            if self.bytes.len() < unit {
                continue;
            }
            let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
            let code = match is_big {
                true => self.bytes.iter().fold(0, add),
                false => self.bytes.iter().rev().fold(0, add),
            };
            self.bytes.clear();
            self.decode_unit(code, unit == 2, out);
        }
    }

    fn decode_unit(&mut self, code: u32, has_pairs: bool, out: &mut impl FnMut(&[u8])) {
        let high = self.high.take();
        let code = match (high, code) {
            (Some(high), 0xdc00..0xe000) => 0x1_0000 + ((high - 0xd800) << 10) + (code - 0xdc00),
            (_, 0xd800..0xdc00) if has_pairs => {
                self.high = Some(code);
                return;
            }
            _ => code,
        };
        let char = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        out(char.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl TextEncoding {
    /// The encoding of text that begins with these bytes, and the length of its byte order mark. The first character of
    /// JSON text is ASCII, so its zero bytes tell the rest.
    fn of(bytes: &[u8]) -> (TextEncoding, usize) {
        let wide = |unit, is_big| TextEncoding::Wide { unit, is_big };
        match *bytes {
            [0xff, 0xfe, 0, 0] => (wide(4, false), 4),
            [0, 0, 0xfe, 0xff] => (wide(4, true), 4),
            [0xff, 0xfe, ..] => (wide(2, false), 2),
            [0xfe, 0xff, ..] => (wide(2, true), 2),
            [0xef, 0xbb, 0xbf, ..] => (TextEncoding::Utf8, 3),
            [0, 0, 0, _] => (wide(4, true), 0),
            [_, 0, 0, 0] => (wide(4, false), 0),
            [0, _, ..] => (wide(2, true), 0),
            [_, 0, ..] => (wide(2, false), 0),
            _ => (TextEncoding::Utf8, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_becomes_utf8_however_it_is_split() {
        let text = "{\"é😀\":1}";
        let wide = |unit: usize, is_big: bool, text: &str| -> Vec<u8> {
            let units: Vec<u32> = match unit {
                2 => text.encode_utf16().map(u32::from).collect(),
                _ => text.chars().map(u32::from).collect(),
            };
            let bytes = |code: u32| match is_big {
                true => code.to_be_bytes()[4 - unit..].to_vec(),
                false => code.to_le_bytes()[..unit].to_vec(),
            };
            units.into_iter().flat_map(bytes).collect()
        };
        let marked = format!("\u{feff}{text}");
        let mut rows = vec![text.as_bytes().to_vec(), marked.clone().into_bytes()];
        for (unit, is_big) in [(2, false), (2, true), (4, false), (4, true)] {
            rows.extend([wide(unit, is_big, text), wide(unit, is_big, &marked)]);
        }
        for bytes in rows {
            for size in [1, 2, 3, 5, 100] {
                let (mut decoder, mut decoded) = (TextDecoder::default(), Vec::new());
                let mut out = |piece: &[u8]| decoded.extend_from_slice(piece);
                bytes.chunks(size).for_each(|piece| decoder.decode(piece, &mut out));
                decoder.finish(&mut out);
                assert_eq!(String::from_utf8(decoded).as_deref(), Ok(text), "{bytes:?}");
            }
        }
        for short in ["", "1", "12", "{}"] {
            let (mut decoder, mut decoded) = (TextDecoder::default(), Vec::new());
            let mut out = |piece: &[u8]| decoded.extend_from_slice(piece);
            decoder.decode(short.as_bytes(), &mut out);
            decoder.finish(&mut out);
            assert_eq!(decoded, short.as_bytes());
        }
    }
}
