//! A client of raw HTTP/2 frames: sends what no library would, and sees what becomes of each stream.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use testkit::http2::{self, END_HEADERS, END_STREAM, FrameHeader, frame_kind};

use crate::harness::DEADLINE;

/// The outcome of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOutcome {
    /// The body of the response so far.
    pub(crate) data: Vec<u8>,
    /// True if the response is complete.
    pub(crate) complete: bool,
    /// True if the server ended the stream or the connection.
    pub(crate) ended_by_server: bool,
}

/// A connection.
pub(crate) struct Http2Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Http2Wire {
    /// Connects from this loopback address and begins to speak HTTP/2, with windows that are never used up.
    pub(crate) fn connect_from(from: Ipv4Addr, address: SocketAddr) -> Http2Wire {
        let mut start = Vec::new();
        http2::write_start(&mut start);
        Http2Wire::connect_with(from, address, &start)
    }

    /// Connects and begins with these bytes.
    pub(crate) fn connect_with(from: Ipv4Addr, address: SocketAddr, start: &[u8]) -> Http2Wire {
        let stream = testkit::net::connect_from(from, address).expect("the listener is open");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("a socket");
        let mut wire = Http2Wire { stream, unread: Vec::new() };
        let _ = wire.send(start);
        wire
    }

    /// Sends bytes; `Err` if the server has closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends one frame.
    pub(crate) fn send_frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut frame = Vec::new();
        http2::write_frame(&mut frame, kind, flags, stream, payload);
        self.send(&frame)
    }

    /// Sends a request: its fields and a body in one frame, if there is one.
    pub(crate) fn send_request(
        &mut self,
        stream: u32,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        let block = http2::header_block(fields);
        if body.is_empty() {
            return self.send_frame(frame_kind::HEADERS, END_HEADERS | END_STREAM, stream, &block);
        }
        self.send_frame(frame_kind::HEADERS, END_HEADERS, stream, &block)?;
        self.send_frame(frame_kind::DATA, END_STREAM, stream, body)
    }

    /// Reads frames until the response on a stream is complete, or the server ends the stream or the connection.
    pub(crate) fn read_stream(&mut self, stream: u32) -> StreamOutcome {
        let mut outcome = StreamOutcome::default();
        loop {
            let Some((header, payload)) = self.read_frame() else {
                return StreamOutcome { ended_by_server: true, ..outcome };
            };
            let ends = header.flags & END_STREAM != 0;
            match header.kind {
                frame_kind::GOAWAY => return StreamOutcome { ended_by_server: true, ..outcome },
                frame_kind::RST_STREAM if header.stream == stream => {
                    return StreamOutcome { ended_by_server: true, ..outcome };
                }
                frame_kind::DATA if header.stream == stream => {
                    outcome.data.extend_from_slice(&payload);
                    outcome.complete = ends;
                }
                frame_kind::HEADERS if header.stream == stream => outcome.complete = ends,
                frame_kind::SETTINGS if header.flags & http2::ACK == 0 => {
                    let _ = self.send_frame(frame_kind::SETTINGS, http2::ACK, 0, &[]);
                }
                _ => {}
            }
            if outcome.complete {
                return outcome;
            }
        }
    }

    /// Reads one frame; `None` at the end of the connection.
    pub(crate) fn read_frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            if let Some((header, rest)) = FrameHeader::read(&self.unread)
                && rest.len() >= header.payload_bytes
            {
                let payload = rest[..header.payload_bytes].to_vec();
                self.unread.drain(..http2::FRAME_HEADER_BYTES + header.payload_bytes);
                return Some((header, payload));
            }
            let mut piece = [0; 16_384];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(length) => self.unread.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame and no end: {error}"),
            }
        }
    }
}
