//! The decisions of a direction: which of the received bytes may pass, which wait, and which are discarded.

use tollgate::Micros;

use super::{PassEnd, TunnelDirection};
use crate::data_plane::gateway::websocket::close_notice::CloseNotice;
use crate::data_plane::gateway::websocket::frame::{FramePart, WebSocketFrameHeader};
use crate::data_plane::gateway::websocket::frame_budget::FrameVerdict;
use crate::data_plane::gateway::websocket::tunnel_metrics::TunnelMetrics;

impl TunnelDirection {
    /// Decides how many more of these bytes may pass.
    pub(super) fn admit(&mut self, bytes: &[u8], now: Micros, metrics: &TunnelMetrics) -> PassEnd {
        loop {
            let Some(frames) = &mut self.frames else {
                self.admitted = bytes.len();
                return PassEnd::NeedsMore;
            };
            let is_at_boundary = frames.is_at_boundary();
            if is_at_boundary && self.sender_closed {
                self.is_closed = true;
            }
            if self.is_closed || self.is_unreadable {
                return PassEnd::NeedsMore;
            }
            if is_at_boundary && self.close_frame.is_some() {
                return PassEnd::AtBoundary;
            }
            let verdict = match frames.next_part(&bytes[self.admitted..]) {
                Ok(FramePart::Incomplete) => return PassEnd::NeedsMore,
                Ok(FramePart::Header(header)) => self.admit_header(&header, now, metrics),
                Ok(FramePart::Payload(length)) => self.admit_payload(length, now),
                // The same bytes are read again when nothing is left to write, so that a full receiver does not hide it.
                Err(_) if self.admitted > 0 => return PassEnd::AtBoundary,
                Err(error) => {
                    self.is_unreadable = true;
                    FrameVerdict::Close(CloseNotice::protocol_error(error))
                }
            };
            match verdict {
                FrameVerdict::Pass(length) => {
                    self.admitted += length;
                    self.wait_until = None;
                }
                FrameVerdict::WaitUntil(instant) => {
                    if self.wait_until.is_none() {
                        metrics.count_wait(self.sender);
                    }
                    self.wait_until = Some(instant);
                    return PassEnd::RateFull;
                }
                FrameVerdict::Close(notice) => return PassEnd::Close(notice),
            }
        }
    }

    fn admit_header(
        &mut self,
        header: &WebSocketFrameHeader,
        now: Micros,
        metrics: &TunnelMetrics,
    ) -> FrameVerdict {
        let verdict = match header.is_close() {
            // Each direction has one, and it ends what the limits are for.
            true => FrameVerdict::Pass(header.header_bytes),
            false => self.budget.admit_frame(header, now),
        };
        if let (FrameVerdict::Pass(_), Some(frames)) = (&verdict, &mut self.frames) {
            frames.pass_header(header);
            self.sender_closed = header.is_close();
            if header.counts_as_message() {
                metrics.count_message(self.sender);
            }
        }
        verdict
    }

    fn admit_payload(&mut self, length: usize, now: Micros) -> FrameVerdict {
        // The frame in progress is finished at once when the tunnel closes, and a Close frame always passes.
        let verdict = match self.close_frame.is_some() || self.sender_closed {
            true => FrameVerdict::Pass(length),
            false => self.budget.admit_payload(length, now),
        };
        if let (FrameVerdict::Pass(length), Some(frames)) = (&verdict, &mut self.frames) {
            frames.pass_payload(*length);
        }
        verdict
    }

    /// Returns true if a complete Close frame is among the bytes that wait.
    pub(super) fn holds_close_frame(&self) -> bool {
        let Some(mut frames) = self.frames.clone() else { return false };
        let mut rest = &self.held[self.admitted..];
        let mut is_close = false;
        loop {
            let length = match frames.next_part(rest) {
                Ok(FramePart::Header(header)) => {
                    frames.pass_header(&header);
                    is_close = header.is_close();
                    header.header_bytes
                }
                Ok(FramePart::Payload(length)) => {
                    frames.pass_payload(length);
                    length
                }
                Ok(FramePart::Incomplete) | Err(_) => return false,
            };
            if is_close && frames.is_at_boundary() {
                return true;
            }
            rest = &rest[length..];
        }
    }

    /// Discards bytes behind a Close frame, and looks for the sender's own Close frame in them. Returns their number.
    pub(super) fn discard(&mut self, bytes: &[u8]) -> usize {
        let mut discarded = 0;
        while let Some(frames) = self.frames.as_mut().filter(|_| !self.is_unreadable) {
            match frames.next_part(&bytes[discarded..]) {
                Ok(FramePart::Incomplete) => return discarded,
                Ok(FramePart::Header(header)) => {
                    frames.pass_header(&header);
                    self.sender_closed |= header.is_close();
                    discarded += header.header_bytes;
                }
                Ok(FramePart::Payload(length)) => {
                    frames.pass_payload(length);
                    discarded += length;
                }
                Err(_) => self.is_unreadable = true,
            }
        }
        bytes.len()
    }
}
