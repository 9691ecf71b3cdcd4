//! The limits on the frames of one direction of one connection. Pure: time is an argument, and no store is asked, because
//! the connection alone has the counts.

use std::sync::Arc;

use tollgate::algorithm::{State, charge, judge};
use tollgate::{Limit, Micros};
use tollgate_rules::websocket_limits::{ExcessPolicy, WebSocketLimits};

use super::close_notice::{CloseCause, CloseNotice};
use super::frame::{FrameSender, WebSocketFrameHeader};

/// Payloads that wait for a rate pass in pieces of at least this part of the rate's capacity: smaller ones would wake the
/// connection more often.
const PIECES_OF_CAPACITY: u64 = 8;

/// The unit that a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameUnit {
    Messages,
    Bytes,
}

/// One rate and its count.
#[derive(Debug)]
struct FrameRate {
    limit: Arc<Limit>,
    state: State,
    unit: FrameUnit,
    /// The rules that this rate comes from.
    rules: Arc<WebSocketLimits>,
}

impl FrameRate {
    /// Units of a frame that are charged with its header. A frame that waits pays for its payload piece by piece, since it
    /// may be larger than the capacity.
    fn cost_of(&self, header: &WebSocketFrameHeader) -> u64 {
        match (self.unit, self.rules.on_excess) {
            (FrameUnit::Messages, _) => {
                u64::from(header.counts_as_message() || header.is_empty_fragment())
            }
            (FrameUnit::Bytes, ExcessPolicy::Close) => header.wire_bytes(),
            (FrameUnit::Bytes, ExcessPolicy::Wait) => {
                self.limit.capacity().min(header.header_bytes as u64)
            }
        }
    }

    fn shapes_payload(&self) -> bool {
        self.unit == FrameUnit::Bytes && self.rules.on_excess == ExcessPolicy::Wait
    }

    fn notice(&self) -> CloseNotice {
        let (cause, unit, rate) = match self.unit {
            FrameUnit::Messages => (CloseCause::Messages, "message", &self.rules.messages),
            FrameUnit::Bytes => (CloseCause::Bytes, "byte", &self.rules.bytes),
        };
        let text = rate.as_ref().map_or("", |(_, text)| text);
        let reason = format!("{unit} rate of {text} exceeded");
        CloseNotice::new(cause, self.rules.close_code, reason)
    }
}

/// The decision about the next part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameVerdict {
    /// Number of bytes that may pass.
    Pass(usize),
    /// Nothing may pass before this instant.
    WaitUntil(Micros),
    /// The connection has to end.
    Close(CloseNotice),
}

/// The limits on one direction and their counts.
#[derive(Debug, Default)]
pub(crate) struct FrameBudget {
    /// Bound: two for each rule of a request, which are at most as many as a decision has limits.
    rates: Box<[FrameRate]>,
    /// The longest message in bytes on the wire.
    message_bytes_max: Option<u64>,
    /// Bytes of the current message so far.
    message_bytes: u64,
}

impl FrameBudget {
    pub(crate) fn new(
        rules: &[Arc<WebSocketLimits>],
        sender: FrameSender,
        now: Micros,
    ) -> FrameBudget {
        let applies = |rules: &&Arc<WebSocketLimits>| match sender {
            FrameSender::Client => rules.direction.limits_client(),
            FrameSender::Server => rules.direction.limits_server(),
        };
        let rates_of = |rules: &Arc<WebSocketLimits>| {
            let rates = [(FrameUnit::Messages, &rules.messages), (FrameUnit::Bytes, &rules.bytes)];
            let rates = rates.map(|(unit, rate)| {
                rate.as_ref().map(|(limit, _)| FrameRate {
                    limit: limit.clone(),
                    state: State::fresh(limit, now),
                    unit,
                    rules: rules.clone(),
                })
            });
            rates.into_iter().flatten()
        };
        FrameBudget {
            rates: rules.iter().filter(applies).flat_map(rates_of).collect(),
            message_bytes_max: rules.iter().filter(applies).filter_map(|it| it.message_bytes).min(),
            message_bytes: 0,
        }
    }

    /// Decides about a frame by its header, and charges it if it may pass. All rates must allow it.
    pub(crate) fn admit_frame(
        &mut self,
        header: &WebSocketFrameHeader,
        now: Micros,
    ) -> FrameVerdict {
        let message_bytes = match header.counts_as_message() {
            true => header.wire_bytes(),
            false => self.message_bytes.saturating_add(header.wire_bytes()),
        };
        if let Some(max) = self.message_bytes_max
            && message_bytes > max
        {
            let reason = format!("message is longer than {max} bytes");
            return FrameVerdict::Close(CloseNotice::new(CloseCause::MessageBytes, 1_009, reason));
        }
        let mut wait_until = None;
        for rate in &self.rates {
            let outcome = judge(&rate.limit, &rate.state, rate.cost_of(header), now);
            match (outcome.allowed, rate.rules.on_excess) {
                (true, _) => {}
                (false, ExcessPolicy::Close) => return FrameVerdict::Close(rate.notice()),
                (false, ExcessPolicy::Wait) => {
                    wait_until = wait_until.max(Some(now.after(outcome.retry_after)));
                }
            }
        }
        if let Some(instant) = wait_until {
            return FrameVerdict::WaitUntil(instant);
        }
        for rate in &mut self.rates {
            let cost = rate.cost_of(header);
            if cost > 0 {
                charge(&rate.limit, &mut rate.state, cost, now);
            }
        }
        // A control frame between two fragments is no part of their message.
        if !header.is_control() {
            self.message_bytes = message_bytes;
        }
        FrameVerdict::Pass(header.header_bytes)
    }

    /// Decides how much of a payload may pass now, and charges it.
    pub(crate) fn admit_payload(&mut self, bytes: usize, now: Micros) -> FrameVerdict {
        let mut room = bytes as u64;
        for rate in self.rates.iter().filter(|rate| rate.shapes_payload()) {
            let piece = (rate.limit.capacity() / PIECES_OF_CAPACITY).max(1).min(bytes as u64);
            let outcome = judge(&rate.limit, &rate.state, piece, now);
            if !outcome.allowed {
                return FrameVerdict::WaitUntil(now.after(outcome.retry_after));
            }
            room = room.min(piece + outcome.remaining);
        }
        for rate in self.rates.iter_mut().filter(|rate| rate.shapes_payload()) {
            charge(&rate.limit, &mut rate.state, room, now);
        }
        FrameVerdict::Pass(usize::try_from(room).unwrap_or(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::Algorithm;
    use tollgate_rules::websocket_limits::LimitedDirection;

    use super::*;
    use crate::data_plane::gateway::websocket::frame::{FramePart, FrameReader};

    fn limits(messages: u64, bytes: u64, on_excess: ExcessPolicy) -> WebSocketLimits {
        let limit = |units: u64| {
            let limit = Limit::per(units, Duration::from_secs(1)).algorithm(Algorithm::TokenBucket);
            Some((Arc::new(limit.build().unwrap()), format!("{units}/second").into()))
        };
        WebSocketLimits {
            connections: None,
            messages: limit(messages),
            bytes: limit(bytes),
            message_bytes: None,
            idle: None,
            lifetime: None,
            on_excess,
            close_code: 1_013,
            direction: LimitedDirection::Client,
        }
    }

    /// The header of a client's binary frame with so many bytes of payload, below 126.
    fn header(payload_bytes: u8) -> WebSocketFrameHeader {
        let bytes = [0x82, 0x80 | payload_bytes, 0, 0, 0, 0];
        match FrameReader::new(FrameSender::Client).next_part(&bytes) {
            Ok(FramePart::Header(header)) => header,
            other => panic!("{other:?}"),
        }
    }

    fn at(micros: u64) -> Micros {
        Micros::new(micros)
    }

    #[test]
    fn all_rates_of_all_rules_must_allow_a_frame_and_are_charged_together() {
        let rules = [
            Arc::new(limits(10, 1_000, ExcessPolicy::Close)),
            Arc::new(limits(2, 1_000, ExcessPolicy::Wait)),
        ];
        let mut budget = FrameBudget::new(&rules, FrameSender::Client, Micros::ZERO);
        for _ in 0..2 {
            assert_eq!(budget.admit_frame(&header(94), at(0)), FrameVerdict::Pass(6));
        }
        // The second rule makes it wait, and the first is not charged for that.
        for _ in 0..100 {
            assert_eq!(
                budget.admit_frame(&header(94), at(0)),
                FrameVerdict::WaitUntil(at(500_000))
            );
        }
        // A refusal by a rule that closes comes first.
        let mut budget = FrameBudget::new(
            &[rules[1].clone(), Arc::new(limits(10, 99, ExcessPolicy::Close))],
            FrameSender::Client,
            Micros::ZERO,
        );
        let FrameVerdict::Close(notice) = budget.admit_frame(&header(94), at(0)) else {
            panic!("a frame of 100 bytes passes a rate of 99");
        };
        let reason = "byte rate of 99/second exceeded";
        assert_eq!(notice, CloseNotice::new(CloseCause::Bytes, 1_013, reason));
    }

    #[test]
    fn payloads_that_wait_pass_in_pieces() {
        let rules = [Arc::new(limits(10, 800, ExcessPolicy::Wait))];
        let mut budget = FrameBudget::new(&rules, FrameSender::Client, Micros::ZERO);
        assert_eq!(budget.admit_frame(&header(100), at(0)), FrameVerdict::Pass(6));
        // At, bytes that are there | verdict. A piece is an eighth of the capacity.
        let rows = [
            (0, 100, FrameVerdict::Pass(100)),
            (0, 10_000, FrameVerdict::Pass(694)),
            (0, 10_000, FrameVerdict::WaitUntil(at(125_000))),
            (0, 1, FrameVerdict::WaitUntil(at(1_250))),
            (124_999, 10_000, FrameVerdict::WaitUntil(at(125_000))),
            (125_000, 10_000, FrameVerdict::Pass(100)),
            (1_125_000, 10_000, FrameVerdict::Pass(800)),
        ];
        for (micros, bytes, want) in rows {
            assert_eq!(budget.admit_payload(bytes, at(micros)), want, "{bytes} at {micros}");
        }
    }

    #[test]
    fn only_the_chosen_direction_is_limited() {
        let rules = [Arc::new(limits(1, 1, ExcessPolicy::Close))];
        let mut budget = FrameBudget::new(&rules, FrameSender::Server, Micros::ZERO);
        for _ in 0..10 {
            assert_eq!(budget.admit_frame(&header(100), at(0)), FrameVerdict::Pass(6));
        }
    }

    #[test]
    fn empty_fragments_inside_a_message_count_as_messages() {
        let rules = [Arc::new(limits(2, 1_000_000, ExcessPolicy::Wait))];
        let mut budget = FrameBudget::new(&rules, FrameSender::Client, Micros::ZERO);
        // First two bytes of a frame | does it pass. The second of two messages is an empty fragment.
        let rows = [
            ([0x02, 0x80], true),
            ([0x00, 0x81], true),
            ([0x00, 0x80], true),
            ([0x00, 0x80], false),
            ([0x00, 0x81], true),
            ([0x80, 0x80], true),
        ];
        let mut reader = FrameReader::new(FrameSender::Client);
        for (number, (start, passes)) in rows.into_iter().enumerate() {
            let bytes = [&start[..], &[0; 4]].concat();
            let Ok(FramePart::Header(header)) = reader.next_part(&bytes) else {
                panic!("row {number}: no header");
            };
            let verdict = budget.admit_frame(&header, at(0));
            assert_eq!(verdict == FrameVerdict::Pass(6), passes, "row {number}: {verdict:?}");
            if number == 0 {
                reader.pass_header(&header);
            }
        }
    }
}
