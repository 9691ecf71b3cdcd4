//! Names of callers in logs: a keyed hash of the caller's key. All lines of one caller can be found without
//! showing who it is, and nobody can find out by trying names.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aws_lc_rs::{hmac, rand};
use tollgate::KeyBuf;
use tollgate_rules::RuleSet;
use tollgate_rules::credentials::shown_key_text;

use crate::cli::Report;
use crate::listeners::tokens::warn_if_readable_by_all;
use crate::telemetry::Logs;

/// The fewest bytes of a secret: fewer can be guessed.
const SECRET_BYTES_MIN: usize = 16;

/// The most bytes of a secret's file.
const SECRET_BYTES_MAX: usize = 4_096;

/// Bytes of a hash that are shown, as 16 hexadecimal digits: enough to tell callers apart.
const HASH_BYTES: usize = 8;

/// The secret that hashes callers' keys, in logs and in a shared store.
pub(crate) struct KeySecret(Box<[u8]>);

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl KeySecret {
    /// Reads the secret from this file, if one is set.
    pub(crate) fn of_file(path: Option<&Path>, logs: &Logs) -> Result<Option<KeySecret>, Report> {
        let Some(path) = path else { return Ok(None) };
        warn_if_readable_by_all(path, logs);
        KeySecret::read(path).map(Some)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn read(path: &Path) -> Result<KeySecret, Report> {
        let shown = path.display();
        let hint = || {
            format!(
                "write {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes into it, such as \
                 with `openssl rand -hex 32 > {shown}`, or name another file with --key-secret-file"
            )
        };
        let secret = read_bounded(path).map_err(|error| {
            Report::new(format!("cannot read the secret file {shown}: {error}")).hint(hint())
        })?;
        // Editors and shells end a file with a line break; it is not part of the secret.
        let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        match secret.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(KeySecret(secret.into())),
            bytes => {
                let size = if bytes < SECRET_BYTES_MIN { "few" } else { "many" };
                let problem = format!("the secret file {shown} has too {size} bytes");
                Err(Report::new(problem).hint(hint()))
            }
        }
    }
}

/// Makes the names of callers in logs.
pub(crate) struct KeyNames(hmac::Key);

impl fmt::Debug for KeyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyNames(a secret)")
    }
}

impl KeyNames {
    /// Uses this secret, or a random one: then a caller has another name after a restart.
    pub(crate) fn new(secret: Option<&KeySecret>) -> Result<KeyNames, Report> {
        secret.map_or_else(KeyNames::random, |secret| Ok(KeyNames::with_secret(&secret.0)))
    }

    pub(crate) fn random() -> Result<KeyNames, Report> {
        let mut secret = [0; 32];
        let filled = rand::fill(&mut secret);
        filled.map_err(|_| Report::new("cannot get random numbers from the system"))?;
        Ok(KeyNames::with_secret(&secret))
    }

    fn with_secret(secret: &[u8]) -> KeyNames {
        KeyNames(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The caller as a log line shows it: its key if the rules allow that, without credentials
    /// such as cookies, else its hash.
    pub(crate) fn log_name(&self, rules: &RuleSet, key: &KeyBuf) -> String {
        match rules.settings().log_keys_plain {
            true => shown_key_text(key, &rules.settings().identify),
            false => self.hash(key),
        }
    }

    /// The hash of a caller's key, as 16 hexadecimal digits.
    pub(crate) fn hash(&self, key: &KeyBuf) -> String {
        let tag = hmac::sign(&self.0, key.as_bytes());
        const_hex::encode(&tag.as_ref()[..HASH_BYTES])
    }
}

/// Reads a file up to one byte more than a secret may have. The size in its metadata may be wrong.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = SECRET_BYTES_MAX as u64 + "\r\n".len() as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_the_key_and_the_secret_alone() {
        let key = KeyBuf::new().with("user", "42");
        let other = KeyBuf::new().with("user", "43");
        let names = KeyNames::with_secret(&[7; 16]);
        assert_eq!(names.hash(&key), KeyNames::with_secret(&[7; 16]).hash(&key));
        assert_ne!(names.hash(&key), names.hash(&other));
        assert_ne!(names.hash(&key), KeyNames::with_secret(&[8; 16]).hash(&key));
        assert_ne!(KeyNames::random().unwrap().hash(&key), KeyNames::random().unwrap().hash(&key));
        // HMAC-SHA-256 of no bytes under sixteen 0x0b, by another program.
        assert_eq!(KeyNames::with_secret(&[0x0b; 16]).hash(&KeyBuf::new()), "915cb2c078aaf5df");
    }

    #[test]
    fn a_secret_is_read_without_the_end_of_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let key = KeyBuf::new().with("user", "42");
        let name = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            let secret = KeySecret::read(&path);
            secret.map(|secret| KeyNames::new(Some(&secret)).unwrap().hash(&key))
        };
        let want = KeyNames::with_secret(b"0123456789abcdef").hash(&key);
        for content in [&b"0123456789abcdef"[..], b"0123456789abcdef\n", b"0123456789abcdef\r\n"] {
            assert_eq!(name(content).unwrap(), want);
        }
        assert!(name(&[b'x'; 4_096]).is_ok());
        for content in [&b""[..], b"0123456789abcde", b"0123456789abcde\n", &[b'x'; 4_097]] {
            let report = name(content).unwrap_err().to_string();
            assert!(report.contains("bytes") && !report.contains("01234"), "{report}");
        }
        assert!(KeySecret::read(&directory.path().join("none")).is_err());
    }
}
