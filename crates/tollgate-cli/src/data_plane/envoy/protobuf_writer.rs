//! Writes protocol buffers: one field after the other into one buffer, without building a tree of messages first.

/// Wire type of numbers.
const VARINT: u32 = 0;
/// Wire type of bytes, strings and messages.
const DELIMITED: u32 = 2;

/// Writes a number or an enum value. 0 is the default of every field and is omitted.
pub(crate) fn write_number(out: &mut Vec<u8>, field: u32, number: u64) {
    if number > 0 {
        write_varint(out, (field << 3 | VARINT).into());
        write_varint(out, number);
    }
}

/// Writes bytes or text. Empty is the default and is omitted.
pub(crate) fn write_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        write_varint(out, (field << 3 | DELIMITED).into());
        write_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// Writes a nested message, or bytes of unknown length. Written even if empty.
pub(crate) fn write_delimited(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    write_varint(out, (field << 3 | DELIMITED).into());
    let length_at = out.len();
    // Most are shorter than 128 bytes, and their length is one byte.
    out.push(0);
    write(out);
    let length = out.len() - length_at - 1;
    if length < 0x80 {
        out[length_at] = length as u8;
        return;
    }
    // Longer ones are moved to make room for more bytes of length.
    let mut digits = Vec::new();
    write_varint(&mut digits, length as u64);
    out.splice(length_at..=length_at, digits);
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 10];
    let mut length = 0;
    while number >= 0x80 {
        digits[length] = number as u8 | 0x80;
        number >>= 7;
        length += 1;
    }
    digits[length] = number as u8;
    out.extend_from_slice(&digits[..=length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_seven_bits_at_a_time() {
        let rows: [(u64, &[u8]); 7] = [
            (0, &[]),
            (1, &[8, 1]),
            (127, &[8, 127]),
            (128, &[8, 128, 1]),
            (300, &[8, 172, 2]),
            (u32::MAX.into(), &[8, 255, 255, 255, 255, 15]),
            (u64::MAX, &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ];
        for (value, want) in rows {
            let mut out = Vec::new();
            write_number(&mut out, 1, value);
            assert_eq!(&out[..], want, "{value}");
        }
    }

    #[test]
    fn lengths_are_written_before_what_they_count() {
        for length in [0, 1, 127, 128, 300, 16_383, 16_384, 70_000] {
            let content = vec![7; length];
            let mut out = b"before".to_vec();
            write_delimited(&mut out, 2, |out| out.extend_from_slice(&content));
            let mut known = b"before".to_vec();
            write_bytes(&mut known, 2, &content);
            if length == 0 {
                known.extend_from_slice(&[2 << 3 | 2, 0]);
            }
            assert!(out == known, "{length} bytes");
        }
    }
}
