//! What a store can be told beside where it is.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tollgate_shared::TimeSource;

/// Options of a store beside its URL.
#[derive(Clone)]
pub struct RedisOptions {
    /// Timeout of a decision, from the request to the answer, time in the queue included.
    pub timeout: Duration,
    /// The prefix of all keys.
    pub prefix: KeyPrefix,
    /// Keys are hashed under this secret, if there is one: then nobody who reads the store can try
    /// names until one fits.
    pub key_secret: Option<Vec<u8>>,
    /// The clock that decides.
    pub time: TimeSource,
}

impl fmt::Debug for RedisOptions {
    /// Shows whether there is a secret, and not the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("timeout", &self.timeout)
            .field("prefix", &self.prefix)
            .field("key_secret", &self.key_secret.as_ref().map(|_| "***"))
            .field("time", &self.time)
            .finish()
    }
}

impl Default for RedisOptions {
    fn default() -> RedisOptions {
        RedisOptions {
            timeout: Duration::from_millis(10),
            prefix: KeyPrefix::default(),
            key_secret: None,
            time: TimeSource::Server,
        }
    }
}

/// The prefix of all keys of a store; `tollgate` by default.
///
/// ```
/// use tollgate_redis::{KeyPrefix, RedisOptions};
///
/// let options = RedisOptions { prefix: "shop:limits".parse()?, ..RedisOptions::default() };
/// assert!("shop{limits}".parse::<KeyPrefix>().is_err());
/// # Ok::<(), tollgate_redis::KeyPrefixError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(Box<str>);

impl KeyPrefix {
    /// The longest prefix in bytes: it stands in each key.
    pub const MAX_LEN: usize = 64;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for KeyPrefix {
    fn default() -> KeyPrefix {
        KeyPrefix("tollgate".into())
    }
}

impl FromStr for KeyPrefix {
    type Err = KeyPrefixError;

    /// Refuses spaces, and braces: a cluster would choose the slot of every key by what stands between
    /// the first of them, and not by whose key it is.
    fn from_str(text: &str) -> Result<KeyPrefix, KeyPrefixError> {
        let is_right = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
        match text.len() {
            1..=KeyPrefix::MAX_LEN if text.chars().all(is_right) => Ok(KeyPrefix(text.into())),
            _ => Err(KeyPrefixError(())),
        }
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that cannot be the prefix of keys; `Display` says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefixError(());

impl fmt::Display for KeyPrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = KeyPrefix::MAX_LEN;
        write!(f, "write 1 to {most} letters, digits and signs, without spaces and braces")
    }
}

impl std::error::Error for KeyPrefixError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: the secret in a log.
    #[test]
    fn debug_does_not_show_the_secret() {
        let key_secret = Some(b"s3cret".to_vec());
        let shown = format!("{:?}", RedisOptions { key_secret, ..RedisOptions::default() });
        assert!(shown.contains(r#"key_secret: Some("***")"#), "{shown}");
        assert!(format!("{:?}", RedisOptions::default()).contains("key_secret: None"));
    }

    /// Braces in a prefix would put every key of a cluster into one slot, or break its name.
    #[test]
    fn a_prefix_has_bounds_and_no_braces() {
        let longest = "x".repeat(KeyPrefix::MAX_LEN);
        for right in ["tollgate", "app:limits", "a/b_c.d-e", &longest] {
            assert_eq!(right.parse::<KeyPrefix>().unwrap().as_str(), right);
        }
        let too_long = "x".repeat(KeyPrefix::MAX_LEN + 1);
        for wrong in ["", "a b", "a{b}", "{", "}", "tg:{x", "\u{e9}", "a\nb", &too_long] {
            let error = wrong.parse::<KeyPrefix>().expect_err(wrong).to_string();
            assert!(error.contains("without spaces and braces"), "{error}");
        }
    }
}
