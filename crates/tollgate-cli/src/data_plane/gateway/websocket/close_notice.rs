//! The end of a WebSocket by the gateway: why, and the Close frame that tells a peer.

use super::frame::{CONTROL_BYTES_MAX, FrameSender, FrameViolation};

/// The longest reason in a Close frame, in bytes.
const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

/// The cause of an end, and the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCause {
    /// A peer closed the WebSocket or disconnected.
    Peer,
    Messages,
    Bytes,
    MessageBytes,
    ProtocolError,
    Idle,
    Lifetime,
    Drain,
}

impl CloseCause {
    /// All causes, in the order of their numbers.
    pub(crate) const ALL: [CloseCause; 8] = [
        CloseCause::Peer,
        CloseCause::Messages,
        CloseCause::Bytes,
        CloseCause::MessageBytes,
        CloseCause::ProtocolError,
        CloseCause::Idle,
        CloseCause::Lifetime,
        CloseCause::Drain,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            CloseCause::Peer => "peer",
            CloseCause::Messages => "messages",
            CloseCause::Bytes => "bytes",
            CloseCause::MessageBytes => "message_bytes",
            CloseCause::ProtocolError => "protocol_error",
            CloseCause::Idle => "idle",
            CloseCause::Lifetime => "lifetime",
            CloseCause::Drain => "drain",
        }
    }
}

/// The message of a Close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloseNotice {
    pub(crate) cause: CloseCause,
    code: u16,
    /// At most [`REASON_BYTES_MAX`] are sent.
    reason: Box<str>,
}

impl CloseNotice {
    pub(crate) fn new(cause: CloseCause, code: u16, reason: impl Into<Box<str>>) -> CloseNotice {
        CloseNotice { cause, code, reason: reason.into() }
    }

    pub(crate) fn protocol_error(error: FrameViolation) -> CloseNotice {
        CloseNotice::new(CloseCause::ProtocolError, 1_002, error.reason())
    }

    pub(crate) fn idle() -> CloseNotice {
        CloseNotice::new(CloseCause::Idle, 1_001, "connection was idle for too long")
    }

    pub(crate) fn lifetime() -> CloseNotice {
        CloseNotice::new(CloseCause::Lifetime, 1_001, "connection reached its longest lifetime")
    }

    pub(crate) fn drain() -> CloseNotice {
        CloseNotice::new(CloseCause::Drain, 1_012, "server restarts: connect again")
    }

    /// The Close frame that goes to the peer of `sender`. A frame in place of the client's is masked.
    pub(crate) fn frame(&self, sender: FrameSender) -> Vec<u8> {
        let code = match (self.code, sender) {
            // Servers of WebSockets restart, clients go away.
            (1_012, FrameSender::Client) => 1_001,
            (code, _) => code,
        };
        let reason = &self.reason[..self.reason.floor_char_boundary(REASON_BYTES_MAX)];
        let payload = code.to_be_bytes().into_iter().chain(reason.bytes());
        let length = u8::try_from(2 + reason.len()).expect("at most 125");
        match sender {
            FrameSender::Server => [0x88, length].into_iter().chain(payload).collect(),
            FrameSender::Client => {
                let mask = random_mask();
                let masked = payload.zip(mask.into_iter().cycle()).map(|(byte, mask)| byte ^ mask);
                [0x88, 0x80 | length].into_iter().chain(mask).chain(masked).collect()
            }
        }
    }
}

/// A mask for one frame. Without randomness the mask is zero, which peers accept: the text is not an attacker's.
fn random_mask() -> [u8; 4] {
    let mut mask = [0; 4];
    let _ = aws_lc_rs::rand::fill(&mut mask);
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_frames_have_a_code_and_a_reason() {
        let notice = CloseNotice::new(CloseCause::Messages, 1_008, "too many");
        let frame = notice.frame(FrameSender::Server);
        assert_eq!(&frame[..4], [0x88, 10, 0x03, 0xF0]);
        assert_eq!(&frame[4..], b"too many");
        let frame = notice.frame(FrameSender::Client);
        assert_eq!(&frame[..2], [0x88, 0x8A]);
        let unmasked: Vec<u8> = frame[6..]
            .iter()
            .zip(frame[2..6].iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        assert_eq!(unmasked, b"\x03\xF0too many");
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let notice = CloseNotice::new(CloseCause::Messages, 1_008, "é".repeat(100));
        let frame = notice.frame(FrameSender::Server);
        assert_eq!((frame.len(), frame[1]), (2 + 2 + 122, 124));
        assert!(std::str::from_utf8(&frame[4..]).is_ok());
    }

    #[test]
    fn causes_are_numbered_in_order() {
        for (number, cause) in CloseCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
        }
    }
}
