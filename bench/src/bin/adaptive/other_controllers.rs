//! Other ways to find a limit by latency, for comparison: gradient2 and Vegas, rewritten from the descriptions of Netflix'
//! concurrency-limits and not tuned, and additive increase with multiplicative decrease on a latency threshold.

use testkit::upstream_model::ConcurrencyBound;

const LIMIT_FIRST: f64 = 20.0;
const LIMIT_MIN: f64 = 4.0;
const LIMIT_MAX: f64 = 1_000.0;

/// The ratio of a slow to a fast mean of latency moves the limit.
pub(crate) struct GradientBound {
    limit: f64,
    /// Mean of about the last 600 latencies.
    long_us: f64,
}

impl GradientBound {
    pub(crate) fn new() -> GradientBound {
        GradientBound { limit: LIMIT_FIRST, long_us: 0.0 }
    }
}

impl ConcurrencyBound for GradientBound {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn began(&mut self, _: u32) {}

    fn ended(&mut self, latency_us: u64, in_flight: u32, _: u64) {
        const TOLERANCE: f64 = 1.5;
        const QUEUE: f64 = 4.0;
        const SMOOTHING: f64 = 0.2;
        let short_us = latency_us as f64;
        self.long_us = match self.long_us {
            first if first <= 0.0 => short_us,
            long_us => long_us + 2.0 / 601.0 * (short_us - long_us),
        };
        // A long mean from a time of overload must not stay for long.
        if self.long_us > 2.0 * short_us {
            self.long_us *= 0.95;
        }
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let gradient = (TOLERANCE * self.long_us / short_us).clamp(0.5, 1.0);
        let next = gradient * self.limit + QUEUE;
        let smoothed = self.limit * (1.0 - SMOOTHING) + next * SMOOTHING;
        self.limit = smoothed.clamp(LIMIT_MIN, LIMIT_MAX);
    }
}

/// The queue estimated from the lowest latency so far moves the limit by one.
pub(crate) struct VegasBound {
    limit: f64,
    lowest_us: u64,
    /// Latencies until the lowest one is measured again.
    to_probe: u64,
}

impl VegasBound {
    pub(crate) fn new() -> VegasBound {
        VegasBound { limit: LIMIT_FIRST, lowest_us: u64::MAX, to_probe: 0 }
    }
}

impl ConcurrencyBound for VegasBound {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn began(&mut self, _: u32) {}

    fn ended(&mut self, latency_us: u64, in_flight: u32, _: u64) {
        if self.to_probe == 0 || latency_us < self.lowest_us {
            self.lowest_us = latency_us.max(1);
            self.to_probe = self.to_probe.max((30.0 * self.limit) as u64);
            return;
        }
        self.to_probe -= 1;
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let queue = (self.limit * (1.0 - self.lowest_us as f64 / latency_us as f64)).ceil();
        let unit = self.limit.log10().max(1.0);
        let next = match queue {
            queue if queue <= unit => self.limit + 6.0 * unit,
            queue if queue < 3.0 * unit => self.limit + unit,
            queue if queue > 6.0 * unit => self.limit - unit,
            _ => self.limit,
        };
        self.limit = next.clamp(LIMIT_MIN, LIMIT_MAX);
    }
}

/// One more for each full round below a latency, a tenth less for each latency above it.
pub(crate) struct AimdBound {
    limit: f64,
    threshold_us: u64,
}

impl AimdBound {
    pub(crate) fn new(threshold_us: u64) -> AimdBound {
        AimdBound { limit: LIMIT_FIRST, threshold_us }
    }
}

impl ConcurrencyBound for AimdBound {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn began(&mut self, _: u32) {}

    fn ended(&mut self, latency_us: u64, in_flight: u32, _: u64) {
        if latency_us > self.threshold_us {
            self.limit = (self.limit * 0.9).max(LIMIT_MIN);
        } else if f64::from(in_flight) * 2.0 >= self.limit {
            self.limit = (self.limit + 1.0 / self.limit).min(LIMIT_MAX);
        }
    }
}
