//! HTTP/1.1 with one request at a time. Of a response it reads only what a load generator needs: the status and the
//! end.

use std::io::{Read, Write};
use std::time::Duration;

use memchr::memchr;

use super::paced::PacedClient;
use super::requests::{EncodedRequests, RequestCursor};
use super::{ClientContext, LoadClient, answer_excerpt};
use crate::address::{BlockingStream, ServerAddress};
use crate::process::START_MAX;

/// A client with one request in flight; every answer must be 200.
#[derive(Debug)]
pub struct HttpLoadClient<'a> {
    requests: RequestCursor<'a>,
    asked_at: Duration,
}

impl<'a> HttpLoadClient<'a> {
    /// Makes the client of the connection at `index`.
    pub fn new(requests: &'a EncodedRequests, index: usize) -> HttpLoadClient<'a> {
        HttpLoadClient { requests: RequestCursor::new(requests, index), asked_at: Duration::ZERO }
    }

    /// Counts the answer if it is complete. Returns its length, or 0.
    fn count_answer(&self, received: &[u8], turn: &mut ClientContext<'_>) -> Result<usize, String> {
        match progress(received)? {
            ResponseProgress::Incomplete => Ok(0),
            ResponseProgress::Complete { status: 200, .. } => {
                turn.count_answers(1, self.asked_at);
                Ok(received.len())
            }
            ResponseProgress::Complete { .. } => Err("the status is not 200".into()),
        }
    }
}

impl LoadClient for HttpLoadClient<'_> {
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String> {
        turn.out.extend_from_slice(self.requests.next_request());
        self.asked_at = turn.now;
        Ok(())
    }

    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String> {
        let bytes = self.count_answer(received, turn)?;
        if bytes > 0 {
            self.on_connected(turn)?;
        }
        Ok(bytes)
    }
}

/// A client that waits for the next time of a schedule after an answer; every answer must be 200.
#[derive(Debug)]
pub struct PacedHttpClient<'a> {
    client: HttpLoadClient<'a>,
    is_idle: bool,
}

impl<'a> PacedHttpClient<'a> {
    /// Makes the client of the connection at `index`.
    pub fn new(requests: &'a EncodedRequests, index: usize) -> PacedHttpClient<'a> {
        PacedHttpClient { client: HttpLoadClient::new(requests, index), is_idle: true }
    }
}

impl LoadClient for PacedHttpClient<'_> {
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String> {
        self.is_idle = false;
        self.client.on_connected(turn)
    }

    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String> {
        let bytes = self.client.count_answer(received, turn)?;
        self.is_idle = bytes > 0;
        Ok(bytes)
    }
}

impl PacedClient for PacedHttpClient<'_> {
    fn is_idle(&self) -> bool {
        self.is_idle
    }
}

/// The progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseProgress {
    /// Bytes are missing.
    Incomplete,
    /// The response is complete.
    Complete {
        /// The status code.
        status: u16,
        /// Length of the body.
        body_bytes: usize,
    },
}

/// Parses the response at the beginning of `bytes`. Only one response is expected: bytes after its end are
/// an error, and so is a body without `Content-Length`.
pub fn progress(bytes: &[u8]) -> Result<ResponseProgress, &'static str> {
    let Some(head) = head(bytes)? else { return Ok(ResponseProgress::Incomplete) };
    let body_bytes = match (head.status, head.content_length) {
        (204 | 304, _) => 0,
        (_, Some(length)) => length,
        (_, None) => return Err("the response has no Content-Length"),
    };
    match bytes.len() - head.bytes {
        got if got < body_bytes => Ok(ResponseProgress::Incomplete),
        got if got == body_bytes => {
            Ok(ResponseProgress::Complete { status: head.status, body_bytes })
        }
        _ => Err("the response is longer than its Content-Length says"),
    }
}

struct ResponseHead {
    status: u16,
    content_length: Option<usize>,
    /// Length of the head, including the empty line.
    bytes: usize,
}

/// Parses the status line and the headers, once the empty line after them has arrived.
fn head(bytes: &[u8]) -> Result<Option<ResponseHead>, &'static str> {
    let mut head = ResponseHead { status: 0, content_length: None, bytes: 0 };
    while let Some(length) = memchr(b'\n', &bytes[head.bytes..]) {
        let line = &bytes[head.bytes..head.bytes + length];
        let is_first = head.bytes == 0;
        head.bytes += length + 1;
        match line {
            b"\r" => return Ok(Some(head)),
            _ if is_first => head.status = status(line).ok_or("not an HTTP/1.1 status line")?,
            _ => head.content_length = content_length(line)?.or(head.content_length),
        }
    }
    Ok(None)
}

/// Parses `HTTP/1.1 200 OK` as 200.
fn status(line: &[u8]) -> Option<u16> {
    let digits = line.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses the length, if this header is `Content-Length`.
fn content_length(line: &[u8]) -> Result<Option<usize>, &'static str> {
    const NAME: &[u8] = b"content-length:";
    match line.split_at_checked(NAME.len()) {
        Some((name, value)) if name.eq_ignore_ascii_case(NAME) => {
            let length = std::str::from_utf8(value).ok().and_then(|it| it.trim().parse().ok());
            length.map(Some).ok_or("the Content-Length is not a number")
        }
        _ => Ok(None),
    }
}

/// A complete response.
#[derive(Debug)]
pub struct BenchHttpResponse {
    /// The status code.
    pub status: u16,
    /// Length of the body.
    pub body_bytes: usize,
    /// The whole text of the response.
    pub text: String,
}

/// Sends one request on a connection of its own.
pub fn ask(address: impl Into<ServerAddress>, request: &[u8]) -> Result<BenchHttpResponse, String> {
    let address = address.into();
    let stream = BlockingStream::connect(&address, START_MAX);
    let mut stream = stream.map_err(|error| format!("cannot ask {address}: {error}"))?;
    ask_on(&mut stream, request)
}

/// Sends one request on a connection and waits for the response.
pub fn ask_on(stream: &mut BlockingStream, request: &[u8]) -> Result<BenchHttpResponse, String> {
    stream.write_all(request).map_err(|error| format!("cannot send: {error}"))?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let quoted = |problem: &str| format!("{problem}; it said:\n{}", answer_excerpt(&answer));
        match progress(&answer).map_err(quoted)? {
            ResponseProgress::Incomplete => {}
            ResponseProgress::Complete { status, body_bytes } => {
                let text = String::from_utf8_lossy(&answer).into_owned();
                return Ok(BenchHttpResponse { status, body_bytes, text });
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err(quoted("the server closed the connection")),
            Ok(bytes) => answer.extend_from_slice(&buffer[..bytes]),
            Err(error) => return Err(quoted(&format!("cannot receive: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_where_its_headers_say() {
        let complete = |status, body_bytes| Ok(ResponseProgress::Complete { status, body_bytes });
        let rows = [
            ("", Ok(ResponseProgress::Incomplete)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n", Ok(ResponseProgress::Incomplete)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", complete(200, 0)),
            ("HTTP/1.1 204 No Content\r\nServer: a\r\n\r\n", complete(204, 0)),
            (
                "HTTP/1.1 429 No\r\nServer: a\r\nContent-Length:2\r\n\r\n{",
                Ok(ResponseProgress::Incomplete),
            ),
            ("HTTP/1.1 429 No\r\nServer: a\r\nContent-Length:2\r\n\r\n{}", complete(429, 2)),
        ];
        for (text, expected) in rows {
            assert_eq!(progress(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_an_error() {
        let rows = [
            ("PONG\r\n", "status line"),
            ("HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not a number"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "longer"),
        ];
        for (text, expected) in rows {
            let problem = progress(text.as_bytes()).expect_err(text);
            assert!(problem.contains(expected), "{text:?} answered {problem:?}");
        }
    }
}
