//! Traffic: when requests arrive, and from whom.

use std::sync::Arc;

use tollgate::Micros;

/// Requests in the order in which they are decided.
#[derive(Debug, Default)]
pub(super) struct TrafficTrace {
    pub(super) requests: Vec<TrafficRequest>,
    /// The instant at the left edge of a chart.
    pub(super) from_us: u64,
    /// The instant at the right edge of a chart.
    pub(super) to_us: u64,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct TrafficRequest {
    pub(super) at: Micros,
    pub(super) key: Arc<str>,
    pub(super) cost: u64,
}

impl TrafficTrace {
    /// Returns true if one caller sends all requests in the order of time, so that one line can show what
    /// the limiter remembers.
    pub(super) fn has_one_level(&self) -> bool {
        let mut pairs = self.requests.windows(2);
        pairs.all(|pair| pair[0].key == pair[1].key && pair[0].at <= pair[1].at)
    }

    /// Length of the horizontal axis.
    pub(super) fn length_us(&self) -> u64 {
        self.to_us.saturating_sub(self.from_us).max(1)
    }

    /// The place of an instant on the horizontal axis.
    pub(super) fn place(&self, at_us: u64) -> u64 {
        at_us.saturating_sub(self.from_us)
    }
}
