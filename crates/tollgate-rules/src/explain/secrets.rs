//! The facts that an explanation does not show: credentials, which may be in headers or keys.

use tollgate::KeyBuf;

use crate::identify::Identify;
use crate::key_template::{API_KEY, key_text};

/// Words in the names of headers and entries whose values are credentials: `x-auth-token`, `set-cookie`.
const CREDENTIAL_WORDS: [&str; 15] = [
    "apikey",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "passwd",
    "password",
    "secret",
    "session",
    "sessionid",
    "sid",
    "signature",
    "token",
];

/// The text that stands for a hidden value.
pub(super) const HIDDEN: &str = "(not shown)";

/// The rules' way to identify callers: it says which headers prove an identity.
pub(super) struct Secrets<'a>(pub(super) &'a Identify);

impl Secrets<'_> {
    /// Returns true if the value of this header, in small letters, is not shown.
    pub(super) fn hides_header(&self, name: &str) -> bool {
        names_credential(name) || self.0.proving_headers().any(|one| one == name)
    }

    /// Returns true if the value of a descriptor's entry is not shown.
    pub(super) fn hides_entry(name: &str) -> bool {
        names_credential(name)
    }

    /// Returns true if a part of a key is not shown. API keys are hashed there, and the hash is
    /// their name.
    pub(super) fn hides_part(&self, name: &str) -> bool {
        match name.split_once('.') {
            Some(("header", header)) => self.hides_header(header),
            Some(("entry", entry)) => entry != API_KEY && Secrets::hides_entry(entry),
            _ => false,
        }
    }

    /// A key as people read it, without values that are not shown.
    pub(super) fn key_text(&self, key: &KeyBuf) -> String {
        if !key.parts().any(|(name, _)| self.hides_part(name)) {
            return key_text(key);
        }
        let shown = key.parts().fold(KeyBuf::new(), |shown, (name, value)| {
            shown.with(name, if self.hides_part(name) { HIDDEN } else { value })
        });
        key_text(&shown)
    }
}

/// Returns true if a header or an entry of this name has a credential, judged by its words.
fn names_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = || name.split(|one: char| !one.is_ascii_alphanumeric());
    let is_api_key = |(one, next)| one == "api" && next == "key";
    words().any(|word| CREDENTIAL_WORDS.contains(&word))
        || words().zip(words().skip(1)).any(is_api_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_told_by_their_names() {
        for (name, want) in [
            ("authorization", true),
            ("proxy-authorization", true),
            ("set-cookie", true),
            ("x-api-key", true),
            ("API_KEY", true),
            ("X-Auth-Token", true),
            ("x-session-id", true),
            ("user-agent", false),
            ("x-tokens", false),
            ("x-key", false),
            ("", false),
        ] {
            assert_eq!(names_credential(name), want, "{name}");
        }
    }

    #[test]
    fn keys_do_not_have_credentials() {
        let identify = Identify::default();
        let secrets = Secrets(&identify);
        let key = KeyBuf::new()
            .with("header.x-auth-token", "t0p")
            .with("entry.Authorization", "t0p")
            .with("entry.api_key", "sha256:1f2e")
            .with("header.user-agent", "curl");
        let text = secrets.key_text(&key);
        assert!(!text.contains("t0p"), "{text}");
        assert!(text.contains("entry.api_key=sha256:1f2e,header.user-agent=curl"), "{text}");
    }
}
