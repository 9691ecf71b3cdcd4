//! Counts of all WebSockets of the gateway.

use tollgate_rules::stripes::StripedCounters;

use super::close_notice::CloseCause;
use super::frame::FrameSender;
use crate::metrics::exposition::{MetricKind, MetricsPage};

/// Counters for each direction, by their place: messages, bytes, waits.
const MESSAGES: usize = 0;
const BYTES: usize = 2;
const WAITS: usize = 4;
/// The first of the counters of closed WebSockets, one for each cause.
const CLOSES: usize = 6;
const COUNTERS: usize = CLOSES + CloseCause::ALL.len();

/// Counters of WebSockets.
#[derive(Debug, Default)]
pub(crate) struct TunnelMetrics(StripedCounters<COUNTERS>);

/// The counters at one instant. Pairs are client, then server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunnelCounts {
    pub(crate) messages: [u64; 2],
    pub(crate) bytes: [u64; 2],
    /// Times that a frame waited for a rate.
    pub(crate) waits: [u64; 2],
    /// Closed WebSockets by cause, in the order of [`CloseCause::ALL`].
    pub(crate) closes: [u64; CloseCause::ALL.len()],
}

impl TunnelMetrics {
    pub(crate) fn count_message(&self, sender: FrameSender) {
        self.0.add(MESSAGES + sender as usize, 1);
    }

    /// Counts bytes on the wire.
    pub(crate) fn count_bytes(&self, sender: FrameSender, bytes: usize) {
        self.0.add(BYTES + sender as usize, bytes as u64);
    }

    pub(crate) fn count_wait(&self, sender: FrameSender) {
        self.0.add(WAITS + sender as usize, 1);
    }

    pub(crate) fn count_close(&self, cause: CloseCause) {
        self.0.add(CLOSES + cause as usize, 1);
    }

    pub(crate) fn counts(&self) -> TunnelCounts {
        let sums = self.0.sums();
        let pair = |first: usize| [sums[first], sums[first + 1]];
        TunnelCounts {
            messages: pair(MESSAGES),
            bytes: pair(BYTES),
            waits: pair(WAITS),
            closes: std::array::from_fn(|cause| sums[CLOSES + cause]),
        }
    }

    pub(crate) fn write(&self, page: &mut MetricsPage) {
        let counts = self.counts();
        let families = [
            (
                "tollgate_gateway_websocket_messages_total",
                "Messages in WebSockets, by sender; control frames count too.",
                counts.messages,
            ),
            (
                "tollgate_gateway_websocket_bytes_total",
                "Bytes in WebSockets as they are on the wire, by sender.",
                counts.bytes,
            ),
            (
                "tollgate_gateway_websocket_waits_total",
                "Times that frames in WebSockets waited for a rate, by sender.",
                counts.waits,
            ),
        ];
        for (name, help, [client, server]) in families {
            let mut family = page.family(name, MetricKind::Counter, help);
            family.sample(&[("sender", "client")], client);
            family.sample(&[("sender", "server")], server);
        }
        let help = "WebSockets that ended, by cause.";
        let name = "tollgate_gateway_websocket_closes_total";
        let mut closes = page.family(name, MetricKind::Counter, help);
        for (cause, count) in CloseCause::ALL.into_iter().zip(counts.closes) {
            closes.sample(&[("cause", cause.label())], count);
        }
    }
}
