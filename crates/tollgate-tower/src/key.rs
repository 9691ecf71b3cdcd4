//! `KeyFrom`: the source of a request's key.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;

use arrayvec::ArrayString;
use http::{HeaderName, request};
use tollgate::KeyBuf;
use tollgate::headers::escape_non_utf8;

use crate::client_ip::{TrustedProxies, first_bits};
use crate::gate::GateRequest;
use crate::header_text::key_value;

/// Default length of the IPv6 prefix that counts as one caller. A household or a rented server has at least a
/// /64 and can use any address in it.
pub const IPV6_PREFIX: u8 = 64;

/// The source of a request's key.
///
/// The parts of a key carry their names and lengths, so no caller can choose a value that looks like another key:
/// the user "192.0.2.1" is not the address 192.0.2.1.
///
/// ```
/// use http::HeaderName;
/// use tollgate_tower::KeyFrom;
///
/// # struct Account { id: String }
/// // The account that a layer outside of this one has found, else the API key, else the address.
/// let account = KeyFrom::new("account", |head| {
///     head.extensions.get::<Account>().map(|account| account.id.as_str().into())
/// });
/// let key = account
///     .or(KeyFrom::header(HeaderName::from_static("x-api-key")))
///     .or(KeyFrom::client_ip());
/// # drop(key);
/// ```
pub struct KeyFrom(KeySource);

type KeyValueFn = dyn for<'a> Fn(&'a request::Parts) -> Option<Cow<'a, str>> + Send + Sync;

enum KeySource {
    Global,
    ClientIp {
        proxies: Option<TrustedProxies>,
        ipv6_prefix: u8,
    },
    /// The field, and the name of its part: a prefix keeps it apart from `ip` and `path`.
    Header(HeaderName, Box<str>),
    Path,
    /// The name of its part, also with a prefix, and the function that finds the value.
    Named(Box<str>, Box<KeyValueFn>),
    Or(Box<[KeyFrom; 2]>),
    And(Box<[KeyFrom; 2]>),
}

impl KeyFrom {
    /// One key for all requests: everybody shares one limit.
    pub fn global() -> KeyFrom {
        KeyFrom(KeySource::Global)
    }

    /// The address of the connection's peer; for IPv6 its first 64 bits. The layer finds it with
    /// [`RateLimitLayer::peer`](crate::RateLimitLayer::peer). Behind a proxy it is the proxy's address: use
    /// [`client_ip_behind`](KeyFrom::client_ip_behind) there.
    pub fn client_ip() -> KeyFrom {
        KeyFrom(KeySource::ClientIp { proxies: None, ipv6_prefix: IPV6_PREFIX })
    }

    /// The client's address as these proxies report it in `X-Forwarded-For`.
    pub fn client_ip_behind(proxies: TrustedProxies) -> KeyFrom {
        KeyFrom(KeySource::ClientIp { proxies: Some(proxies), ipv6_prefix: IPV6_PREFIX })
    }

    /// Sets the length of the IPv6 prefix that counts as one caller, at most 128. Keys that are not addresses do
    /// not change.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> KeyFrom {
        self.set_prefix(bits.min(128));
        self
    }

    fn set_prefix(&mut self, bits: u8) {
        match &mut self.0 {
            KeySource::ClientIp { ipv6_prefix, .. } => *ipv6_prefix = bits,
            KeySource::Or(both) | KeySource::And(both) => {
                both.iter_mut().for_each(|key| key.set_prefix(bits))
            }
            _ => {}
        }
    }

    /// The value of a header field, such as an API key. An empty value counts as missing. A request that has the
    /// field twice with different values gets a 400, because the service behind might read the other one. Lines of `cookie`
    /// are joined, and the scheme of `authorization` is left out. The `host` of
    /// an HTTP/2 request is in its target, and a `host` field with another value is a different value.
    ///
    /// A client gets a fresh limit for each value that it invents: verify the value in an outer layer, or limit
    /// addresses as well, in a layer around this one.
    pub fn header(name: HeaderName) -> KeyFrom {
        let part = format!("header.{name}").into();
        KeyFrom(KeySource::Header(name, part))
    }

    /// The path as it was sent. Use it only for routes that match one path exactly: if a path has parameters or
    /// several spellings, a caller gets a separate limit for each variant. The route's own name is better: with
    /// axum, `KeyFrom::new("route", …)` of its `MatchedPath`.
    pub fn path() -> KeyFrom {
        KeyFrom(KeySource::Path)
    }

    /// A named value of your own; `None` and an empty value count as missing. Its name never collides with the
    /// built-in parts.
    pub fn new(
        name: &str,
        value: impl for<'a> Fn(&'a request::Parts) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> KeyFrom {
        KeyFrom(KeySource::Named(format!("own.{name}").into(), Box::new(value)))
    }

    /// Falls back to `other` if this source finds nothing.
    #[must_use]
    pub fn or(self, other: KeyFrom) -> KeyFrom {
        KeyFrom(KeySource::Or(Box::new([self, other])))
    }

    /// Combines two sources: each pair, such as path and address, has a limit of its own. The pair is missing if
    /// either part is.
    #[must_use]
    pub fn and(self, other: KeyFrom) -> KeyFrom {
        KeyFrom(KeySource::And(Box::new([self, other])))
    }

    /// Appends the key of a request. Returns false, and appends nothing, if there is none. The error is a header
    /// field that appears twice with different values.
    pub(crate) fn write(
        &self,
        question: &GateRequest,
        key: &mut KeyBuf,
    ) -> Result<bool, HeaderName> {
        let head = &question.head;
        match &self.0 {
            KeySource::Global => key.add("global", ""),
            KeySource::ClientIp { proxies, ipv6_prefix } => {
                let Some(peer) = question.peer else { return Ok(false) };
                let client = proxies.as_ref().map(|proxies| proxies.client_of(peer, &head.headers));
                add_address(key, client.unwrap_or(peer), *ipv6_prefix);
            }
            KeySource::Header(name, part) => {
                let value = key_value(&head.headers, &head.uri, name).map_err(|()| name.clone())?;
                let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(false) };
                key.add(part, &escape_non_utf8(&value));
            }
            KeySource::Path => key.add("path", head.uri.path()),
            KeySource::Named(name, value) => {
                let Some(value) = value(head).filter(|value| !value.is_empty()) else {
                    return Ok(false);
                };
                key.add(name, &value);
            }
            KeySource::And(both) => {
                let mark = key.as_bytes().len();
                let found = both[0].write(question, key)? && both[1].write(question, key)?;
                if !found {
                    // The first part alone would be a different key.
                    key.truncate(mark);
                }
                return Ok(found);
            }
            KeySource::Or(both) => {
                return Ok(both[0].write(question, key)? || both[1].write(question, key)?);
            }
        }
        Ok(true)
    }

    /// Returns true if it uses the peer's address and trusts no proxy.
    pub(crate) fn trusts_nobody(&self) -> bool {
        match &self.0 {
            KeySource::ClientIp { proxies, .. } => proxies.is_none(),
            KeySource::Or(both) | KeySource::And(both) => both.iter().any(KeyFrom::trusts_nobody),
            _ => false,
        }
    }

    /// Returns true if all requests share one key on purpose.
    pub(crate) fn is_global(&self) -> bool {
        matches!(self.0, KeySource::Global)
    }
}

/// Appends an address in canonical form: an IPv4-mapped IPv6 address becomes IPv4.
fn add_address(key: &mut KeyBuf, ip: IpAddr, ipv6_prefix: u8) {
    let ip = ip.to_canonical();
    let mut text = ArrayString::<48>::new();
    let written = match ip {
        IpAddr::V6(_) if ipv6_prefix < 128 => {
            write!(text, "{}/{ipv6_prefix}", first_bits(ip, ipv6_prefix))
        }
        ip => write!(text, "{ip}"),
    };
    written.expect("an address has at most 39 characters, and its prefix 4");
    key.add("ip", &text);
}

impl fmt::Debug for KeyFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeySource::Global => f.write_str("global"),
            KeySource::ClientIp { .. } => f.write_str("ip"),
            KeySource::Header(_, part) => f.write_str(part),
            KeySource::Path => f.write_str("path"),
            KeySource::Named(name, _) => f.write_str(name),
            KeySource::Or(both) => write!(f, "({:?} or {:?})", both[0], both[1]),
            KeySource::And(both) => write!(f, "({:?} and {:?})", both[0], both[1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn question(peer: Option<&str>, fields: &[(&'static str, &[u8])]) -> GateRequest {
        let mut request = Request::new(());
        *request.uri_mut() = "/search?q=1".parse().unwrap();
        for (name, value) in fields {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append(*name, value);
        }
        GateRequest {
            head: request.into_parts().0,
            peer: peer.map(|peer| peer.parse().unwrap()),
            cost: None,
            max_wait: None,
            settles: false,
            watching: false,
            on_wait: None,
            dialects: None,
            layers: Default::default(),
            report: Default::default(),
        }
    }

    fn header(name: &'static str) -> KeyFrom {
        KeyFrom::header(HeaderName::from_static(name))
    }

    #[test]
    fn keys_are_named_parts() {
        let proxies = || TrustedProxies::new(["10.0.0.0/8"]).unwrap();
        let fields: &[(&str, &[u8])] = &[
            ("x-api-key", b"k"),
            ("x-forwarded-for", b"6.6.6.6, 203.0.113.9"),
            ("x-odd", b"\xffa"),
            ("ip", b"10.0.0.1"),
        ];
        let v4 = Some("10.0.0.1");
        let v6 = Some("2001:db8:1:2:3:4:5:6");
        let both = |one: KeyFrom, other: KeyFrom| one.and(other);
        // Key, peer, the parts it has.
        let rows = [
            (KeyFrom::global(), None, "global="),
            (KeyFrom::client_ip(), v4, "ip=10.0.0.1"),
            (KeyFrom::client_ip(), Some("::ffff:192.0.2.1"), "ip=192.0.2.1"),
            (KeyFrom::client_ip(), v6, "ip=2001:db8:1:2::/64"),
            (KeyFrom::client_ip().ipv6_prefix(48), v6, "ip=2001:db8:1::/48"),
            (KeyFrom::client_ip().ipv6_prefix(255), v6, "ip=2001:db8:1:2:3:4:5:6"),
            (header("x-no").or(KeyFrom::client_ip()).ipv6_prefix(48), v6, "ip=2001:db8:1::/48"),
            (KeyFrom::client_ip_behind(proxies()), v4, "ip=203.0.113.9"),
            (KeyFrom::client_ip(), None, "none"),
            (header("x-api-key"), None, "header.x-api-key=k"),
            (header("x-odd"), None, "header.x-odd=%FFa"),
            (header("x-missing"), v4, "none"),
            (header("x-missing").or(KeyFrom::client_ip()), v4, "ip=10.0.0.1"),
            (header("x-api-key").or(KeyFrom::client_ip()), v4, "header.x-api-key=k"),
            (both(KeyFrom::path(), header("x-api-key")), None, "path=/search header.x-api-key=k"),
            (both(KeyFrom::path(), header("x-missing")), None, "none"),
            (both(KeyFrom::path(), header("x-missing")).or(KeyFrom::global()), None, "global="),
            (
                header("x-no")
                    .or(both(KeyFrom::path(), header("x-missing")))
                    .or(KeyFrom::client_ip()),
                v4,
                "ip=10.0.0.1",
            ),
            (
                both(
                    both(KeyFrom::path(), header("x-missing")).or(KeyFrom::client_ip()),
                    header("ip"),
                ),
                v4,
                "ip=10.0.0.1 header.ip=10.0.0.1",
            ),
            (
                both(header("x-api-key"), KeyFrom::path()).or(KeyFrom::global()),
                None,
                "header.x-api-key=k path=/search",
            ),
            (KeyFrom::new("user", |_| Some("anna".into())), None, "own.user=anna"),
            (KeyFrom::new("ip", |_| Some("10.0.0.1".into())), None, "own.ip=10.0.0.1"),
            (KeyFrom::new("user", |_| Some("".into())), None, "none"),
            (KeyFrom::new("user", |_| None), None, "none"),
        ];
        for (key, peer, want) in rows {
            let mut buffer = KeyBuf::new();
            let found = match key.write(&question(peer, fields), &mut buffer) {
                Ok(true) => {
                    let parts = buffer.parts().map(|(name, value)| format!("{name}={value}"));
                    parts.collect::<Vec<_>>().join(" ")
                }
                Ok(false) => "none".into(),
                Err(name) => format!("twice: {name}"),
            };
            assert_eq!(found, want, "{key:?}");
        }
    }

    #[test]
    fn the_host_of_http_2_is_part_of_the_target() {
        // Target, fields, the host that is found.
        type HeaderRows = &'static [(&'static str, &'static [u8])];
        type Row = (&'static str, HeaderRows, Result<Option<&'static str>, ()>);
        let rows: [Row; 6] = [
            ("https://a.example:8443/x", &[], Ok(Some("a.example:8443"))),
            ("https://user:word@a.example/x", &[], Ok(Some("a.example"))),
            ("https://a.example/x", &[("host", b"b.example")], Err(())),
            ("https://a.example/x", &[("host", b"a.example")], Ok(Some("a.example"))),
            ("/x", &[("host", b"b.example")], Ok(Some("b.example"))),
            ("/x", &[], Ok(None)),
        ];
        for (target, fields, want) in rows {
            let mut question = question(None, fields);
            question.head.uri = target.parse().unwrap();
            let mut key = KeyBuf::new();
            let found = header("host").write(&question, &mut key);
            let twice = HeaderName::from_static("host");
            assert_eq!(found, want.map(|host| host.is_some()).map_err(|()| twice), "{target}");
            let host = want.unwrap_or(None);
            assert_eq!(key.parts().next(), host.map(|host| ("header.host", host)), "{target}");
            assert_eq!(header("accept").write(&question, &mut key), Ok(false));
        }
    }

    #[test]
    fn a_key_that_is_sent_twice_is_unclear() {
        let key = header("x-api-key").or(KeyFrom::global());
        let mut buffer = KeyBuf::new();
        let twice = |one: &'static [u8], two: &'static [u8]| {
            question(None, &[("x-api-key", one), ("x-api-key", two)])
        };
        assert_eq!(key.write(&twice(b"a", b"a"), &mut buffer), Ok(true));
        let unclear = key.write(&twice(b"a", b"b"), &mut buffer);
        assert_eq!(unclear, Err(HeaderName::from_static("x-api-key")));
    }
}
