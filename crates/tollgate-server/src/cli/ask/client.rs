//! A small HTTP client: one request, one response, then it closes.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::super::Report;

/// How long a server may take for each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of a response.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// With its port.
    host: String,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Server, String> {
        if text.starts_with("https://") {
            return Err("this version asks over http only: write http://127.0.0.1:8080, or use \
                        curl for a server with TLS"
                .into());
        }
        let host = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let plain = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
        if !plain || host.contains("://") {
            return Err("write an address such as http://127.0.0.1:8080".into());
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let bare_ipv6 = host.ends_with(']') || !has_port;
        Ok(Server { host: if bare_ipv6 { format!("{host}:80") } else { host.into() } })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.host)
    }
}

/// What came back.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Server {
    pub(super) fn post(
        &self,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> Result<Response, Report> {
        self.exchange(path, body, token).map_err(|error| {
            let report = Report::new(format!("cannot ask {self}: {error}"));
            match error.kind() {
                io::ErrorKind::ConnectionRefused => report.hint(
                    "is a server running there? Start one with `tollgate serve`, or name another \
                     with --server",
                ),
                _ => report,
            }
        })
    }

    fn exchange(&self, path: &str, body: &str, token: Option<&str>) -> io::Result<Response> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let authorization =
            token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n{authorization}\r\n{body}",
            self.host,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.take(RESPONSE_BYTES_MAX).read_to_string(&mut response)?;
        parse(&response).ok_or_else(|| io::Error::other("what answers there does not speak HTTP"))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name has no address");
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn parse(response: &str) -> Option<Response> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, body: body.into() })
}

/// The first token of a file.
pub(super) fn read_token(path: &Path) -> Result<String, Report> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Report::new(format!("cannot read the token file {shown}: {error}")))?;
    let token = text.lines().map(str::trim).find(|line| !line.is_empty());
    let token = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    token
        .map(String::from)
        .ok_or_else(|| Report::new(format!("the token file {shown} has no token in it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_addresses() {
        let rows = [
            ("http://127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("http://127.0.0.1:8080/", Some("127.0.0.1:8080")),
            ("localhost", Some("localhost:80")),
            ("[::1]:8080", Some("[::1]:8080")),
            ("http://[::1]", Some("[::1]:80")),
            ("https://example.com", None),
            ("ftp://example.com", None),
            ("http://a b", None),
            ("http://host/path", None),
            ("", None),
        ];
        for (text, want) in rows {
            let found = text.parse::<Server>().ok();
            assert_eq!(found.map(|server| server.host).as_deref(), want, "{text}");
        }
    }
}
