//! Finds the characters that JSON strings escape; most strings have none.

/// Number of bytes before the first quote, backslash or control character.
#[inline]
pub(crate) fn plain_prefix_len(text: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // Eight bytes at once: subtracting a larger byte borrows, which sets the top bit. Borrows may falsify bytes above
        // the first match, which are ignored.
        let word = u64::from_le_bytes(*word);
        let (quote, escape) = (word ^ (EACH * 0x22), word ^ (EACH * 0x5c));
        let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound) & !word;
        let special = (below(word, 0x20) | below(quote, 1) | below(escape, 1)) & (EACH << 7);
        if special != 0 {
            return index * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    text.len() - rest.len() + rest.iter().position(special).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_end_at_the_first_special_one() {
        for byte in 0..=0xff_u8 {
            let special = byte < 0x20 || byte == b'"' || byte == b'\\';
            for at in 0..20 {
                for around in [b' ', b'!', 0x7f, 0x80, 0xff] {
                    let mut text = [around; 20];
                    text[at] = byte;
                    let want = if special { at } else { 20 };
                    assert_eq!(plain_prefix_len(&text), want, "{byte} at {at} in {around}");
                }
            }
        }
    }
}
