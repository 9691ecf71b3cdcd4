//! The host that a request is addressed to, read strictly.
//!
//! A page of any site can make a browser on this machine send requests to loopback: its own name may
//! resolve to 127.0.0.1 (DNS rebinding), and then every header but a few is the page's to choose. `Host`
//! is not: the browser writes there the name that the page came from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{HOST, HeaderName, VIA};
use http::{HeaderMap, Version, request};

/// A host as a request names it, without its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    /// An address, which no name server can point elsewhere.
    Address(IpAddr),
    /// A name.
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Reads `host` or `host:port`. `None`: it is neither, such as `[::1].example.com`.
    pub(crate) fn parse(text: &'a str) -> Option<Host<'a>> {
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            return is_port(port).then_some(Host::Address(address.into()));
        }
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) || !is_port(port) {
            return None;
        }
        Some(match name.parse::<Ipv4Addr>() {
            Ok(address) => Host::Address(address.into()),
            Err(_) => Host::Name(name),
        })
    }

    /// Whether only this machine has this name.
    pub(crate) fn is_loopback(self) -> bool {
        match self {
            Host::Address(address) => address.to_canonical().is_loopback(),
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether a page on the internet can have come from this host: only from a name of several labels.
    /// `tollgate` is one of nginx's `upstream`, or of a container.
    fn can_be_web_page(self) -> bool {
        matches!(self, Host::Name(name) if name.contains('.'))
    }
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok()
}

/// The text that says whom a request is for. `None`: nothing does, or two that differ.
pub(crate) fn requested_host(head: &request::Parts) -> Option<&str> {
    let field = single_value(&head.headers, &HOST);
    match (head.uri.authority(), field) {
        (Some(authority), Ok(None)) => Some(authority.as_str()),
        (Some(authority), Ok(Some(field))) if field.eq_ignore_ascii_case(authority.as_str()) => {
            Some(field)
        }
        (None, Ok(field)) => field,
        _ => None,
    }
}

/// Whether a page in a browser may have sent this under a name of its own. Browsers let no page write
/// `Via` and speak no HTTP/1.0, so a request that has either comes from a proxy: nginx asks in HTTP/1.0
/// unless it is told otherwise.
pub(crate) fn may_be_dns_rebinding(head: &request::Parts) -> bool {
    if head.version == Version::HTTP_10 || head.headers.contains_key(VIA) {
        return false;
    }
    let says_none = head.uri.authority().is_none() && !head.headers.contains_key(HOST);
    // Browsers always say whom they ask.
    if says_none {
        return false;
    }
    match requested_host(head) {
        // As some clients write it who know no name.
        Some("") => false,
        Some(text) => Host::parse(text).is_none_or(Host::can_be_web_page),
        None => true,
    }
}

/// A header that stands several times, or is no text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotSingleValue;

/// The one value of a header field, if there is one.
pub(crate) fn single_value<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, NotSingleValue> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| NotSingleValue),
        (Some(_), Some(_)) => Err(NotSingleValue),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        let rows = [
            ("localhost", true),
            ("LOCALHOST:9190", true),
            ("127.0.0.1:9190", true),
            ("127.9.9.9", true),
            ("[::1]:9190", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com", false),
            ("192.0.2.1", false),
            ("0.0.0.0", false),
            ("user@127.0.0.1", false),
            ("localhost:80@evil.com", false),
            ("localhost:80:80", false),
            ("localhost:", false),
            ("localhost:http", false),
            ("localhost:65536", false),
            ("localhost:+80", false),
            ("[::1].evil.com", false),
            ("[::1]evil.com", false),
            ("[::1]:80.evil.com", false),
            ("[::1", false),
            ("::1", false),
            ("[localhost]", false),
            ("localhost/", false),
            ("localhost ", false),
            ("", false),
        ];
        for (host, loopback) in rows {
            assert_eq!(Host::parse(host).is_some_and(Host::is_loopback), loopback, "{host}");
        }
    }

    #[test]
    fn pages_are_told_by_the_name_they_came_from() {
        // First line's authority, fields | may be a page's
        type HostTestFields = &'static [(&'static str, &'static str)];
        let rows: [(Option<&str>, HostTestFields, bool); 12] = [
            (None, &[], false),
            (None, &[("host", "127.0.0.1:8080")], false),
            (None, &[("host", "192.0.2.1:8080")], false),
            (None, &[("host", "[2001:db8::1]:8080")], false),
            (None, &[("host", "tollgate")], false),
            (None, &[("host", "")], false),
            (None, &[("host", "evil.example:8080")], true),
            (None, &[("host", "[::1].evil.example")], true),
            (None, &[("host", "www.example.com"), ("via", "1.1 Caddy")], false),
            (Some("localhost:8080"), &[], false),
            (Some("evil.example"), &[], true),
            (Some("localhost"), &[("host", "evil.example")], true),
        ];
        for (authority, fields, rebound) in rows {
            let uri = authority.map_or("/".to_string(), |host| format!("http://{host}/"));
            let mut request = http::Request::get(uri);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let (mut head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(may_be_dns_rebinding(&head), rebound, "{authority:?} {fields:?}");
            head.version = Version::HTTP_10;
            assert!(!may_be_dns_rebinding(&head), "no browser: {authority:?} {fields:?}");
        }
    }
}
