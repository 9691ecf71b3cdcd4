//! Frames of WebSockets, found in pieces of any size by the tunnel's reader and at once by an oracle that has all bytes.

use super::source::FuzzSource;
use super::websocket_frame::{FramePart, FrameReader, FrameSender};

/// A frame: where it begins, its length with the header, and whether it counts as a message.
type FoundFrame = (usize, u64, bool);

/// The frames of a stream, and the place of the first violation.
#[derive(Debug, Default, PartialEq, Eq)]
struct FoundFrames {
    frames: Vec<FoundFrame>,
    violation: Option<usize>,
}

/// Reads a stream of one side.
pub fn websocket_frames(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let is_client = source.one_in(2);
    let stream = if source.one_in(4) {
        source.rest().to_vec()
    } else {
        let mut stream = Vec::new();
        while !source.is_empty() && stream.len() < 2_000 {
            add_frame(&mut source, is_client, &mut stream);
        }
        // Cut anywhere, and perhaps changed at one place.
        stream.truncate(stream.len() - source.below(8).min(stream.len()));
        if source.one_in(3) && !stream.is_empty() {
            let at = source.below(stream.len());
            stream[at] ^= 1 << source.below(8);
        }
        stream
    };
    let whole = read_at_once(&stream, is_client);
    for piece_max in [1, 2, 3, 7, 64, stream.len().max(1)] {
        assert_eq!(read_in_pieces(&stream, is_client, piece_max), whole, "{stream:?}");
    }
}

/// Adds a frame that is nearly always allowed.
fn add_frame(source: &mut FuzzSource<'_>, is_client: bool, stream: &mut Vec<u8>) {
    let first = source.pick(&[0x81, 0x82, 0x01, 0x00, 0x80, 0x88, 0x89, 0x8A, 0xC1, 0x83, 0x8B]);
    let first = if source.one_in(16) { source.byte() } else { first };
    let length = source.pick(&[0, 1, 5, 124, 125, 126, 127, 300]);
    let mask = if is_client != source.one_in(32) { 0x80 } else { 0 };
    stream.push(first);
    match source.below(8) {
        0 => {
            stream.push(mask | 127);
            stream.extend((length as u64).to_be_bytes());
        }
        1 => {
            stream.push(mask | 126);
            stream.extend((length as u16).to_be_bytes());
        }
        _ if length > 125 => {
            stream.push(mask | 126);
            stream.extend((length as u16).to_be_bytes());
        }
        _ => stream.push(mask | length as u8),
    }
    if mask != 0 {
        stream.extend([source.byte(); 4]);
    }
    stream.extend(std::iter::repeat_n(0x81, length));
}

/// Reads with the tunnel's reader, which gets at most so many new bytes at a time.
fn read_in_pieces(stream: &[u8], is_client: bool, piece_max: usize) -> FoundFrames {
    let sender = if is_client { FrameSender::Client } else { FrameSender::Server };
    let (mut reader, mut found) = (FrameReader::new(sender), FoundFrames::default());
    // `at`: bytes that were passed. `end`: bytes that have arrived.
    let (mut at, mut end) = (0, 0);
    loop {
        match reader.next_part(&stream[at..end]) {
            Err(_) => {
                found.violation = Some(at);
                return found;
            }
            Ok(FramePart::Header(header)) => {
                found.frames.push((at, header.wire_bytes(), header.counts_as_message()));
                reader.pass_header(&header);
                at += header.header_bytes;
            }
            Ok(FramePart::Payload(length)) => {
                assert!(length > 0 && at + length <= end, "{length} bytes at {at} of {end}");
                // A payload may pass in parts.
                let length = length.min(piece_max);
                reader.pass_payload(length);
                at += length;
            }
            Ok(FramePart::Incomplete) if end == stream.len() => {
                assert!(end - at < 14, "{} bytes are kept", end - at);
                return found;
            }
            Ok(FramePart::Incomplete) => end = stream.len().min(end + piece_max),
        }
    }
}

/// Reads the whole stream, as the RFC describes it.
fn read_at_once(stream: &[u8], is_client: bool) -> FoundFrames {
    let (mut found, mut at, mut unfinished) = (FoundFrames::default(), 0_u64, false);
    while let Some(frame) = usize::try_from(at).ok().and_then(|at| stream.get(at..)) {
        let place = at as usize;
        if frame.len() < 2 {
            break;
        }
        let (fin, opcode) = (frame[0] >= 0x80, frame[0] % 16);
        let (masked, short) = (frame[1] >= 0x80, u64::from(frame[1] % 128));
        let control = opcode > 7;
        let wrong = masked != is_client
            || control && (!fin || short > 125)
            || opcode == 0 && !unfinished
            || (1..8).contains(&opcode) && unfinished;
        let wide = if short == 126 {
            2
        } else if short == 127 {
            8
        } else {
            0
        };
        let header = 2 + wide + if masked { 4 } else { 0 };
        if wrong {
            found.violation = Some(place);
            break;
        }
        if frame.len() < header {
            break;
        }
        let mut length = short;
        if wide > 0 {
            let mut number = [0; 8];
            number[8 - wide..].copy_from_slice(&frame[2..2 + wide]);
            length = u64::from_be_bytes(number);
        }
        if length > u64::MAX / 2 {
            found.violation = Some(place);
            break;
        }
        found.frames.push((place, length + header as u64, opcode != 0));
        if !control {
            unfinished = !fin;
        }
        at += length + header as u64;
    }
    found
}
