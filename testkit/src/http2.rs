//! HTTP/2 frames and header blocks written by hand, for gRPC clients that must cost little and do the same in every
//! run.

/// The first bytes of every connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 9;
/// Initial size of the flow-control window of each side.
pub const WINDOW_BYTES: u32 = 65_535;
/// Size of the server's window, which is never renewed: with the maximum the server can send 2 GiB.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// Types of frames (RFC 9113, section 6).
pub mod frame_kind {
    /// A part of a body.
    pub const DATA: u8 = 0;
    /// Header fields or trailers.
    pub const HEADERS: u8 = 1;
    /// A priority, which nobody obeys any more.
    pub const PRIORITY: u8 = 2;
    /// The end of a stream before its time.
    pub const RST_STREAM: u8 = 3;
    /// Settings of the connection.
    pub const SETTINGS: u8 = 4;
    /// A question that must be answered.
    pub const PING: u8 = 6;
    /// The end of the connection.
    pub const GOAWAY: u8 = 7;
    /// Renewal of a flow-control window.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More header fields.
    pub const CONTINUATION: u8 = 9;
}

/// The flag of the last frame of a stream.
pub const END_STREAM: u8 = 1;
/// The flag of an acknowledgement.
pub const ACK: u8 = 1;
/// The flag of the last frame of header fields.
pub const END_HEADERS: u8 = 4;

/// The header of a frame, nine bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload that follows.
    pub payload_bytes: usize,
    /// One of [`frame_kind`].
    pub kind: u8,
    /// The flags.
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Reads a frame header. Also returns the bytes after it; `None` if it is incomplete.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(FrameHeader, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let [a, b, c, kind, flags, id @ ..] = *head;
        let payload_bytes = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        Some((FrameHeader { payload_bytes, kind, flags, stream }, rest))
    }
}

/// Writes a frame.
pub fn write_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Writes the start of a connection: the preface, settings, and a window that never has to be renewed.
pub fn write_start(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    write_frame(out, frame_kind::SETTINGS, 0, 0, &[]);
    let more = WINDOW_BYTES_MAX - WINDOW_BYTES;
    write_frame(out, frame_kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

/// Writes a gRPC call of this path on a stream: header fields, the message, and the end of the client's side. The
/// first stream of a connection, 1, sends the fields in full and the others by index, as any client does.
pub fn write_call(out: &mut Vec<u8>, stream: u32, path: &str, message: &[u8]) {
    match stream {
        1 => write_frame(out, frame_kind::HEADERS, END_HEADERS, 1, &first_header_block(path)),
        _ => write_frame(out, frame_kind::HEADERS, END_HEADERS, stream, &NEXT_HEADER_BLOCK),
    }
    write_frame(out, frame_kind::DATA, END_STREAM, stream, message);
}

/// Encodes header fields in HPACK as they are, each in full, without Huffman coding and without adding to the table.
#[must_use]
pub fn header_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            write_length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Writes a length with a prefix of seven bits (RFC 7541, section 5.1).
fn write_length(out: &mut Vec<u8>, length: usize) {
    if length < 127 {
        out.push(length as u8);
        return;
    }
    out.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        out.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// The header fields of the first call on a connection, in full, so that the server adds them to its table. They
/// are encoded in HPACK (RFC 7541) without Huffman coding.
fn first_header_block(path: &str) -> Vec<u8> {
    // From the static table: POST, http.
    let mut block = vec![0x83, 0x86];
    // With a name from the static table: `:path`, `:authority`, `content-type`; with a new name; `user-agent`.
    let fields: [(u8, &[&str]); 5] = [
        (0x40 | 4, &[path]),
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
    fn lengths_are_written_in_seven_bits_and_more() {
        for (length, bytes) in [(0, vec![0]), (126, vec![126]), (127, vec![127, 0])] {
            let mut out = Vec::new();
            write_length(&mut out, length);
            assert_eq!(out, bytes, "{length}");
        }
        let mut out = Vec::new();
        // The example of RFC 7541 has five bits; with seven: 1337 - 127 = 1210 = 9 * 128 + 58.
        write_length(&mut out, 1_337);
        assert_eq!(out, [127, 58 + 128, 9]);
        assert_eq!(header_block(&[("a", "bc")]), [0, 1, b'a', 2, b'b', b'c']);
    }
}
