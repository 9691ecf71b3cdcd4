//! Facts from what was sent: a body of JSON, or the head of a request.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tollgate::Micros;
use tollgate_rules::{Facts, Headers, Version};

use super::json::Asked;

/// The header fields of a request.
pub(super) struct RequestHeaders<'a>(pub(super) &'a HeaderMap);

impl RequestHeaders<'_> {
    /// The values of all fields of this name, which is in small letters. A request has a handful of
    /// fields: looking at each is faster than hashing the name.
    fn texts(&self, name: &str) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().filter(move |(field, _)| field.as_str() == name).map(|(_, value)| text(value))
    }
}

impl Headers for RequestHeaders<'_> {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.texts(name).next().flatten().map(Cow::Borrowed)
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        let named = self.0.iter().filter(|(field, _)| field.as_str() == name);
        let mut lines = named.map(|(_, value)| String::from_utf8_lossy(value.as_bytes()));
        let first = lines.next()?;
        Some(lines.fold(first, |list, line| Cow::Owned(format!("{list},{line}"))))
    }

    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut texts = self.texts(name);
        let first = texts.next().flatten()?;
        texts.next().is_none().then_some(Cow::Borrowed(first))
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Calls `with` with the facts of a question, and with the version of the rules they were found by.
pub(super) fn with_facts<T>(
    rules: Version,
    now: Micros,
    asked: &Asked<'_>,
    with: impl FnOnce(Version, Facts<'_>) -> T,
) -> T {
    let headers = (!asked.headers.is_empty()).then_some(&asked.headers as &dyn Headers);
    let stated = Facts {
        method: asked.method.as_deref(),
        path: asked.path.as_deref(),
        ip: asked.ip,
        user: asked.user.as_deref(),
        tier: asked.tier.as_deref(),
        api_key: asked.api_key.as_deref(),
        headers,
    };
    match headers {
        Some(_) => {
            let settings = Arc::clone(&rules);
            settings.settings().identify.complete(stated, now, |facts| with(rules, facts))
        }
        None => with(rules, stated),
    }
}
