//! gRPC in HTTP/2 frames written by hand: a fixed number of streams on each connection, with a new one when
//! one is answered.
//!
//! A client library costs as much as the server, so the client would be the bottleneck. Requests are encoded
//! ahead. Header fields are sent as any client sends them, in full once and then by index. Answers are read only
//! as far as needed to know that they are right: the beginning of the message, and the end of the stream.
//! [`check`] makes one call with a complete client.

mod check;

pub use check::check;

use std::time::Duration;

use super::requests::{RequestCursor, RequestList};
use super::{ClientContext, LoadClient};
use crate::envoy::PATH;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// Initial size of the flow-control window of each side.
const WINDOW_BYTES: u32 = 65_535;
/// Size of the server's window, which is never renewed: with the maximum the server can send 2 GiB.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// The first bytes of every answer: not compressed, below 16 MiB.
const ANSWER_BEGINS: [u8; 2] = [0, 0];
/// The first field of every answer: `overall_code` OK.
const ANSWER_CODE: [u8; 2] = [0x08, 0x01];

/// Types of frames (RFC 9113, section 6).
mod frame_kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// The setting for the size of the header table, and its default value.
const TABLE_SIZE: (u16, u32) = (1, 4_096);

/// A client with a few streams on one connection.
#[derive(Debug)]
pub struct GrpcLoadClient<'a> {
    messages: RequestCursor<'a>,
    /// The open streams. Bound: the number given to `new`.
    streams: Vec<GrpcStream>,
    next_id: u32,
    /// Bytes that may be sent before the server renews the window.
    window: i64,
}

#[derive(Clone, Copy, Debug)]
struct GrpcStream {
    id: u32,
    asked_at: Duration,
    /// True if the message has arrived.
    has_message: bool,
}

impl<'a> GrpcLoadClient<'a> {
    /// Makes the client of the connection at `index`; `messages` have their gRPC prefix.
    pub fn new(messages: &'a RequestList, streams: usize, index: usize) -> GrpcLoadClient<'a> {
        GrpcLoadClient {
            messages: RequestCursor::new(messages, index),
            streams: Vec::with_capacity(streams),
            next_id: 1,
            window: i64::from(WINDOW_BYTES),
        }
    }

    /// Opens a stream: sends header fields and the message, and ends the client's side.
    fn open_stream(&mut self, turn: &mut ClientContext<'_>) -> Result<GrpcStream, String> {
        let (id, message) = (self.next_id, self.messages.next_request());
        self.next_id += 2;
        self.window -= message.len() as i64;
        if self.window < 0 {
            return Err("the server takes no more: it does not renew its window in time".into());
        }
        match id {
            1 => write_frame(turn.out, frame_kind::HEADERS, END_HEADERS, id, &first_header_block()),
            _ => write_frame(turn.out, frame_kind::HEADERS, END_HEADERS, id, &NEXT_HEADER_BLOCK),
        }
        write_frame(turn.out, frame_kind::DATA, END_STREAM, id, message);
        Ok(GrpcStream { id, asked_at: turn.now, has_message: false })
    }

    /// Handles one frame from the server.
    fn handle_frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match head.kind {
            frame_kind::DATA => {
                let code = payload.get(5..7);
                if !payload.starts_with(&ANSWER_BEGINS) || code != Some(&ANSWER_CODE) {
                    return Err("a message that does not say OK".into());
                }
                self.stream(head.stream)?.has_message = true;
            }
            frame_kind::HEADERS if head.flags & END_STREAM != 0 => {
                let stream = *self.stream(head.stream)?;
                if !stream.has_message {
                    return Err("an answer without a message".into());
                }
                turn.count_answers(1, stream.asked_at);
                let next = self.open_stream(turn)?;
                *self.stream(head.stream)? = next;
            }
            frame_kind::HEADERS => {}
            frame_kind::SETTINGS if head.flags & ACK == 0 => {
                check_settings(payload)?;
                write_frame(turn.out, frame_kind::SETTINGS, ACK, 0, &[]);
            }
            frame_kind::PING if head.flags & ACK == 0 => {
                write_frame(turn.out, frame_kind::PING, ACK, 0, payload)
            }
            frame_kind::SETTINGS | frame_kind::PING => {}
            frame_kind::WINDOW_UPDATE => {
                let bytes: [u8; 4] = payload.try_into().map_err(|_| "a broken WINDOW_UPDATE")?;
                if head.stream == 0 {
                    self.window += i64::from(u32::from_be_bytes(bytes));
                }
            }
            other => return Err(format!("a frame of the kind {other}")),
        }
        Ok(())
    }

    fn stream(&mut self, id: u32) -> Result<&mut GrpcStream, String> {
        let stream = self.streams.iter_mut().find(|stream| stream.id == id);
        stream.ok_or_else(|| format!("an answer on stream {id}, which has no question"))
    }
}

impl LoadClient for GrpcLoadClient<'_> {
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String> {
        turn.out.extend_from_slice(PREFACE);
        write_frame(turn.out, frame_kind::SETTINGS, 0, 0, &[]);
        let more = WINDOW_BYTES_MAX - WINDOW_BYTES;
        write_frame(turn.out, frame_kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        for _ in 0..self.streams.capacity() {
            let stream = self.open_stream(turn)?;
            self.streams.push(stream);
        }
        Ok(())
    }

    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String> {
        let mut heard = 0;
        while let Some((head, rest)) = FrameHeader::read(&received[heard..]) {
            let Some(payload) = rest.get(..head.payload_bytes) else { break };
            self.handle_frame(head, payload, turn)?;
            heard += FRAME_HEADER_BYTES + head.payload_bytes;
        }
        Ok(heard)
    }
}

/// The header of a frame, nine bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHeader {
    payload_bytes: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHeader {
    /// Reads a frame header. Also returns the bytes after it; `None` if it is incomplete.
    fn read(bytes: &[u8]) -> Option<(FrameHeader, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let [a, b, c, kind, flags, id @ ..] = *head;
        let payload_bytes = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        Some((FrameHeader { payload_bytes, kind, flags, stream }, rest))
    }
}

fn write_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Checks the server's settings: header fields are sent by index in a table of the default size.
fn check_settings(payload: &[u8]) -> Result<(), String> {
    for setting in payload.chunks_exact(6) {
        let name = u16::from_be_bytes([setting[0], setting[1]]);
        let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
        if name == TABLE_SIZE.0 && value < TABLE_SIZE.1 {
            return Err(format!("the server remembers header fields of {value} bytes only"));
        }
    }
    Ok(())
}

/// The header fields of the first call on a connection, in full, so that the server adds them to its table. They
/// are encoded in HPACK (RFC 7541) without Huffman coding.
fn first_header_block() -> Vec<u8> {
    // From the static table: POST, http.
    let mut block = vec![0x83, 0x86];
    // With a name from the static table: `:path`, `:authority`, `content-type`; with a new name; `user-agent`.
    let fields: [(u8, &[&str]); 5] = [
        (0x40 | 4, &[PATH]),
        (0x40 | 1, &["localhost"]),
        (0x40 | 31, &["application/grpc"]),
        (0x40, &["te", "trailers"]),
        (0x40 | 58, &["bench"]),
    ];
    for (name, texts) in fields {
        block.push(name);
        for text in texts {
            block.push(u8::try_from(text.len()).expect("shorter than 127 bytes"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The header fields of every later call by index; the field that was sent last has index 62.
const NEXT_HEADER_BLOCK: [u8; 7] =
    [0x83, 0x86, 0x80 | 66, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, frame_kind::DATA, END_STREAM, 3, b"abc");
        assert_eq!(bytes, b"\0\0\x03\0\x01\0\0\0\x03abc");
        let head =
            FrameHeader { payload_bytes: 3, kind: frame_kind::DATA, flags: END_STREAM, stream: 3 };
        assert_eq!(FrameHeader::read(&bytes), Some((head, &b"abc"[..])));
        assert_eq!(FrameHeader::read(&bytes[..8]), None);
    }

    #[test]
    fn a_small_table_of_header_fields_is_refused() {
        let rows: [(&[u8], bool); 3] = [
            (b"", true),
            (b"\0\x01\0\0\x10\0", true),
            (b"\0\x03\0\0\0\x64\0\x01\0\0\x0f\xff", false),
        ];
        for (payload, expected) in rows {
            assert_eq!(check_settings(payload).is_ok(), expected, "{payload:?}");
        }
    }
}
