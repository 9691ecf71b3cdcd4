//! `UpstreamUrl`: the URL of an upstream server, and how it is read.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Problem;

/// The URL of an upstream server: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamUrl {
    /// True for `https`.
    pub tls: bool,
    /// The host name in small letters, or the address without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
}

/// The advice for a text that is no URL of a server.
const HINT: &str = "write `http://127.0.0.1:3000`, `http://[::1]:3000` or `https://app.example`";

impl UpstreamUrl {
    /// Parses `http://127.0.0.1:3000` or `https://app.example`. A message repeats neither credentials nor a query, which
    /// may be secret.
    pub fn parse(text: &str) -> Result<UpstreamUrl, Problem> {
        if text.contains('@') {
            return Err(Problem::new("the address of a server has no user and no password")
                .hint("leave out what stands before `@`; the gateway does not send it"));
        }
        let shown = &text[..text.find(['?', '#']).unwrap_or(text.len())];
        let bad = |what: &str| Problem::new(format!("the address {shown:?} {what}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(bad("does not begin with http:// or https://").hint(HINT));
        };
        let tls = match scheme {
            scheme if scheme.eq_ignore_ascii_case("http") => false,
            scheme if scheme.eq_ignore_ascii_case("https") => true,
            _ => return Err(bad("is neither http nor https").hint(HINT)),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let without = format!("write `{scheme}://{authority}`");
        match path.strip_prefix('/').unwrap_or(path).chars().next() {
            None => {}
            Some('?') => return Err(bad("has a query").hint(without)),
            Some('#') => return Err(bad("has a fragment").hint(without)),
            Some(_) => {
                let what = "has a path, and requests are forwarded with the client's path";
                return Err(bad(what).hint(without));
            }
        }
        let (host, port) = split_port(authority).map_err(|what| bad(what).hint(HINT))?;
        let host = parse_host(host).map_err(|what| {
            Problem::new(format!("the host of the address {shown:?} {what}")).hint(HINT)
        })?;
        Ok(UpstreamUrl { tls, host, port: port.unwrap_or(if tls { 443 } else { 80 }) })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// The host and the port of an authority.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let after_host = authority.find(']').map_or(0, |end| end + 1);
    let Some(colon) = authority[after_host..].find(':') else { return Ok((authority, None)) };
    let (host, port) = authority.split_at(after_host + colon);
    let digits = &port[1..];
    if digits.contains(':') {
        return Err("has an IPv6 address without brackets");
    }
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.parse::<u16>().ok().filter(|port| is_number && *port > 0);
    port.map(|port| (host, Some(port))).ok_or("has a port that is not from 1 to 65535")
}

/// Reads a host: a name, an IPv4 address, or an IPv6 address in brackets. Gives it in small letters and without
/// brackets, or says what is wrong with it.
pub(crate) fn parse_host(text: &str) -> Result<Box<str>, &'static str> {
    if let Some(inner) = text.strip_prefix('[') {
        let address = inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok());
        return address.map(|ip| ip.to_string().into()).ok_or("is a wrong IPv6 address");
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err("is an IPv6 address without brackets");
    }
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > 253 || !text.split('.').all(is_label) {
        return Err("is neither a name nor an address");
    }
    let host = text.to_ascii_lowercase();
    // Resolvers read `127.1` and `0x7f.1` as addresses, each in its way.
    let last = host.rsplit('.').next().unwrap_or(&host);
    let is_numeric = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    if is_numeric && host.parse::<Ipv4Addr>().is_err() {
        return Err("is a wrong IPv4 address");
    }
    Ok(host.into())
}

fn is_label(label: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let hyphens = label.starts_with('-') || label.ends_with('-');
    (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !hyphens
}
