//! A client that sends the same requests in the same order each time, one at a time on one connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::paths::{ServerPath, ServerProtocol};
use crate::http2::{
    ACK, END_STREAM, FRAME_HEADER_BYTES, FrameHeader, frame_kind, write_call, write_frame,
    write_start,
};
use crate::traffic::SHOULD_RATE_LIMIT;

/// Timeout of a reply: valgrind makes a server 50 times slower.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a server.
#[derive(Debug)]
pub(super) struct ScriptedClient<'a> {
    stream: TcpStream,
    path: &'a ServerPath,
    /// The next HTTP/2 stream; 1 before the first call.
    next_stream: u32,
    /// Received bytes of the current request's reply. Bound: one reply or pipeline of replies.
    received: Vec<u8>,
    /// Received bytes of frames that were handled.
    handled_bytes: usize,
}

impl<'a> ScriptedClient<'a> {
    /// Connects to a server.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub(super) fn connect(address: SocketAddr, path: &'a ServerPath) -> ScriptedClient<'a> {
        let stream = TcpStream::connect(address).expect("the listener is open");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
        ScriptedClient { stream, path, next_stream: 1, received: Vec::new(), handled_bytes: 0 }
    }

    /// Sends requests or pipelines, each after the reply to the one before. Callers take turns.
    ///
    /// # Panics
    ///
    /// If a reply is missing or does not show a decision.
    pub(super) fn drive(&mut self, exchanges: usize, keys: u64) {
        let mut users = (0..keys).cycle();
        for _ in 0..exchanges {
            let users: Vec<u64> = users.by_ref().take(self.path.decisions).collect();
            self.exchange((self.path.request)(&users));
        }
    }

    fn exchange(&mut self, request: Vec<u8>) {
        match self.path.protocol {
            ServerProtocol::Http | ServerProtocol::Resp => self.send(&request),
            ServerProtocol::Grpc => self.send_call(&request),
        }
        self.received.clear();
        self.handled_bytes = 0;
        let mut buffer = [0; 64 << 10];
        while !self.is_answered() {
            let bytes = self.stream.read(&mut buffer).expect("a reply in time");
            assert!(bytes > 0, "the server closed the connection{}", self.quoted());
            self.received.extend_from_slice(&buffer[..bytes]);
        }
        let sign = self.path.sign.as_bytes();
        let signs = self.received.windows(sign.len()).filter(|part| *part == sign).count();
        let name = self.path.name;
        assert!(signs >= self.path.decisions, "{name}: not a decision{}", self.quoted());
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn send_call(&mut self, message: &[u8]) {
        let mut out = Vec::new();
        if self.next_stream == 1 {
            write_start(&mut out);
        }
        write_call(&mut out, self.next_stream, SHOULD_RATE_LIMIT, message);
        self.next_stream += 2;
        self.send(&out);
    }

    /// Returns true if the reply is complete.
    fn is_answered(&mut self) -> bool {
        match self.path.protocol {
            ServerProtocol::Http => http_response_is_complete(&self.received),
            ServerProtocol::Resp => {
                let mut rest = &self.received[..];
                (0..self.path.decisions).all(|_| skip_resp_reply(&mut rest).is_some())
            }
            ServerProtocol::Grpc => self.handle_frames(),
        }
    }

    /// Answers settings and pings. Returns true if the stream of the current call has ended.
    fn handle_frames(&mut self) -> bool {
        let (mut out, mut ended) = (Vec::new(), false);
        while let Some((head, rest)) = FrameHeader::read(&self.received[self.handled_bytes..]) {
            let Some(payload) = rest.get(..head.payload_bytes) else { break };
            match head.kind {
                frame_kind::PING if head.flags & ACK == 0 => {
                    write_frame(&mut out, frame_kind::PING, ACK, 0, payload);
                }
                frame_kind::SETTINGS if head.flags & ACK == 0 => {
                    write_frame(&mut out, frame_kind::SETTINGS, ACK, 0, &[]);
                }
                frame_kind::HEADERS if head.flags & END_STREAM != 0 => {
                    ended |= head.stream + 2 == self.next_stream;
                }
                _ => {}
            }
            self.handled_bytes += FRAME_HEADER_BYTES + head.payload_bytes;
        }
        self.send(&out);
        ended
    }

    fn quoted(&self) -> String {
        let beginning = &self.received[..self.received.len().min(2_000)];
        format!("; it said:\n{}", String::from_utf8_lossy(beginning))
    }
}

/// Returns true if the head and as much of a body as it announces are there.
fn http_response_is_complete(bytes: &[u8]) -> bool {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = bytes.windows(END.len()).position(|part| part == END) else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200 "), "not the status 200: {head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|it| it.trim().parse().ok()).expect("a Content-Length");
    bytes.len() >= end + END.len() + length
}

/// Removes the first reply; `None` if it is incomplete.
fn skip_resp_reply(rest: &mut &[u8]) -> Option<()> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&rest[..end]).expect("a line of ASCII").trim_end();
    *rest = &rest[end + 1..];
    let (kind, number) = line.split_at_checked(1).expect("a kind of reply");
    let count = || number.parse::<usize>().expect("a length");
    match kind {
        "*" => (0..count()).try_for_each(|_| skip_resp_reply(rest)),
        "$" => rest.split_at_checked(count() + 2).map(|(_, after)| *rest = after),
        "+" | ":" => Some(()),
        _ => panic!("not a reply that shows a decision: {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_body() {
        let rows = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n", false),
        ];
        for (text, expected) in rows {
            assert_eq!(http_response_is_complete(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_reply_ends_with_its_last_element() {
        let rows = [
            (":1\r\n:2\r\n", Some(":2\r\n")),
            ("*2\r\n:1\r\n$2\r\nab\r\n+", Some("+")),
            ("*2\r\n:1\r\n$2\r\nab", None),
            ("*2\r\n:1", None),
        ];
        for (text, expected) in rows {
            let mut rest = text.as_bytes();
            let rest = skip_resp_reply(&mut rest).map(|()| rest);
            assert_eq!(rest, expected.map(str::as_bytes), "{text:?}");
        }
    }
}
