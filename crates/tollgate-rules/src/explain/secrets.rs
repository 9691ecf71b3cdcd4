//! The facts that an explanation does not show: credentials, which may be in headers or keys.

use tollgate::KeyBuf;

use crate::identify::Identify;
use crate::key_template::{API_KEY, key_text};

/// Headers whose values are credentials wherever they appear.
const CREDENTIAL_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token"];

/// The text that stands for a hidden value.
pub(super) const HIDDEN: &str = "(not shown)";

/// The rules' way to identify callers: it says which headers prove an identity.
pub(super) struct Secrets<'a>(pub(super) &'a Identify);

impl Secrets<'_> {
    /// Returns true if the value of this header, in small letters, is not shown.
    pub(super) fn hides_header(&self, name: &str) -> bool {
        CREDENTIAL_HEADERS.contains(&name) || self.0.proving_headers().any(|one| one == name)
    }

    /// Returns true if the value of a descriptor's entry is not shown.
    pub(super) fn hides_entry(name: &str) -> bool {
        name == API_KEY
    }

    /// Returns true if a part of a key is not shown. API keys are hashed there, and the hash is
    /// their name.
    pub(super) fn hides_part(&self, name: &str) -> bool {
        name.strip_prefix("header.").is_some_and(|header| self.hides_header(header))
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
