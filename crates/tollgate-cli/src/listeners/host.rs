//! The host that a request names, parsed strictly.
//!
//! Any web page can make a browser on this machine send requests to loopback: the name of its site may resolve to
//! 127.0.0.1 (DNS rebinding), and then the page can set almost every header. It cannot set `Host`: the browser writes the
//! name of the page's site there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Version;

use super::header_fields::{HeaderFields, RepeatedField, RequestHead};

/// A host as a request names it, without its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    /// An address, which no name server can point elsewhere.
    Address(IpAddr),
    /// A name.
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Parses `host` or `host:port`. `None` if it is neither, such as `[::1].example.com`.
    pub(crate) fn parse(text: &'a str) -> Option<Host<'a>> {
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            return is_port(port).then_some(Host::Address(address.into()));
        }
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        // A name of dots alone is no name: the dot at the end of one means nothing.
        let is_empty = name.trim_end_matches('.').is_empty();
        if is_empty || !name.bytes().all(is_name) || !is_port(port) {
            return None;
        }
        Some(match name.parse::<Ipv4Addr>() {
            Ok(address) => Host::Address(address.into()),
            Err(_) => Host::Name(name),
        })
    }

    /// Returns true for loopback addresses and `localhost`.
    pub(crate) fn is_loopback(self) -> bool {
        match self {
            Host::Address(address) => address.to_canonical().is_loopback(),
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Returns true if a web page can come from this host, which needs a name with a dot. A name like `tollgate` is an
    /// nginx `upstream` or a container.
    fn can_be_web_page(self) -> bool {
        matches!(self, Host::Name(name) if name.contains('.'))
    }
}

/// Returns true for an empty text, or a colon and a port.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok()
}

/// The host that a request names. `None` if there is none, or two that differ.
pub(crate) fn requested_host<'a>(head: &RequestHead<'a, impl HeaderFields>) -> Option<&'a str> {
    agreed_host(head.authority, host_field(head.headers).ok()?)
}

/// The host that the first line and the field `Host` name. `None` if there is none, or two that differ.
fn agreed_host<'a>(authority: Option<&'a str>, field: Option<&'a str>) -> Option<&'a str> {
    match (authority, field) {
        (Some(authority), None) => Some(authority),
        (Some(authority), Some(field)) => field.eq_ignore_ascii_case(authority).then_some(field),
        (None, field) => field,
    }
}

/// Returns true if a web page may have sent this by DNS rebinding. Pages cannot set `Via`, and browsers do not use
/// HTTP/1.0, so a request with either comes from a proxy; HTTP/1.0 is nginx's default.
pub(crate) fn may_be_dns_rebinding(head: &RequestHead<'_, impl HeaderFields>) -> bool {
    if head.version == Version::HTTP_10 || head.headers.values("via").next().is_some() {
        return false;
    }
    let field = host_field(head.headers);
    // Browsers always send a host.
    if head.authority.is_none() && field == Ok(None) {
        return false;
    }
    match field.ok().and_then(|field| agreed_host(head.authority, field)) {
        // Some clients send an empty host if they have no name.
        Some("") => false,
        Some(text) => Host::parse(text).is_none_or(Host::can_be_web_page),
        None => true,
    }
}

/// The value of `Host`, if there is one. `Err` if it appears more than once or is not text.
fn host_field(headers: &impl HeaderFields) -> Result<Option<&str>, RepeatedField> {
    let Some(value) = headers.single_value("host")? else { return Ok(None) };
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    std::str::from_utf8(value).ok().filter(|_| is_text).map(Some).ok_or(RepeatedField)
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
            assert_eq!(
                may_be_dns_rebinding(&RequestHead::from(&head)),
                rebound,
                "{authority:?} {fields:?}"
            );
            head.version = Version::HTTP_10;
            assert!(
                !may_be_dns_rebinding(&RequestHead::from(&head)),
                "no browser: {authority:?} {fields:?}"
            );
        }
    }
}
