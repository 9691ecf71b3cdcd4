//! The gRPC frame: a flag, a length, and the message.

use bytes::Bytes;

/// Maximum bytes of a message. Clients of the proxy choose most of them: Envoy accepts 60 KiB of header fields, and may
/// copy one into several entries.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes of the flag and the length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Error in a body that should be one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// Fewer bytes than the length says, or none at all.
    Truncated,
    /// Bytes after the message.
    TrailingBytes,
    /// The flag is not one of gRPC.
    InvalidFlag,
    /// The message is compressed, which is not supported.
    Compressed,
    /// The length is more than [`MESSAGE_BYTES_MAX`].
    TooLong,
}

/// Decodes a body of one frame into its message.
pub(crate) fn decode(body: &[u8]) -> Result<&[u8], FrameError> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(FrameError::Truncated);
    };
    let [flag, a, b, c, d] = *prefix;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    match flag {
        0 => {}
        1 => return Err(FrameError::Compressed),
        _ => return Err(FrameError::InvalidFlag),
    }
    if length > MESSAGE_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    match message.len() {
        bytes if bytes < length => Err(FrameError::Truncated),
        bytes if bytes > length => Err(FrameError::TrailingBytes),
        _ => Ok(message),
    }
}

/// Encodes the frame of the message that `write` appends; `room` is its expected length.
pub(crate) fn encode(room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX_BYTES + room);
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    write(&mut out);
    let length = u32::try_from(out.len() - PREFIX_BYTES).expect("our messages are short");
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_whole_plain_message() {
        type DecodedFrame = Result<&'static [u8], FrameError>;
        let rows: [(&[u8], DecodedFrame); 12] = [
            (b"", Err(FrameError::Truncated)),
            (b"\0\0\0\0", Err(FrameError::Truncated)),
            (b"\0\0\0\0\0", Ok(b"")),
            (b"\0\0\0\0\x02ab", Ok(b"ab")),
            (b"\0\0\0\0\x02a", Err(FrameError::Truncated)),
            (b"\0\0\0\0\x02abc", Err(FrameError::TrailingBytes)),
            (b"\0\0\0\0\0\0\0\0\0\0", Err(FrameError::TrailingBytes)),
            (b"\x01\0\0\0\x02ab", Err(FrameError::Compressed)),
            (b"\x02\0\0\0\x02ab", Err(FrameError::InvalidFlag)),
            (b"{\"domain\":\"a\"}", Err(FrameError::InvalidFlag)),
            (b"\0\0\x10\0\x01ab", Err(FrameError::TooLong)),
            (b"\0\xff\xff\xff\xffab", Err(FrameError::TooLong)),
        ];
        for (body, want) in rows {
            assert_eq!(decode(body), want, "{body:?}");
        }
    }

    #[test]
    fn an_encoded_message_decodes_to_itself() {
        for length in [0, 1, 255, 256, MESSAGE_BYTES_MAX] {
            let message = vec![7; length];
            let framed = encode(16, |out| out.extend_from_slice(&message));
            assert_eq!(decode(&framed), Ok(&message[..]));
        }
    }
}
