//! A small HTTP client, for commands that talk to a running server: one request, one response, then
//! it closes.

use std::borrow::Cow;
use std::io::{self, Read, Write};

use deadline_stream::DeadlineStream;
use server_url::ServerUrl;

mod chunked;
mod deadline_stream;
pub(crate) mod listener;
mod server_url;
mod tls;
mod token;

/// The most bytes of a response, with its head.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub(crate) method: &'static str,
    /// With its query; every byte of it can stand in a request line.
    pub(crate) path: String,
    /// JSON.
    pub(crate) body: Option<String>,
}

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a request, with these lines in its head, and reads the response.
fn exchange(
    stream: &mut (impl Read + Write),
    server: &ServerUrl,
    request: &ClientRequest,
    fields: &str,
) -> io::Result<ClientResponse> {
    let ClientRequest { method, path, body } = request;
    let content = match body {
        Some(body) => {
            format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
        }
        None => String::new(),
    };
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\n{content}connection: close\r\n{fields}\r\n{}",
        server.host(),
        body.as_deref().unwrap_or_default()
    );
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    receive(stream)
}

fn receive(stream: &mut impl Read) -> io::Result<ClientResponse> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        if bytes.len() > RESPONSE_BYTES_MAX {
            let problem = format!("the answer has more than {RESPONSE_BYTES_MAX} bytes");
            return Err(io::Error::other(problem));
        }
        if let Some(response) = parse(&bytes, count == 0)? {
            return Ok(response);
        }
    }
}

/// The response, unless there is more to come.
fn parse(bytes: &[u8], ended: bool) -> io::Result<Option<ClientResponse>> {
    let not_http = || io::Error::new(io::ErrorKind::InvalidData, "what answers is not HTTP");
    let Some(head_len) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if ended { Err(not_http()) } else { Ok(None) };
    };
    let (head, body) = (&bytes[..head_len], &bytes[head_len + 4..]);
    let head = str::from_utf8(head).map_err(|_| not_http())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status.and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(not_http)?;
    let field = |wanted: &str| {
        let fields = lines.clone().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value.trim())
    };
    let broken_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off");
    let length = field("content-length").and_then(|length| length.parse::<usize>().ok());
    let body = match (field("transfer-encoding"), length) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => {
            chunked::decode(body).map_err(|_| not_http())?.map(Cow::Owned)
        }
        (Some(_), _) => return Err(not_http()),
        (None, Some(length)) => body.get(..length).map(Cow::Borrowed),
        (None, None) => ended.then_some(Cow::Borrowed(body)),
    };
    let Some(body) = body else { return if ended { Err(broken_off()) } else { Ok(None) } };
    let body = str::from_utf8(&body).map_err(|_| not_http())?;
    Ok(Some(ClientResponse { status, body: body.into() }))
}

/// A segment of a path, whatever it is made of.
pub(crate) fn path_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'=' => {
                segment.push(char::from(byte));
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_paths_hold_any_text() {
        let rows = [
            ("user=42", "user=42"),
            ("a/b?c#d%e", "a%2Fb%3Fc%23d%25e"),
            ("path=/x,ip=::1", "path=%2Fx%2Cip=%3A%3A1"),
            ("\r\n é", "%0D%0A%20%C3%A9"),
        ];
        for (text, want) in rows {
            assert_eq!(path_segment(text), want, "{text}");
        }
    }

    #[test]
    fn responses_end_where_they_say() {
        type ParsedResponse = Option<(u16, &'static str)>;
        const MORE: ParsedResponse = None;
        // bytes, whether the connection has ended, what is found
        let rows: [(&str, bool, Result<ParsedResponse, &str>); 16] = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", false, Ok(Some((200, "{}")))),
            ("HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\n{}more", false, Ok(Some((200, "{}")))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", false, Ok(MORE)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", true, Err("broke off")),
            ("HTTP/1.1 404 Not Found\r\n\r\n{}", false, Ok(MORE)),
            ("HTTP/1.0 404 Not Found\r\n\r\n{}", true, Ok(Some((404, "{}")))),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
                false,
                Ok(Some((200, "{}"))),
            ),
            // Chunks say where the answer ends, whatever else does.
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n\
                 2\r\n{}\r\n0\r\n\r\n",
                false,
                Ok(Some((200, "{}"))),
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}", false, Ok(MORE)),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
                true,
                Err("broke off"),
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}\r\n", true, Err("not HTTP")),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}", true, Err("not HTTP")),
            ("HTTP/1.1 200", false, Ok(MORE)),
            ("HTTP/1.1 200", true, Err("not HTTP")),
            ("SSH-2.0-x\r\n\r\n", false, Err("not HTTP")),
            ("", true, Err("not HTTP")),
        ];
        for (bytes, ended, want) in rows {
            match (parse(bytes.as_bytes(), ended), want) {
                (Ok(found), Ok(want)) => {
                    let want =
                        want.map(|(status, body)| ClientResponse { status, body: body.into() });
                    assert_eq!(found, want, "{bytes:?}");
                }
                (Err(found), Err(want)) => assert!(found.to_string().contains(want), "{bytes:?}"),
                (found, want) => panic!("{bytes:?}: {found:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn endless_answers_are_not_read_to_their_end() {
        let mut endless = (&b"HTTP/1.1 200 OK\r\n\r\n"[..]).chain(io::repeat(b'x'));
        let problem = receive(&mut endless).unwrap_err();
        assert_eq!(problem.to_string(), "the answer has more than 1048576 bytes");
        let head = &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n"[..];
        let problem = receive(&mut head.chain(io::repeat(b'x'))).unwrap_err();
        assert_eq!(problem.to_string(), "the answer has more than 1048576 bytes");
        let problem = receive(&mut io::repeat(b'x')).unwrap_err();
        assert_eq!(problem.to_string(), "the answer has more than 1048576 bytes");
    }
}
