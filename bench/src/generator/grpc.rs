//! gRPC in HTTP/2 frames written by hand: a fixed number of streams on each connection, with a new one when
//! one is answered.
//!
//! A client library costs as much as the server, so the client would be the bottleneck. Requests are encoded
//! ahead. Answers are read only
//! as far as needed to know that they are right: the beginning of the message, and the end of the stream.
//! [`check`] makes one call with a complete client.

mod check;

pub use check::check;

use std::time::Duration;

use testkit::http2::{
    ACK, END_STREAM, FRAME_HEADER_BYTES, FrameHeader, WINDOW_BYTES, frame_kind, write_call,
    write_frame, write_start,
};
use testkit::traffic::SHOULD_RATE_LIMIT;

use super::requests::{EncodedRequests, RequestCursor};
use super::{ClientContext, LoadClient};

/// The first bytes of every answer: not compressed, below 16 MiB.
const ANSWER_BEGINS: [u8; 2] = [0, 0];
/// The first field of every answer: `overall_code` OK.
const ANSWER_CODE: [u8; 2] = [0x08, 0x01];

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
    pub fn new(messages: &'a EncodedRequests, streams: usize, index: usize) -> GrpcLoadClient<'a> {
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
        write_call(turn.out, id, SHOULD_RATE_LIMIT, message);
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
        write_start(turn.out);
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

#[cfg(test)]
mod tests {
    use super::*;

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
