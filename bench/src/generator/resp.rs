//! The Redis protocol: a pipeline of commands, and the next pipeline when all are answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use memchr::{memchr, memchr_iter};
use testkit::traffic::resp_command;

use super::requests::{EncodedRequests, RequestCursor};
use super::{ClientContext, LoadClient, answer_excerpt};
use crate::process::START_MAX;

/// The expected form of every reply: its first bytes and the number of lines after them.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedReply {
    /// The first bytes.
    pub begins: &'static [u8],
    /// Number of line ends after the first bytes, at least one.
    pub lines: usize,
}

impl ExpectedReply {
    /// Length of the reply at the beginning of `bytes`; `None` if it is incomplete.
    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let known = bytes.len().min(self.begins.len());
        if bytes[..known] != self.begins[..known] {
            return Err(format!("the reply does not begin with {:?}", answer_excerpt(self.begins)));
        }
        let end = memchr_iter(b'\n', &bytes[known..]).nth(self.lines - 1);
        Ok(end.map(|end| known + end + 1))
    }
}

/// A client that sends pipelines with as many commands as a request has decisions.
#[derive(Debug)]
pub struct RespLoadClient<'a> {
    requests: RequestCursor<'a>,
    commands: usize,
    reply: ExpectedReply,
    /// Number of replies that have not arrived yet.
    missing: usize,
    asked_at: Duration,
}

impl<'a> RespLoadClient<'a> {
    /// Makes the client of the connection at `index`.
    pub fn new(
        requests: &'a EncodedRequests,
        reply: ExpectedReply,
        index: usize,
    ) -> RespLoadClient<'a> {
        let (commands, requests) = (requests.decisions, RequestCursor::new(requests, index));
        RespLoadClient { requests, commands, reply, missing: 0, asked_at: Duration::ZERO }
    }
}

impl LoadClient for RespLoadClient<'_> {
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String> {
        turn.out.extend_from_slice(self.requests.next_request());
        (self.missing, self.asked_at) = (self.commands, turn.now);
        Ok(())
    }

    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String> {
        let mut heard = 0;
        while self.missing > 0 {
            let Some(length) = self.reply.length(&received[heard..])? else { return Ok(heard) };
            heard += length;
            self.missing -= 1;
        }
        if heard < received.len() {
            return Err("there is more than was asked for".into());
        }
        turn.count_answers(self.commands as u64, self.asked_at);
        self.on_connected(turn)?;
        Ok(heard)
    }
}

/// Sends one command on a connection of its own and returns the reply as one line, with arrays in brackets, such
/// as `[0,5,4,-1,12]`. Strings that contain line ends are not supported.
pub fn ask(address: SocketAddr, words: &[&str]) -> Result<String, String> {
    let told = |error| format!("cannot ask {address}: {error}");
    let mut stream = TcpStream::connect(address).map_err(told)?;
    stream.set_read_timeout(Some(START_MAX)).map_err(told)?;
    stream.write_all(resp_command(words).as_bytes()).map_err(told)?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        if let Some((line, _)) = read_reply(&reply)? {
            return Ok(line);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(bytes) => reply.extend_from_slice(&buffer[..bytes]),
            Err(error) => return Err(told(error)),
        }
    }
}

/// Parses the reply at the beginning. Also returns its length; `None` if it is incomplete.
fn read_reply(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned();
    let mut length = end + 1;
    match text.split_at_checked(1) {
        Some(("+" | ":", value)) => Ok(Some((value.to_owned(), length))),
        Some(("-", _)) => Ok(Some((text, length))),
        Some(("$", _)) => {
            let Some(end) = memchr(b'\n', &bytes[length..]) else { return Ok(None) };
            let value = String::from_utf8_lossy(&bytes[length..length + end]);
            Ok(Some((value.trim_end().to_owned(), length + end + 1)))
        }
        Some(("*", count)) => {
            let count: usize = count.parse().map_err(|_| format!("not a length: {text:?}"))?;
            let mut parts = Vec::new();
            for _ in 0..count {
                let Some((part, bytes)) = read_reply(&bytes[length..])? else { return Ok(None) };
                parts.push(part);
                length += bytes;
            }
            Ok(Some((format!("[{}]", parts.join(",")), length)))
        }
        _ => Err(format!("not a reply: {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_end_after_their_lines_and_begin_as_expected() {
        let array = ExpectedReply { begins: b"*2\r\n:1\r\n", lines: 1 };
        let number = ExpectedReply { begins: b":", lines: 1 };
        let rows = [
            (array, "", Some(None)),
            (array, "*2\r\n:", Some(None)),
            (array, "*2\r\n:1\r\n:7", Some(None)),
            (array, "*2\r\n:1\r\n:7\r\n*2\r\n", Some(Some(12))),
            (array, "*2\r\n:0\r\n:7\r\n", None),
            (array, "-E", None),
            (number, ":12\r\n:13\r\n", Some(Some(5))),
        ];
        for (reply, text, expected) in rows {
            assert_eq!(reply.length(text.as_bytes()).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn replies_are_shown_in_one_line() {
        let rows = [
            ("+PONG\r\n", Some("PONG")),
            ("-ERR no\r\n", Some("-ERR no")),
            ("*3\r\n:0\r\n:-1\r\n$2\r\nab\r\n", Some("[0,-1,ab]")),
            ("*3\r\n:0\r\n:-1\r\n$2\r\n", None),
            ("*2\r\n:0\r\n", None),
        ];
        for (text, expected) in rows {
            let got = read_reply(text.as_bytes()).unwrap();
            assert_eq!(got.as_ref().map(|(line, _)| line.as_str()), expected, "{text:?}");
        }
        assert!(read_reply(b"HTTP/1.1\r\n").is_err());
    }
}
