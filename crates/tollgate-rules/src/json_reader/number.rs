//! `NumberToken`: a number of a JSON document, read byte by byte.

use std::num::IntErrorKind;

use arrayvec::ArrayVec;
use tollgate::time::MAX_EXACT;

/// The longest number that is read; a longer one is valid and counts as no whole number.
const NUMBER_BYTES_MAX: usize = 64;

/// A number being read.
#[derive(Debug)]
pub(super) struct NumberToken {
    part: NumberPart,
    text: ArrayVec<u8, NUMBER_BYTES_MAX>,
    is_too_long: bool,
}

/// The last byte that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberPart {
    Minus,
    /// A 0 that begins the number: no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl NumberToken {
    /// Begins a number; `None` if no number begins with this byte.
    pub(super) fn begin(byte: u8) -> Option<NumberToken> {
        let part = match byte {
            b'-' => NumberPart::Minus,
            b'0' => NumberPart::Zero,
            b'1'..=b'9' => NumberPart::Whole,
            _ => return None,
        };
        Some(NumberToken { part, text: ArrayVec::from_iter([byte]), is_too_long: false })
    }

    /// Takes a byte, if it belongs to the number.
    pub(super) fn push(&mut self, byte: u8) -> bool {
        use NumberPart::*;
        self.part = match (self.part, byte) {
            (Minus, b'0') => Zero,
            (Minus | Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => ExponentDigits,
            _ => return false,
        };
        self.is_too_long |= self.text.try_push(byte).is_err();
        true
    }

    /// Returns true if the number may end here.
    pub(super) fn is_complete(&self) -> bool {
        use NumberPart::*;
        matches!(self.part, Zero | Whole | Fraction | ExponentDigits)
    }

    /// Returns true if only a minus has been read.
    pub(super) fn is_minus(&self) -> bool {
        self.part == NumberPart::Minus
    }

    /// The largest number that a reader could take this one for: rounded up, and [`MAX_EXACT`] if it is too long.
    pub(super) fn largest(&self) -> Option<u64> {
        match self.is_too_long {
            true => (self.text.first() != Some(&b'-')).then_some(MAX_EXACT),
            false => largest_in_text(std::str::from_utf8(&self.text).ok()?),
        }
    }

    /// The number, if it is whole and not negative, at most [`MAX_EXACT`]: what is larger counts as that.
    pub(super) fn whole(&self) -> Option<u64> {
        if self.is_too_long || self.text.first() == Some(&b'-') {
            return None;
        }
        let text = std::str::from_utf8(&self.text).ok()?;
        if let Ok(whole) = text.parse::<u64>() {
            return Some(whole.min(MAX_EXACT));
        }
        // Exact below 2^53, and anything above it is cut.
        let number: f64 = text.parse().ok()?;
        (number.fract() == 0.0 || number.is_infinite()).then(|| (number as u64).min(MAX_EXACT))
    }
}

/// The largest number that a reader could take a text for: with white space around it, underscores between digits, a
/// sign, a fraction or an exponent, in base 16, 8 or 2, or in digits of other scripts. Negative numbers are none; larger ones
/// than [`MAX_EXACT`] count as that, and so does a number with digits that are not read.
pub(super) fn largest_in_text(text: &str) -> Option<u64> {
    let digits = text.trim_matches(is_blank).chars().filter(|char| *char != '_');
    let plain: String = digits.map(narrow_digit).collect();
    if plain.contains(may_be_digit) && !plain.is_ascii() {
        return may_begin_number(&plain).then_some(MAX_EXACT);
    }
    let unsigned = plain.strip_prefix('+').unwrap_or(&plain);
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        let digits = unsigned.get(..2).filter(|begin| begin.eq_ignore_ascii_case(prefix));
        if digits.is_some() {
            return match u128::from_str_radix(&unsigned[2..], radix) {
                Ok(number) => Some(number.min(MAX_EXACT.into()) as u64),
                Err(error) => (*error.kind() == IntErrorKind::PosOverflow).then_some(MAX_EXACT),
            };
        }
    }
    if let Ok(whole) = unsigned.parse::<u64>() {
        return Some(whole.min(MAX_EXACT));
    }
    // Exact below 2^53, and anything above it is cut.
    let number = unsigned.parse::<f64>().ok().filter(|number| *number >= 0.0)?;
    Some((number.ceil() as u64).min(MAX_EXACT))
}

/// Returns true if a long text that begins with this one may be a number.
pub(super) fn may_begin_number(text: &str) -> bool {
    let is_part = |char: char| {
        char.is_ascii_hexdigit()
            || may_be_digit(char)
            || is_blank(char)
            || "+-.xXoO_".contains(char)
    };
    let text = text.trim_matches(is_blank);
    let has_digits = text.contains(may_be_digit) && text.chars().all(is_part);
    has_digits && !text.starts_with('-')
}

/// Returns true for characters that some readers skip around a number.
pub(super) fn is_blank(char: char) -> bool {
    char.is_whitespace() || char.is_control() || char == '\u{feff}'
}

/// The ASCII digit for a digit of full width, as East Asian keyboards have it.
fn narrow_digit(char: char) -> char {
    match char {
        '０'..='９' => char::from((u32::from(char) - u32::from('０')) as u8 + b'0'),
        _ => char,
    }
}

/// Returns true for digits of any script, and for a character that could not be read.
fn may_be_digit(char: char) -> bool {
    char.is_numeric() || char == char::REPLACEMENT_CHARACTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_in_all_their_forms() {
        let long = format!("1{}", "0".repeat(NUMBER_BYTES_MAX));
        let cases = [
            ("0", Some(0)),
            ("17", Some(17)),
            ("4096.0", Some(4_096)),
            ("1e3", Some(1_000)),
            ("1.5E+1", Some(15)),
            ("9007199254740991", Some(MAX_EXACT)),
            ("9007199254740992", Some(MAX_EXACT)),
            ("99999999999999999999999", Some(MAX_EXACT)),
            ("1e400", Some(MAX_EXACT)),
            ("1.5", None),
            ("1e-3", None),
            ("-1", None),
            ("-0", None),
            (&*long, None),
        ];
        for (text, want) in cases {
            let mut number = NumberToken::begin(text.as_bytes()[0]).unwrap();
            assert!(text.bytes().skip(1).all(|byte| number.push(byte)), "{text}");
            assert!(number.is_complete(), "{text}");
            assert_eq!(number.whole(), want, "{text}");
        }
    }

    #[test]
    fn other_spellings_are_no_numbers() {
        for text in ["-", "1.", "1e", "1e+", "01", "1.e1", "--1", "1.2.3", "0x1", "1_0"] {
            let mut number = NumberToken::begin(text.as_bytes()[0]).unwrap();
            let taken = text.bytes().skip(1).take_while(|byte| number.push(*byte)).count() + 1;
            assert!(taken < text.len() || !number.is_complete(), "{text}");
        }
        assert!(
            [b'+', b'.', b'a', b'N'].into_iter().all(|byte| NumberToken::begin(byte).is_none())
        );
    }
}
