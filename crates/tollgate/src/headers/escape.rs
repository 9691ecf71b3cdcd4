//! Bytes from clients, as text for keys and rules.

use std::borrow::Cow;

/// Converts bytes to text. Proxies pass on whatever bytes their client sent: those that are not
/// UTF-8 are escaped, as in a normalized path. They must never count as absent: then no rule would
/// apply, and a client could escape its key.
///
/// ```
/// use tollgate::headers::escape_non_utf8;
///
/// assert_eq!(escape_non_utf8("Zoë".as_bytes()), "Zoë");
/// assert_eq!(escape_non_utf8(b"Zo\xeb"), "Zo%EB"); // Latin-1
/// ```
#[inline]
pub fn escape_non_utf8(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| Cow::Owned(escaped(bytes)), Cow::Borrowed)
}

#[cold]
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(3 * bytes.len());
    for &byte in bytes {
        match byte.is_ascii() {
            true => text.push(byte.into()),
            false => {
                let digit = |four: u8| char::from(b"0123456789ABCDEF"[usize::from(four)]);
                text.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_there() {
        assert_eq!(escape_non_utf8(b""), "");
        // If the bytes are not UTF-8, every byte that is not ASCII is escaped, even where some
        // would be valid.
        assert_eq!(escape_non_utf8(b"a%\xc3\xa9\xff\0\x7f\x80"), "a%%C3%A9%FF\0\x7f%80");
        for byte in 0x80..=u8::MAX {
            assert_eq!(escape_non_utf8(&[byte]), format!("%{byte:02X}"));
        }
    }
}
