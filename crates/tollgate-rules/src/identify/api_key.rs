//! API keys as keys: hashed, so that nobody who reads a key in a log or a store can use it.

use arrayvec::ArrayString;
use sha2::{Digest, Sha256};

/// The prefix of a hashed key.
const PREFIX: &str = "sha256:";
/// Number of hexadecimal digits of the hash: 128 bits, so that nobody finds a second key with the
/// same hash.
const DIGITS: usize = 32;

/// A hashed key.
pub(crate) type HashedApiKey = ArrayString<39>;

/// `sha256:` and the first half of the hash of an API key.
pub(crate) fn hash_api_key(api_key: &str) -> HashedApiKey {
    let mut text = HashedApiKey::from(PREFIX).expect("the prefix fits");
    let digest = Sha256::digest(api_key.as_bytes());
    text.push_str(const_hex::Buffer::<{ DIGITS / 2 }>::new().format_slice(&digest[..DIGITS / 2]));
    text
}

/// Returns true if a text has the form of a hashed key. Only text from operators is tested: a key
/// from a request is always hashed, or anybody who saw a hash could use it as a key.
pub(crate) fn is_hashed(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(PREFIX)
        .is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hashed_key_has_one_form() {
        // `printf %s KEY | sha256sum | cut -c 1-32`
        assert_eq!(hash_api_key("").as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb924");
        assert_eq!(hash_api_key("abc").as_str(), "sha256:ba7816bf8f01cfea414140de5dae2223");
        assert!(is_hashed(&hash_api_key("abc")));
        for text in [
            "",
            "sha256:",
            "sha256:ba7816bf8f01cfea414140de5dae222",
            "sha256:ba7816bf8f01cfea414140de5dae22233",
            "sha256:BA7816BF8F01CFEA414140DE5DAE2223",
            "SHA256:ba7816bf8f01cfea414140de5dae2223",
            "sha256:ga7816bf8f01cfea414140de5dae2223",
            "ba7816bf8f01cfea414140de5dae2223",
        ] {
            assert!(!is_hashed(text), "{text}");
        }
    }
}
