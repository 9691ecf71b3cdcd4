//! The values that neither an explanation, a list of callers, a log line nor a recording shows: credentials
//! in headers, descriptors and keys, and the query of URLs. All of them ask this list.

use std::borrow::Cow;

use tollgate::KeyBuf;

use crate::identify::Identify;
use crate::identify::api_key::is_hashed;
use crate::key_template::{API_KEY, key_text};

/// Words in the names of headers and entries whose values are credentials: `x-auth-token`, `set-cookie`.
const CREDENTIAL_WORDS: [&str; 28] = [
    "apikey",
    "assertion",
    "authentication",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "csrf",
    "hmac",
    "jwt",
    "oidc",
    "otp",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "saml",
    "secret",
    "session",
    "sessionid",
    "sid",
    "sig",
    "signature",
    "signed",
    "token",
    "xsrf",
];

/// Endings of words that mean the same: `accesstoken`, `clientsecret`.
const CREDENTIAL_ENDINGS: [&str; 7] =
    ["apikey", "jwt", "password", "secret", "sessid", "sessionid", "token"];

/// Words that make the name of a credential together with a `key` behind them: `x-api-key`.
const KEY_WORDS: [&str; 8] =
    ["access", "api", "auth", "functions", "license", "private", "security", "subscription"];

/// Headers whose values are URLs. Their queries may have credentials.
const URL_HEADERS: [&str; 11] = [
    "content-location",
    "destination",
    "hx-current-url",
    "location",
    "referer",
    "x-envoy-original-path",
    "x-forwarded-uri",
    "x-original-uri",
    "x-original-url",
    "x-requested-url",
    "x-rewrite-url",
];

/// The text that stands for a hidden value.
pub const HIDDEN: &str = "(not shown)";

/// A key as people read it. Values of parts that are credentials, such as a cookie, are replaced by
/// [`HIDDEN`]; the rules' way to identify callers says which headers are credentials of theirs.
pub fn shown_key_text(key: &KeyBuf, identify: &Identify) -> String {
    HiddenCredentials(identify).key_text(key)
}

/// A key that an operator has written, as lists and reports show it: values that are credentials are replaced by
/// [`HIDDEN`]. Where users are the hashes of their API keys, a user that is no hash may be a key that was typed in its
/// place, and is replaced as well.
pub fn shown_typed_key(key: &KeyBuf, identify: &Identify) -> KeyBuf {
    let hidden = HiddenCredentials(identify);
    key.parts().fold(KeyBuf::new(), |shown, part @ (name, value)| {
        let is_raw = is_unhashed_user(part, identify);
        let value = if is_raw { HIDDEN.into() } else { hidden.part_text(name, value) };
        shown.with(name, &value)
    })
}

/// Returns true if users are identified by their API keys and the key has a user that is no hash of one.
pub(crate) fn has_unhashed_user(key: &KeyBuf, identify: &Identify) -> bool {
    key.parts().any(|part| is_unhashed_user(part, identify))
}

fn is_unhashed_user((name, value): (&str, &str), identify: &Identify) -> bool {
    name == "user" && identify.users_are_api_keys() && !is_hashed(value)
}

/// A header value without its query, if the header has a URL; other values are unchanged.
pub fn shown_header_value<'v>(name: &str, value: Cow<'v, str>) -> Cow<'v, str> {
    let has_url = URL_HEADERS.iter().any(|one| one.eq_ignore_ascii_case(name));
    match value {
        _ if !has_url => value,
        Cow::Borrowed(url) => shown_url(url),
        Cow::Owned(url) => shown_url(&url).into_owned().into(),
    }
}

/// A URL or a path without its query, its fragment and the user that it may name.
pub fn shown_url(url: &str) -> Cow<'_, str> {
    // Recording asks for each request: bytes are found faster than patterns.
    let end = url.bytes().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(url.len());
    let url = &url[..end];
    // A scheme has no slash, so a user can stand only behind the first one.
    let slash = url.bytes().position(|byte| byte == b'/');
    let split = slash.map(|slash| (&url[..slash], &url[slash + 1..]));
    let Some((scheme, after)) =
        split.and_then(|(scheme, rest)| Some((scheme, rest.strip_prefix('/')?)))
    else {
        return url.into();
    };
    let host_end = after.find(['/', '\\']).unwrap_or(after.len());
    match after[..host_end].rfind('@') {
        Some(at) => format!("{scheme}//{}", &after[at + 1..]).into(),
        None => url.into(),
    }
}

/// The rules' way to identify callers: it says which headers prove an identity.
pub(crate) struct HiddenCredentials<'a>(pub(crate) &'a Identify);

impl HiddenCredentials<'_> {
    /// Returns true if the value of this header, in small letters, is not shown.
    pub(crate) fn hides_header(&self, name: &str) -> bool {
        names_credential(name) || self.0.proving_headers().any(|one| one == name)
    }

    /// Returns true if the value of a descriptor's entry is not shown.
    pub(crate) fn hides_entry(name: &str) -> bool {
        names_credential(name)
    }

    /// Returns true if a part of a key is not shown. API keys are hashed there, and the hash is
    /// their name.
    pub(crate) fn hides_part(&self, name: &str) -> bool {
        match name.split_once('.') {
            Some(("header", header)) => self.hides_header(header),
            Some(("entry", entry)) => entry != API_KEY && HiddenCredentials::hides_entry(entry),
            Some((_, field)) => names_credential(field),
            None => false,
        }
    }

    /// A key as people read it, without values that are not shown.
    pub(crate) fn key_text(&self, key: &KeyBuf) -> String {
        if !key.parts().any(|(name, _)| name.contains('.')) {
            return key_text(key);
        }
        let shown = key.parts().fold(KeyBuf::new(), |shown, (name, value)| {
            shown.with(name, &self.part_text(name, value))
        });
        key_text(&shown)
    }

    /// The value of a part of a key as people read it.
    pub(crate) fn part_text<'v>(&self, name: &str, value: &'v str) -> Cow<'v, str> {
        match name.strip_prefix("header.") {
            _ if self.hides_part(name) => HIDDEN.into(),
            Some(header) => shown_header_value(header, value.into()),
            None => value.into(),
        }
    }
}

/// Returns true if a header or an entry of this name has a credential, judged by its words.
fn names_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = || name.split(|one: char| !one.is_ascii_alphanumeric());
    let is_key = |(one, next): (&str, &str)| KEY_WORDS.contains(&one) && next == "key";
    let is_credential = |word: &str| {
        CREDENTIAL_WORDS.contains(&word) || CREDENTIAL_ENDINGS.iter().any(|end| word.ends_with(end))
    };
    words().any(is_credential) || words().zip(words().skip(1)).any(is_key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::UserSource;

    #[test]
    fn a_typed_key_is_not_shown_where_users_are_hashes() {
        let by_key =
            Identify { user: UserSource::ApiKey("x-api-key".into()), ..Identify::default() };
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223";
        let key = |name: &str, value: &str| KeyBuf::new().with(name, value).with("path", "/a");
        let rows = [
            (&by_key, key("user", "k-secret"), "user=(not shown),path=/a".to_string()),
            (&by_key, key("user", hash), format!("user={hash},path=/a")),
            (&by_key, key("ip", "192.0.2.1"), "ip=192.0.2.1,path=/a".into()),
            (&Identify::default(), key("user", "anna"), "user=anna,path=/a".into()),
            (&by_key, key("header.cookie", "k-secret"), "header.cookie=(not shown),path=/a".into()),
        ];
        for (identify, key, want) in rows {
            assert_eq!(key_text(&shown_typed_key(&key, identify)), want);
        }
    }

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
            ("x-csrf-token", true),
            ("x-client-secret", true),
            ("x-amz-security-token", true),
            ("x-goog-api-key", true),
            ("x-jwt", true),
            ("x-hub-signature", true),
            ("x-hub-signature-256", true),
            ("x-amzn-oidc-accesstoken", true),
            ("ocp-apim-subscription-key", true),
            ("referer", false),
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
        let secrets = HiddenCredentials(&identify);
        let key = KeyBuf::new()
            .with("header.x-auth-token", "t0p")
            .with("entry.Authorization", "t0p")
            .with("entry.api_key", "sha256:1f2e")
            .with("header.referer", "https://a.example/p?k=t0p")
            .with("header.user-agent", "curl");
        let text = secrets.key_text(&key);
        assert!(!text.contains("t0p"), "{text}");
        assert!(
            text.contains("entry.api_key=sha256:1f2e,header.referer=https://a.example/p,"),
            "{text}"
        );
    }

    #[test]
    fn urls_lose_what_may_be_a_credential() {
        for (name, value, want) in [
            ("referer", "https://a.example/p?token=t0p#x", "https://a.example/p"),
            ("Referer", "https://u:t0p@a.example/p", "https://a.example/p"),
            ("referer", "/p@t?x", "/p@t"),
            ("x-original-url", "//u:t0p@a.example", "//a.example"),
            ("x-forwarded-uri", "/login?next=//u@h", "/login"),
            ("x-search", "what?", "what?"),
        ] {
            assert_eq!(shown_header_value(name, value.into()), want, "{name}: {value}");
            assert_eq!(shown_header_value(name, value.to_string().into()), want, "{name}: {value}");
        }
    }
}
