//! `TrafficSampler`: the thread that reads the counters once a second.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tollgate::Micros;

use super::counter_reader::CounterReader;
use super::{SecondObserver, TrafficHistory};
use crate::background;
use crate::metrics::Metrics;

/// The running thread. It ends soon after this is dropped.
pub(crate) struct TrafficSampler {
    _ends: SyncSender<()>,
}

impl TrafficSampler {
    /// Starts the thread.
    pub(crate) fn start(
        metrics: Arc<Metrics>,
        history: Arc<TrafficHistory>,
        observer: impl SecondObserver,
    ) -> io::Result<TrafficSampler> {
        let (ends, ended) = sync_channel(0);
        background::spawn("history", move || sample(&metrics, &history, observer, &ended))?;
        Ok(TrafficSampler { _ends: ends })
    }
}

/// Records the traffic at every whole second until the server ends.
fn sample(
    metrics: &Arc<Metrics>,
    history: &TrafficHistory,
    mut observer: impl SecondObserver,
    ended: &Receiver<()>,
) {
    let mut reader = CounterReader::new(metrics.clone());
    loop {
        let due = next_second(metrics.gatekeeper.now());
        let now = loop {
            let now = metrics.gatekeeper.now();
            let left = due.saturating_sub(now.as_u64());
            // More than a second is left only if the clock went back.
            if left == 0 || left > 1_000_000 {
                break now;
            }
            // A timer may be slightly faster than the clock.
            let left = Duration::from_micros(left);
            if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        };
        let second = reader.read(now);
        history.record(&second);
        observer.second_over(&second);
    }
}

/// The next whole second, in microseconds since 1970.
fn next_second(now: Micros) -> u64 {
    (now.as_u64() / 1_000_000 + 1) * 1_000_000
}
