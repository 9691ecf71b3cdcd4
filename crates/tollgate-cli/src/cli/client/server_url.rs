//! The URL of a server on the command line.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::listeners::address::{UNIX_PREFIX, socket_path};

/// Hint for a wrong URL.
const FORM: &str = "write an address such as http://127.0.0.1:8080";

/// A scheme, a host and a port; or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    pub(super) tls: bool,
    /// A name or an IPv4 address, or an IPv6 address in brackets.
    name: String,
    port: u16,
    /// The path of the Unix socket, where there is one instead of a host.
    socket: Option<PathBuf>,
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerUrl, String> {
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            let socket = socket_path(path)?;
            return Ok(ServerUrl {
                socket: Some(socket),
                ..ServerUrl::new(false, "localhost", 80)
            });
        }
        // A port alone is on this machine, as with the flags of `serve`.
        let port = text.strip_prefix(':').unwrap_or(text);
        if is_number(port) {
            return Ok(ServerUrl::new(false, "127.0.0.1", read_port(port)?));
        }
        let (tls, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("http://").unwrap_or(text)),
        };
        let host = rest.trim_end_matches('/');
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"/@?#\\".contains(&byte);
        if !host.bytes().all(plain) {
            return Err(FORM.into());
        }
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !host.ends_with(']') => (name, read_port(port)),
            _ => (host, Ok(if tls { 443 } else { 80 })),
        };
        check_name(name)?;
        Ok(ServerUrl::new(tls, name, port?))
    }
}

fn read_port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|&port| port > 0 && is_number(text));
    port.ok_or_else(|| format!("a port is a number from 1 to 65535; {FORM}"))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.starts_with('[') {
        let address = format!("{name}:1").parse::<SocketAddrV6>();
        return address.map(drop).map_err(|_| "write an address such as http://[::1]:8080".into());
    }
    if name.contains(':') {
        return Err("write an IPv6 address in brackets: http://[::1]:8080".into());
    }
    if name.is_empty() || name.contains(['[', ']']) {
        return Err(FORM.into());
    }
    // The system reads `8080` as 0.0.31.144, and `127.1` or `0x7f.1` as other unintended addresses: a token
    // must not go there.
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_numeric = is_number(last) || last.starts_with("0x") || last.starts_with("0X");
    if is_numeric && name.parse::<Ipv4Addr>().is_err() {
        return Err(format!("{name:?} is not a host; {FORM}"));
    }
    Ok(())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.socket {
            return write!(f, "{UNIX_PREFIX}{}", path.display());
        }
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host())
    }
}

impl ServerUrl {
    fn new(tls: bool, name: &str, port: u16) -> ServerUrl {
        ServerUrl { tls, name: name.into(), port, socket: None }
    }

    /// The path of the Unix socket, if that is how the server is reached.
    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Name and port.
    pub(super) fn host(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }

    /// Name without port and brackets.
    pub(super) fn name(&self) -> &str {
        self.name.trim_start_matches('[').trim_end_matches(']')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_addresses() {
        // text, as it is shown, its name
        let rows = [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", "127.0.0.1"),
            ("8080", "http://127.0.0.1:8080", "127.0.0.1"),
            (":8080", "http://127.0.0.1:8080", "127.0.0.1"),
            ("localhost", "http://localhost:80", "localhost"),
            ("[::1]:8080", "http://[::1]:8080", "::1"),
            ("http://[::1]", "http://[::1]:80", "::1"),
            ("https://example.com", "https://example.com:443", "example.com"),
            ("https://example.com:8443/", "https://example.com:8443", "example.com"),
            ("http://1and1.example", "http://1and1.example:80", "1and1.example"),
            #[cfg(unix)]
            ("unix:/run/tollgate.sock", "unix:/run/tollgate.sock", "localhost"),
        ];
        for (text, shown, name) in rows {
            let server: ServerUrl = text.parse().expect(text);
            assert_eq!((&*server.to_string(), server.name()), (shown, name), "{text}");
        }
    }

    #[test]
    fn what_is_no_server_is_told() {
        let rows = [
            ("ftp://example.com", "http://127.0.0.1:8080"),
            ("http://a b", "http://127.0.0.1:8080"),
            ("http://a\r\nb: c", "http://127.0.0.1:8080"),
            ("http://host/path", "http://127.0.0.1:8080"),
            ("http://user@host", "http://127.0.0.1:8080"),
            ("https://", "http://127.0.0.1:8080"),
            ("", "http://127.0.0.1:8080"),
            (":", "http://127.0.0.1:8080"),
            ("0", "from 1 to 65535"),
            ("65536", "from 1 to 65535"),
            ("host:65536", "from 1 to 65535"),
            ("host:", "from 1 to 65535"),
            ("host:+80", "from 1 to 65535"),
            ("http://:8080", "http://127.0.0.1:8080"),
            ("http://8080", "\"8080\" is not a host"),
            ("https://8080:443", "\"8080\" is not a host"),
            ("127.1:8080", "\"127.1\" is not a host"),
            ("0x7f000001", "\"0x7f000001\" is not a host"),
            ("1.2.3.4.5", "is not a host"),
            ("::1", "in brackets"),
            ("http://2001:db8::1:8080", "in brackets"),
            ("[::1", "http://[::1]:8080"),
            ("::1]", "in brackets"),
            ("a[b", "http://127.0.0.1:8080"),
            ("[localhost]:80", "http://[::1]:8080"),
            #[cfg(unix)]
            ("unix:tollgate.sock", "an absolute path"),
        ];
        for (text, want) in rows {
            let problem = text.parse::<ServerUrl>().expect_err(text);
            assert!(problem.contains(want), "{text}: {problem}");
        }
    }
}
