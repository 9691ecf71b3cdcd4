//! The address that a load is sent to, and how it is spoken to.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::net::lookup_host;

use crate::cli::Report;

/// Hint for a wrong target.
const FORM: &str = "write http://127.0.0.1:8080 for checks, http://127.0.0.1:8000/path for any URL, \
                    redis://127.0.0.1:6380 or grpc://127.0.0.1:8081";

/// The protocol of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadProtocol {
    /// `POST /v1/check`.
    Check,
    /// Requests for one URL, such as one behind the gateway.
    Url,
    /// Commands of Redis.
    Resp,
    /// `ShouldRateLimit` of Envoy's rate limit service.
    Grpc,
}

impl LoadProtocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            LoadProtocol::Check => "check",
            LoadProtocol::Url => "url",
            LoadProtocol::Resp => "resp",
            LoadProtocol::Grpc => "grpc",
        }
    }
}

/// The target of a load: protocol, host and port, and the path if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadTarget {
    pub(super) protocol: LoadProtocol,
    /// Host and port.
    pub(super) authority: String,
    /// Path with its query; empty unless the protocol is [`LoadProtocol::Url`].
    pub(super) path: String,
}

impl FromStr for LoadTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<LoadTarget, String> {
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let path = if path == "/" { "" } else { path };
        let (protocol, default_port) = match (scheme, path.is_empty()) {
            ("http", true) => (LoadProtocol::Check, 8080),
            ("http", false) => (LoadProtocol::Url, 80),
            ("redis" | "resp", true) => (LoadProtocol::Resp, 6380),
            ("grpc", true) => (LoadProtocol::Grpc, 8081),
            ("redis" | "resp" | "grpc", false) => {
                return Err(format!("a {scheme} target has no path; {FORM}"));
            }
            ("https" | "rediss" | "grpcs", _) => {
                return Err("bench does not speak TLS: name a listener without it".into());
            }
            _ => return Err(FORM.into()),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        let is_path = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        if authority.is_empty() || !authority.bytes().all(is_plain) || !path.bytes().all(is_path) {
            return Err(FORM.into());
        }
        let has_port = match authority.rsplit_once(':') {
            Some((host, port)) if !authority.ends_with(']') => {
                let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
                if host.is_empty() || !is_port {
                    return Err(format!("a port is a number from 1 to 65535; {FORM}"));
                }
                true
            }
            _ => false,
        };
        let port = if has_port { String::new() } else { format!(":{default_port}") };
        let (authority, path) = (format!("{authority}{port}"), path.into());
        Ok(LoadTarget { protocol, authority, path })
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            LoadProtocol::Check | LoadProtocol::Url => "http",
            LoadProtocol::Resp => "redis",
            LoadProtocol::Grpc => "grpc",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl LoadTarget {
    /// Looks the host up. An address off this machine is an error unless `allow_remote` is true: a load test is
    /// an attack on a server whose owner has not agreed to it.
    pub(super) async fn resolve(&self, allow_remote: bool) -> Result<SocketAddr, Report> {
        let found = lookup_host(&self.authority).await;
        let mut found = found
            .map_err(|error| Report::new(format!("cannot look up {}: {error}", self.authority)))?;
        let address = found
            .next()
            .ok_or_else(|| Report::new(format!("{} has no address", self.authority)))?;
        if allow_remote || address.ip().to_canonical().is_loopback() {
            return Ok(address);
        }
        let problem =
            format!("{self} is not on this machine ({}), so no load is sent", address.ip());
        Err(Report::new(problem).hint(
            "a load test of a server that others use takes it away from them: with --allow-remote you \
             say that its owner agrees",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_name_a_protocol() {
        let rows = [
            ("http://127.0.0.1:8080", Ok((LoadProtocol::Check, "127.0.0.1:8080", ""))),
            ("http://localhost/", Ok((LoadProtocol::Check, "localhost:8080", ""))),
            ("http://[::1]:9/a?b={key}", Ok((LoadProtocol::Url, "[::1]:9", "/a?b={key}"))),
            ("redis://[::1]", Ok((LoadProtocol::Resp, "[::1]:6380", ""))),
            ("resp://127.0.0.1:6380/", Ok((LoadProtocol::Resp, "127.0.0.1:6380", ""))),
            ("grpc://localhost:1", Ok((LoadProtocol::Grpc, "localhost:1", ""))),
            ("grpc://localhost:1/x", Err("a grpc target has no path")),
            ("https://localhost", Err("bench does not speak TLS")),
            ("127.0.0.1:8080", Err("write http://")),
            ("ftp://localhost", Err("write http://")),
            ("http://", Err("write http://")),
            ("http://user@host/", Err("write http://")),
            ("http://localhost:0", Err("a port is a number")),
            ("http://:80", Err("a port is a number")),
            ("http://localhost/a b", Err("write http://")),
            ("http://localhost/\r\nx: y", Err("write http://")),
        ];
        for (text, want) in rows {
            match (text.parse::<LoadTarget>(), want) {
                (Ok(found), Ok((protocol, authority, path))) => {
                    let found = (found.protocol, &*found.authority, &*found.path);
                    assert_eq!(found, (protocol, authority, path), "{text}");
                }
                (Err(found), Err(want)) => assert!(found.starts_with(want), "{text}: {found}"),
                (found, want) => panic!("{text}: {found:?} instead of {want:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_load_stays_on_this_machine_unless_its_owner_agrees() {
        // Addresses are not looked up, so nothing leaves the machine.
        let rows = [
            ("http://127.0.0.1:8080", false, true),
            ("http://127.9.9.9:8080", false, true),
            ("redis://[::1]:6380", false, true),
            ("grpc://[::ffff:127.0.0.1]:6380", false, true),
            ("http://192.0.2.1:8080/x", false, false),
            ("http://0.0.0.0:8080", false, false),
            ("grpc://[2001:db8::1]:8081", false, false),
            ("http://192.0.2.1:8080", true, true),
        ];
        for (text, allow_remote, want) in rows {
            let target = text.parse::<LoadTarget>().unwrap();
            let resolved = target.resolve(allow_remote).await;
            assert_eq!(resolved.is_ok(), want, "{text}");
            if let Err(report) = resolved {
                assert!(report.to_string().contains("--allow-remote"), "{report}");
            }
        }
    }
}
