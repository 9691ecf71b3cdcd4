//! Addresses of listeners: an IP address and a port, or the path of a Unix socket.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of the path of a Unix socket.
pub(crate) const UNIX_PREFIX: &str = "unix:";

/// The longest path of a Unix socket that every system accepts, in bytes.
const UNIX_PATH_BYTES_MAX: usize = 100;

/// Peer address of connections over a Unix socket: its clients are on this machine.
pub(crate) const UNIX_PEER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Address of a listener, or none if it is switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenerAddress {
    /// Switched off.
    None,
    /// Open at this address.
    At(BindAddress),
}

/// An address that a listener can be bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BindAddress {
    /// An IP address and a port. Port 0 is any free one.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenerAddress {
    /// Returns true for the path of a Unix socket.
    pub(crate) fn is_unix_socket(&self) -> bool {
        matches!(self, ListenerAddress::At(BindAddress::Unix(_)))
    }
}

impl BindAddress {
    /// Returns true if only programs on this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            BindAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
            BindAddress::Unix(_) => true,
        }
    }

    /// The port; `None` for a Unix socket.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            BindAddress::Tcp(address) => Some(address.port()),
            BindAddress::Unix(_) => None,
        }
    }
}

impl FromStr for ListenerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenerAddress, String> {
        if text == "none" {
            return Ok(ListenerAddress::None);
        }
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            return socket_path(path).map(BindAddress::Unix).map(ListenerAddress::At);
        }
        let at = |address| ListenerAddress::At(BindAddress::Tcp(address));
        // A port alone means loopback.
        let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>().ok();
        if let Some(port) = port {
            return Ok(at(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        let spelled = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        spelled.as_deref().unwrap_or(text).parse().map(at).map_err(|_| {
            "write an address and a port, such as 127.0.0.1:8080 or [::1]:8080, \
             unix:/run/tollgate.sock, or `none`"
                .into()
        })
    }
}

/// Reads the path of a Unix socket, after the prefix.
pub(crate) fn socket_path(path: &str) -> Result<PathBuf, String> {
    if cfg!(not(unix)) {
        return Err("this system has no Unix sockets: write an address and a port".into());
    }
    if !path.starts_with('/') || path.ends_with('/') {
        return Err("write an absolute path, such as unix:/run/tollgate.sock".into());
    }
    if path.len() > UNIX_PATH_BYTES_MAX || path.contains('\0') {
        return Err(format!(
            "the path of a socket has at most {UNIX_PATH_BYTES_MAX} bytes and no zero byte"
        ));
    }
    Ok(path.into())
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindAddress::Tcp(address) => address.fmt(f),
            BindAddress::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl fmt::Display for ListenerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenerAddress::None => f.write_str("none"),
            ListenerAddress::At(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("none", "none"),
            ("8080", "127.0.0.1:8080"),
            (":8080", "127.0.0.1:8080"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:8080", "[::1]:8080"),
            #[cfg(unix)]
            ("unix:/run/tollgate.sock", "unix:/run/tollgate.sock"),
        ] {
            let address: ListenerAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), shown);
        }
        let long = format!("unix:/{}", "a".repeat(UNIX_PATH_BYTES_MAX));
        for wrong in
            ["unix:", "unix:relative", "unix:/", "unix:/a\0b", &long, "host", "1.2.3.4", ""]
        {
            assert!(wrong.parse::<ListenerAddress>().is_err(), "{wrong:?}");
        }
    }
}
