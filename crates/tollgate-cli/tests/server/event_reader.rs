//! A client of `GET /api/events` over HTTP/1.1.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::harness::DEADLINE;

/// An open event stream.
pub(crate) struct EventReader {
    stream: BufReader<TcpStream>,
    /// The response up to its body.
    pub(crate) head: String,
    /// Text that arrived and is not read yet.
    text: String,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerEvent {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: Value,
    /// Length on the wire, in bytes.
    pub(crate) bytes: usize,
}

impl EventReader {
    /// Opens a stream with these header fields, each ended by a line break.
    pub(crate) fn open(address: SocketAddr, fields: &str) -> EventReader {
        let mut stream = TcpStream::connect(address).expect("the listener is open");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let request = format!("GET /api/events HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        EventReader { stream, head, text: String::new() }
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                match parse(&block) {
                    None => continue,
                    event => return event,
                }
            }
            let chunk = self.chunk()?;
            self.text += &chunk;
        }
    }

    /// The next event of this name.
    pub(crate) fn next_named(&mut self, name: &str) -> ServerEvent {
        loop {
            let event = self.next().unwrap_or_else(|| panic!("the stream ends without {name}"));
            if event.name == name {
                return event;
            }
        }
    }

    /// The next chunk of the body; `None` after the last, empty one.
    fn chunk(&mut self) -> Option<String> {
        let mut size = String::new();
        self.stream.read_line(&mut size).expect("a chunk");
        let size =
            usize::from_str_radix(size.trim_end(), 16).unwrap_or_else(|_| panic!("{size:?}"));
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).expect("a whole chunk");
        assert_eq!(chunk.split_off(size), b"\r\n");
        (size > 0).then(|| String::from_utf8(chunk).expect("events are UTF-8"))
    }
}

/// Reads the lines of an event; `None` for a comment.
pub(crate) fn parse(block: &str) -> Option<ServerEvent> {
    let (mut id, mut name, mut data) = (None, None, None);
    for line in block.trim_end().lines() {
        match line.split_once(": ").unwrap_or_else(|| panic!("{block:?}")) {
            ("", _) => {}
            ("id", value) => id = Some(value.to_string()),
            ("event", value) => name = Some(value.to_string()),
            ("data", value) => data = Some(serde_json::from_str(value).expect("JSON")),
            _ => panic!("{block:?}"),
        }
    }
    Some(ServerEvent { id: id?, name: name?, data: data?, bytes: block.len() })
}
