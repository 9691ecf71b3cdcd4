//! Facts read from a JSON body or from the header fields of a request.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::Micros;
pub(super) use tollgate::headers::escape_non_utf8;
use tollgate_rules::{Facts, Headers, Identity, RuleSet, RulesVersion};

use super::header_fields::HeaderFields;
use super::json::CheckBody;

/// The header fields of a request, as rules read them.
pub(super) struct RequestHeaders<'a, F>(pub(super) &'a F);

impl<F: HeaderFields> RequestHeaders<'_, F> {
    /// The first header that the rules build keys from and that appears twice with different values, or whose name a
    /// server could take for that of a header that rules look at. `trusted` says if the peer is a trusted proxy.
    pub(super) fn conflicting_header(&self, rules: &RuleSet, trusted: bool) -> Option<&str> {
        if rules.reads_headers()
            && let Some(name) = self.0.names().find(|name| rules.is_mistakable_header(name))
        {
            return Some(name);
        }
        let differ = |name: &str| {
            // Lines of cookies count joined.
            if name == "cookie" {
                return false;
            }
            let mut values = self.0.values(name);
            let first = values.next();
            values.any(|other| Some(other) != first)
        };
        self.0.repeated_names().find(|name| rules.makes_keys_of(name, trusted) && differ(name))
    }
}

impl<F: HeaderFields> Headers for RequestHeaders<'_, F> {
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>)) {
        self.0.values(name).for_each(|value| each(escape_non_utf8(value)));
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut lines = self.0.values(name).map(String::from_utf8_lossy);
        let first = lines.next()?;
        Some(lines.fold(first, |list, line| Cow::Owned(format!("{list},{line}"))))
    }

    // The two that identify the caller of each request, without a call for each line.

    fn first_line(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0.values(name).next().map(escape_non_utf8)
    }

    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut lines = self.0.values(name).map(escape_non_utf8);
        let first = lines.next()?;
        lines.all(|line| line == first).then_some(first)
    }
}

/// The facts that a body states.
pub(super) fn stated_facts<'a>(check: &'a CheckBody<'_>) -> Facts<'a> {
    Facts {
        method: check.method.as_deref(),
        path: check.path.as_deref(),
        host: check.host.as_deref(),
        ip: check.ip,
        user: check.user.as_deref(),
        tier: check.tier.as_deref(),
        api_key: check.api_key.as_deref(),
        headers: (!check.headers.is_empty()).then_some(&check.headers as &dyn Headers),
        ..Facts::default()
    }
}

/// Rules version used to identify the caller; `None` if the body carries no headers.
pub(super) fn rules_for_identity(
    rules: &RulesVersion,
    check: &CheckBody<'_>,
) -> Option<Arc<RuleSet>> {
    (!check.headers.is_empty()).then(|| Arc::clone(rules))
}

/// Identity of the caller, from the facts that the body states; empty if `rules` is `None`.
pub(super) fn identify_caller<'a>(
    rules: Option<&'a RuleSet>,
    stated: &Facts<'a>,
    now: Micros,
) -> Identity<'a> {
    rules.map(|rules| rules.settings().identify.identify_stated(stated, now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use tollgate_rules::{Source, compile};

    type RawHeaderFields<'a> = &'a [(&'static str, &'a [u8])];

    fn map(fields: RawHeaderFields<'_>) -> HeaderMap {
        let field = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"))
        };
        fields.iter().map(field).collect()
    }

    #[test]
    fn odd_values_are_not_absent() {
        let map = map(&[("x-a", b"\xffb"), ("x-b", "\u{e9}".as_bytes())]);
        let headers = RequestHeaders(&map);
        assert_eq!(headers.header("x-a").as_deref(), Some("%FFb"));
        assert_eq!(headers.header("x-b").as_deref(), Some("\u{e9}"));
        assert_eq!(headers.header("x-c"), None);
        assert_eq!(headers.only("x-a").as_deref(), Some("%FFb"));
    }

    #[test]
    fn a_repeated_identity_still_counts() {
        let rules = "identify: { user: { header: x-user-id } }
rules: [{ name: api, key: '{user}', limits: [1/s] }]";
        let rules = compile(&[Source::from_text("rules.yaml", rules)]).rules.expect("rules");
        let rows: [(&[u8], bool, Option<&str>); 3] =
            [(b"a", false, Some("a")), (b"b", true, None), (b"", true, None)];
        for (second, refused, user) in rows {
            let map = map(&[("x-user-id", b"a"), ("x-user-id", second)]);
            let headers = RequestHeaders(&map);
            assert_eq!(headers.conflicting_header(&rules, true).is_some(), refused);
            assert_eq!(
                headers.conflicting_header(&rules, false),
                None,
                "headers of an untrusted peer do not count"
            );
            let peer = std::net::Ipv4Addr::LOCALHOST.into();
            let identity = rules.settings().identify.identify(peer, &headers, Micros::ZERO);
            assert_eq!(identity.user.as_deref(), user);
        }
    }

    #[test]
    fn headers_in_keys_have_one_value() {
        let rules = |mode: &str| {
            let text = format!(
                "identify: {{ user: {{ api_key: {{ header: x-key }} }}, api_key: {{ header: x-other }}, ip: x-real-ip }}
rules: [{{ name: api, key: '{{user}}:{{header.X-Tenant}}', limits: [1/s], {mode} }}]"
            );
            compile(&[Source::from_text("rules.yaml", &text)]).rules.expect("rules")
        };
        // Fields, and the one that has two values
        let rows: [(RawHeaderFields<'_>, Option<&str>); 11] = [
            (&[("x-key", b"a"), ("x-tenant", b"b"), ("x-other", b"c")], None),
            (&[("x-key", b"a"), ("x-key", b"a")], None),
            (&[("x-key", b"a"), ("x-key", b"b")], Some("x-key")),
            (&[("x-key", b"a"), ("x-key", b"a"), ("x-key", b"b")], Some("x-key")),
            (&[("x-key", b"\xff"), ("x-key", b"b")], Some("x-key")),
            (&[("x-other", b""), ("x-other", b"b")], Some("x-other")),
            (&[("x-tenant", b"a"), ("x-tenant", b"b")], Some("x-tenant")),
            (&[("x-real-ip", b"192.0.2.1"), ("x-real-ip", b"192.0.2.1")], None),
            (&[("x-real-ip", b"192.0.2.1"), ("x-real-ip", b"192.0.2.2")], Some("x-real-ip")),
            (&[("x-real-ip", b"192.0.2.1"), ("x-real-ip", b"")], Some("x-real-ip")),
            (&[("accept", b"a"), ("accept", b"b")], None),
        ];
        for (fields, want) in rows {
            let map = map(fields);
            let twice = |mode| {
                RequestHeaders(&map).conflicting_header(&rules(mode), true).map(str::to_owned)
            };
            assert_eq!(twice("mode: enforce").as_deref(), want);
            for mode in ["mode: shadow", "mode: 'off'", "soft: true"] {
                assert_eq!(twice(mode), None, "rules that never refuse do not cause errors");
            }
        }
    }
}
