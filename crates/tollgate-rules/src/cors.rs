//! The web pages that may read the responses which the gateway makes itself: CORS.

use crate::Problem;

/// The pages that may read refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsSettings {
    /// Their origins, in small letters. Bound: [`CorsSettings::ORIGINS_MAX`].
    pub origins: Vec<Box<str>>,
    /// True if any page may read them.
    pub any_origin: bool,
    /// True if pages may read the header fields of limits.
    pub expose: bool,
    /// True if pages may send cookies and credentials.
    pub credentials: bool,
}

impl CorsSettings {
    /// The most origins.
    pub const ORIGINS_MAX: usize = 1_000;

    /// Returns true if a page of this origin, the value of `Origin`, may read responses.
    pub fn admits(&self, origin: &str) -> bool {
        self.any_origin || self.origins.iter().any(|one| one.eq_ignore_ascii_case(origin))
    }
}

/// Reads an origin such as `https://app.example`; `None` for `*`.
pub(crate) fn parse_origin(text: &str) -> Result<Option<Box<str>>, Problem> {
    let bad = |what: &str| {
        Problem::new(format!("the origin {text:?} {what}"))
            .hint("write a scheme and a host, such as `https://app.example` or `http://localhost:5173`, or `*` for all")
    };
    if text == "*" {
        return Ok(None);
    }
    let Some((scheme, host)) = text.split_once("://") else {
        return Err(bad("has no scheme"));
    };
    if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return Err(bad("has a scheme that is none"));
    }
    if host.contains(['/', '?', '#']) {
        return Err(bad("has a path, and browsers send none"));
    }
    if host.is_empty()
        || host.contains(['*', '@', ',', '\\'])
        || !host.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(bad("has a host that browsers do not send"));
    }
    Ok(Some(text.to_ascii_lowercase().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_a_scheme_and_a_host() {
        // Text | origin
        let rows = [
            ("https://app.example", Ok(Some("https://app.example"))),
            ("HTTP://Localhost:5173", Ok(Some("http://localhost:5173"))),
            ("capacitor://localhost", Ok(Some("capacitor://localhost"))),
            ("http://[::1]:3000", Ok(Some("http://[::1]:3000"))),
            ("*", Ok(None)),
            ("app.example", Err(())),
            ("null", Err(())),
            ("https://app.example/", Err(())),
            ("https://*.example", Err(())),
            ("https://", Err(())),
            ("://app", Err(())),
            ("https://a@b", Err(())),
            ("https://a, https://b", Err(())),
        ];
        for (text, want) in rows {
            let got = parse_origin(text).map_err(|_| ());
            assert_eq!(got.as_ref().map(|it| it.as_deref()), want.as_ref().map(|it| *it), "{text}");
        }
    }

    #[test]
    fn only_listed_origins_are_admitted() {
        let cors = |any_origin| CorsSettings {
            origins: vec!["https://app.example".into()],
            any_origin,
            expose: false,
            credentials: false,
        };
        let rows = [
            ("https://app.example", true),
            ("https://APP.example", true),
            ("http://app.example", false),
            ("https://app.example.evil", false),
            ("null", false),
        ];
        for (origin, want) in rows {
            assert_eq!(cors(false).admits(origin), want, "{origin}");
            assert!(cors(true).admits(origin));
        }
    }
}
