//! Frames of the WebSocket protocol (RFC 6455, section 5), as far as a tunnel has to know them: where each begins and
//! ends, and which of them begin a message. Payloads are neither kept nor read, and compressed ones stay compressed.

/// The longest payload of a control frame.
pub(crate) const CONTROL_BYTES_MAX: usize = 125;

/// The opcode of a frame that continues a message.
const CONTINUATION: u8 = 0;
/// The opcode of a Close frame.
const CLOSE: u8 = 8;

/// The side that sends frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameSender {
    /// The client masks its frames.
    Client,
    /// The server does not.
    Server,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WebSocketFrameHeader {
    opcode: u8,
    is_final: bool,
    /// Bytes of the header itself.
    pub(crate) header_bytes: usize,
    /// Bytes of the payload.
    pub(crate) payload_bytes: u64,
}

impl WebSocketFrameHeader {
    /// Returns true for Close, Ping, Pong and the reserved control frames.
    pub(crate) fn is_control(&self) -> bool {
        is_control(self.opcode)
    }

    pub(crate) fn is_close(&self) -> bool {
        self.opcode == CLOSE
    }

    /// Returns true for each frame that counts as a message: the first of a message, and control frames.
    pub(crate) fn counts_as_message(&self) -> bool {
        self.opcode != CONTINUATION
    }

    /// Returns true for a frame that carries nothing on from the middle of a message. Peers have no use for it, and without
    /// a charge a single message could have any number.
    pub(crate) fn is_empty_fragment(&self) -> bool {
        self.opcode == CONTINUATION && !self.is_final && self.payload_bytes == 0
    }

    /// Bytes of the whole frame on the wire.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.payload_bytes + self.header_bytes as u64
    }
}

/// A violation of the protocol that makes the rest of a stream unreadable, or read differently by different servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameViolation {
    LengthTooLarge,
    FragmentedControl,
    LongControl,
    Unmasked,
    Masked,
    StrayContinuation,
    UnfinishedMessage,
}

impl FrameViolation {
    /// The reason for a Close frame.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            FrameViolation::LengthTooLarge => "frame length is not below 2^63",
            FrameViolation::FragmentedControl => "control frame is fragmented",
            FrameViolation::LongControl => "control frame is longer than 125 bytes",
            FrameViolation::Unmasked => "frame from the client is not masked",
            FrameViolation::Masked => "frame from the server is masked",
            FrameViolation::StrayContinuation => "continuation frame without a message",
            FrameViolation::UnfinishedMessage => "new message inside a fragmented one",
        }
    }
}

/// The next part of a stream of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramePart {
    /// The bytes end before a header does.
    Incomplete,
    /// A header. The reader stays in front of it until [`FrameReader::pass_header`].
    Header(WebSocketFrameHeader),
    /// Bytes of a payload. The reader stays in front of them until [`FrameReader::pass_payload`].
    Payload(usize),
}

/// Finds the frames in one direction of a connection, in pieces of any size. A header that is not complete is read again
/// from its beginning, so the caller keeps its bytes: fewer than fourteen.
#[derive(Clone, Debug)]
pub(crate) struct FrameReader {
    sender: FrameSender,
    /// True between the first and the last frame of a message.
    in_message: bool,
    /// Bytes of the current frame's payload that have not passed.
    payload_left: u64,
}

impl FrameReader {
    pub(crate) fn new(sender: FrameSender) -> FrameReader {
        FrameReader { sender, in_message: false, payload_left: 0 }
    }

    /// Returns true between two frames.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.payload_left == 0
    }

    /// The part that begins with these bytes.
    pub(crate) fn next_part(&self, bytes: &[u8]) -> Result<FramePart, FrameViolation> {
        if bytes.is_empty() {
            return Ok(FramePart::Incomplete);
        }
        if self.payload_left > 0 {
            let left = usize::try_from(self.payload_left).unwrap_or(usize::MAX);
            return Ok(FramePart::Payload(left.min(bytes.len())));
        }
        let &[first, second, ref rest @ ..] = bytes else { return Ok(FramePart::Incomplete) };
        self.check_start(first, second)?;
        let length_bytes = match second & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
        if rest.len() < length_bytes + mask_bytes {
            return Ok(FramePart::Incomplete);
        }
        let extended = rest[..length_bytes].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if extended >> 63 == 1 {
            return Err(FrameViolation::LengthTooLarge);
        }
        Ok(FramePart::Header(WebSocketFrameHeader {
            opcode: first & 0x0F,
            is_final: first & 0x80 != 0,
            header_bytes: 2 + length_bytes + mask_bytes,
            payload_bytes: if length_bytes == 0 { u64::from(second & 0x7F) } else { extended },
        }))
    }

    /// Checks all that the first two bytes of a frame say. Bits and opcodes of extensions are left to the peers.
    fn check_start(&self, first: u8, second: u8) -> Result<(), FrameViolation> {
        let (opcode, is_final) = (first & 0x0F, first & 0x80 != 0);
        match (self.sender, second & 0x80 != 0) {
            (FrameSender::Client, false) => return Err(FrameViolation::Unmasked),
            (FrameSender::Server, true) => return Err(FrameViolation::Masked),
            _ => {}
        }
        match opcode {
            _ if is_control(opcode) && !is_final => Err(FrameViolation::FragmentedControl),
            _ if is_control(opcode) && usize::from(second & 0x7F) > CONTROL_BYTES_MAX => {
                Err(FrameViolation::LongControl)
            }
            CONTINUATION if !self.in_message => Err(FrameViolation::StrayContinuation),
            _ if opcode != CONTINUATION && !is_control(opcode) && self.in_message => {
                Err(FrameViolation::UnfinishedMessage)
            }
            _ => Ok(()),
        }
    }

    /// Moves behind a header.
    pub(crate) fn pass_header(&mut self, header: &WebSocketFrameHeader) {
        self.payload_left = header.payload_bytes;
        if !header.is_control() {
            self.in_message = !header.is_final;
        }
    }

    /// Moves behind bytes of a payload.
    pub(crate) fn pass_payload(&mut self, bytes: usize) {
        self.payload_left -= bytes as u64;
    }
}

fn is_control(opcode: u8) -> bool {
    opcode >= CLOSE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of whole frames in these bytes and whether each counts as a message, or the error.
    fn read(sender: FrameSender, bytes: &[u8]) -> Result<Vec<(u64, bool)>, FrameViolation> {
        let (mut reader, mut at, mut frames) = (FrameReader::new(sender), 0, Vec::new());
        loop {
            match reader.next_part(&bytes[at..])? {
                FramePart::Incomplete => return Ok(frames),
                FramePart::Header(header) => {
                    reader.pass_header(&header);
                    frames.push((header.wire_bytes(), header.counts_as_message()));
                    at += header.header_bytes;
                }
                FramePart::Payload(length) => {
                    reader.pass_payload(length);
                    at += length;
                }
            }
        }
    }

    #[test]
    fn frames_have_lengths_of_three_forms() {
        // Bytes | lengths of frames
        let rows: [(&[u8], &[u64]); 8] = [
            (&[], &[]),
            (&[0x82], &[]),
            (&[0x82, 0], &[2]),
            (&[0x81, 3, b'a'], &[5]),
            (&[0x82, 126, 1], &[]),
            (&[0x82, 126, 1, 0], &[260]),
            (&[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0], &[(1 << 32) + 10]),
            (&[0x82, 1, b'x', 0x89, 0, 0x82, 126, 0, 1, b'y'], &[3, 2, 5]),
        ];
        for (bytes, want) in rows {
            let frames = read(FrameSender::Server, bytes).unwrap();
            assert_eq!(frames.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), want);
        }
        // A mask is four bytes more, and is complete with its last.
        assert_eq!(read(FrameSender::Client, &[0x81, 0x80, 1, 2, 3]), Ok(vec![]));
        assert_eq!(read(FrameSender::Client, &[0x81, 0x80, 1, 2, 3, 4]), Ok(vec![(6, true)]));
    }

    #[test]
    fn fragments_count_once_and_control_frames_between_them_too() {
        let bytes = [0x01, 1, b'a', 0x89, 0, 0x00, 0, 0x8A, 0, 0x80, 1, b'b', 0x82, 0];
        let counts: Vec<bool> =
            read(FrameSender::Server, &bytes).unwrap().iter().map(|(_, counts)| *counts).collect();
        assert_eq!(counts, [true, true, false, true, false, true]);
    }

    #[test]
    fn violations_are_found_at_the_second_byte_and_wrong_lengths_with_the_length() {
        use FrameSender::{Client, Server};
        use FrameViolation::*;
        let rows: [(FrameSender, &[u8], Option<FrameViolation>); 17] = [
            (Client, &[0x81, 0x01], Some(Unmasked)),
            (Server, &[0x81, 0x81], Some(Masked)),
            (Server, &[0x09, 0], Some(FragmentedControl)),
            (Server, &[0x89, 126], Some(LongControl)),
            (Server, &[0x88, 127], Some(LongControl)),
            (Server, &[0x89, 125], None),
            (Server, &[0x80, 0], Some(StrayContinuation)),
            (Server, &[0x00, 0], Some(StrayContinuation)),
            (Server, &[0x81, 0, 0x80, 0], Some(StrayContinuation)),
            (Server, &[0x01, 0, 0x82, 0], Some(UnfinishedMessage)),
            (Server, &[0x01, 0, 0x02, 0], Some(UnfinishedMessage)),
            (Server, &[0x01, 0, 0x80, 0, 0x82, 0], None),
            (Server, &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], Some(LengthTooLarge)),
            (Server, &[0x82, 127, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF], None),
            // Extensions: reserved bits and opcodes.
            (Server, &[0xF1, 0, 0xC2, 0, 0x83, 0, 0x8B, 0, 0x8F, 0], None),
            (Server, &[0x03, 0, 0x84, 0], Some(UnfinishedMessage)),
            (Server, &[0x0B, 0], Some(FragmentedControl)),
        ];
        for (sender, bytes, want) in rows {
            assert_eq!(read(sender, bytes).err(), want, "{bytes:?}");
        }
    }
}
