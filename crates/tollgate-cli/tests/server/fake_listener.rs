//! A listener that gives one fixed answer, to test the requests of commands and their handling of answers that the real
//! server never gives.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use crate::harness::DEADLINE;

/// A request that was received.
#[derive(Debug)]
pub(crate) struct RecordedRequest {
    /// Request line, such as `GET /api/keys/api/user=42 HTTP/1.1`.
    pub(crate) line: String,
    /// Header fields, with names in lowercase.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
}

impl RecordedRequest {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name);
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{name} appears twice: {self:?}");
        Some(value)
    }
}

/// Answers one connection with these bytes and closes it.
pub(crate) fn answer_once(bytes: impl Into<Vec<u8>>) -> (SocketAddr, JoinHandle<RecordedRequest>) {
    let bytes = bytes.into();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let listener = move || {
        let (stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let mut stream = BufReader::new(stream);
        let sent = read(&mut stream);
        // The client may have left early.
        let _ = stream.get_mut().write_all(&bytes);
        sent
    };
    (address, thread::spawn(listener))
}

/// Answers one connection with JSON and a status, and closes it.
pub(crate) fn answer_json_once(
    status: u16,
    body: &str,
) -> (SocketAddr, JoinHandle<RecordedRequest>) {
    let length = body.len();
    answer_once(format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}"))
}

fn read(stream: &mut impl BufRead) -> RecordedRequest {
    let mut lines = std::iter::from_fn(|| {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a line");
        Some(line.trim_end().to_string()).filter(|line| !line.is_empty())
    });
    let line = lines.next().unwrap_or_default();
    let field = |line: String| {
        let (name, value) = line.split_once(": ").expect("a field");
        (name.to_ascii_lowercase(), value.to_string())
    };
    let mut sent =
        RecordedRequest { line, fields: lines.map(field).collect(), body: String::new() };
    let length = sent.field("content-length").map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    sent.body = String::from_utf8(body).expect("UTF-8");
    sent
}
