//! Adaptive concurrency: finds by measured latency how much work an upstream can do at once.
//!
//! ```text
//! latency
//!    │                      ╱   Above its capacity c an upstream queues: latency grows in
//!    │                    ╱     proportion to the work in flight, and throughput does not grow.
//!    │ base ────────────┤       Below c latency stays at its base and capacity is unused.
//!    └──────────────────┴───▶ work in flight
//!                       c
//! ```
//!
//! The controller keeps the limit where the mean latency is a certain multiple of the base, 1.25
//! and more: enough work waits at the upstream to keep it busy. It works in rounds. A round begins
//! when work that began under another limit has ended, and ends when the mean of its latencies is
//! known well enough. After a round the limit is multiplied by `aim × base / mean`.
//!
//! The base is measured, not remembered: now and then, and at once if latency has changed much, a
//! round runs with a limit that should leave no queue (a probe). If its latency is still lower than
//! the base, there was a queue after all, and the limit goes down again until latency follows no
//! more. So a slower upstream (a higher base) and a smaller one (a queue) are told apart.
//!
//! Rounds in which the limit was not reached change nothing, because they say nothing about it.

use crate::time::{Micros, Wait};

/// Mean latency that the controller aims at, as a multiple of the base, if latencies are all alike.
const AIM: f64 = 1.25;
/// Addition to the aim for each unit of variation: servers with irregular work idle unless more of it waits.
const AIM_PER_VARIATION: f64 = 0.25;
/// Largest step up in one round, as a share of the limit.
const GROWTH_MAX: f64 = 1.5;
/// Largest step down in one round, as a share of the limit.
const SHRINK_MAX: f64 = 0.5;
/// Ratio of aimed to measured latency below which the base is measured again before the limit follows.
const SURPRISE: f64 = 0.67;
/// Share of the limit after the last probe below which the base is measured again.
const DRIFT: f64 = 0.7;
/// Limit of a probe as a share of the estimated capacity, and of the probe before it.
const PROBE_SHARE: f64 = 0.7;
/// Smallest limit of a first probe, as a share of the limit.
const PROBE_SHARE_MIN: f64 = 0.25;
/// Latency of a probe, as a share of the base, below which the probe before it had a queue.
const PROBE_FELL: f64 = 0.8;
/// Number of rounds that reach the limit between two probes.
const ROUNDS_BETWEEN_PROBES: u32 = 16;
/// Share of overloaded answers in a round up to which they are ignored.
const OVERLOAD_IGNORED: f64 = 0.03;
/// Shortest round: a pause of a scheduler or garbage collector should not fill one.
const ROUND_US_MIN: u64 = 20_000;
/// Fewest and most latencies of a round, beside one for each unit of the limit.
const SAMPLES_MIN: u32 = 10;
const SAMPLES_MAX: u32 = 200;
/// Standard error of the mean, as a share of it, that ends a round.
const ERROR_MAX: f64 = 0.05;
/// Multiple of the last mean at which a single latency is capped, so that one outlier decides nothing.
const OUTLIER: f64 = 5.0;
/// Limit of a controller that has measured nothing, if its range allows it.
const LIMIT_FIRST: u32 = 20;

/// Controller of the work in flight at one upstream. Its size is constant, whatever it measures.
#[derive(Clone, Debug)]
pub struct AdaptiveConcurrency {
    min: f64,
    max: f64,
    /// The limit in force, between `min` and `max`.
    limit: f64,
    /// Mean latency without a queue in microseconds; 0 if it was never measured.
    base_us: f64,
    /// Standard deviation of latencies without a queue, as a share of their mean; at most 1.
    variation: f64,
    /// Mean latency of the last round in microseconds; 0 before the first.
    mean_us: f64,
    /// The limit and mean latency before the probe that runs, if one does.
    probing_from: Option<(f64, f64)>,
    rounds_to_probe: u32,
    /// The limit after the last probe, or the highest since.
    reference_limit: f64,
    /// The next step up after an overload; doubles with each step.
    step_max: f64,
    round: MeasuringRound,
}

/// The measurements since the limit was last set.
#[derive(Clone, Debug, Default)]
struct MeasuringRound {
    /// Number of ends still to come of work that may have begun under another limit.
    settling: u32,
    began_at: Option<Micros>,
    samples: u32,
    mean_us: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
    overloads: u32,
    in_flight_max: u32,
}

impl AdaptiveConcurrency {
    /// A controller that has measured nothing. The limit stays between `min` (at least 1) and `max` (at least
    /// `min`).
    pub fn new(min: u32, max: u32) -> AdaptiveConcurrency {
        let min = min.max(1);
        let max = max.max(min);
        let limit = f64::from(LIMIT_FIRST.clamp(min, max));
        AdaptiveConcurrency {
            min: f64::from(min),
            max: f64::from(max),
            limit,
            base_us: 0.0,
            variation: 0.0,
            mean_us: 0.0,
            probing_from: None,
            rounds_to_probe: ROUNDS_BETWEEN_PROBES,
            reference_limit: limit,
            step_max: f64::INFINITY,
            round: MeasuringRound::default(),
        }
    }

    /// Changes the range. What was measured stays.
    pub fn set_range(&mut self, min: u32, max: u32) {
        let min = min.max(1);
        (self.min, self.max) = (f64::from(min), f64::from(max.max(min)));
        self.set_limit(self.limit);
    }

    /// The most work that may be in flight now.
    pub fn limit(&self) -> u32 {
        // Between `min` and `max`, which were whole numbers of this type.
        self.limit.round() as u32
    }

    /// The mean latency without a queue, as last measured; zero before that.
    pub fn base_latency(&self) -> Wait {
        Wait::from_micros(self.base_us as u64)
    }

    /// The mean latency of the last round; zero before that.
    pub fn mean_latency(&self) -> Wait {
        Wait::from_micros(self.mean_us as u64)
    }

    /// Records that work began; `in_flight` includes it.
    pub fn began(&mut self, in_flight: u32) {
        self.round.in_flight_max = self.round.in_flight_max.max(in_flight);
    }

    /// Records that work ended after `latency`; `in_flight` is what is left.
    pub fn ended(&mut self, latency: Wait, in_flight: u32, now: Micros) {
        let Some(latency_us) = latency.as_micros() else { return };
        if self.round.counts(now) {
            let capped = match self.mean_us {
                unknown if unknown <= 0.0 => latency_us as f64,
                mean_us => (latency_us as f64).min(OUTLIER * mean_us),
            };
            // A latency of 0 would make the ratio of two latencies meaningless.
            self.round.add(capped.max(1.0));
            self.finish_round(in_flight, now);
        }
    }

    /// Records that work failed because the upstream was overloaded or did not answer in time.
    pub fn overloaded(&mut self, in_flight: u32, now: Micros) {
        if self.round.counts(now) {
            self.round.overloads += 1;
            self.finish_round(in_flight, now);
        }
    }

    /// Records that a client left after `waited`, before its work ended. A wait above the mean counts as a latency, so that
    /// impatient clients do not hide a slow upstream; a shorter one says nothing.
    pub fn abandoned(&mut self, waited: Wait, in_flight: u32, now: Micros) {
        if waited > self.mean_latency() && self.mean_us > 0.0 {
            self.ended(waited, in_flight, now);
        }
    }

    fn finish_round(&mut self, in_flight: u32, now: Micros) {
        if !self.round.is_complete(self.limit(), now) {
            return;
        }
        let reached = self.round.in_flight_max >= self.limit();
        let limit_before = self.limit();
        if self.round.overload_share() > OVERLOAD_IGNORED {
            self.shrink_by_overload();
        } else {
            self.mean_us = self.round.mean_us;
            match self.probing_from {
                _ if !reached => self.learn_unlimited(),
                Some(from) => self.continue_probe(from),
                None => self.follow_latency(),
            }
        }
        let settling = if self.limit() == limit_before { 0 } else { in_flight };
        self.round = MeasuringRound { settling, ..MeasuringRound::default() };
    }

    /// An upstream that refuses work beyond its capacity answers just the rest of the work.
    fn shrink_by_overload(&mut self) {
        let served = 1.0 - self.round.overload_share();
        self.step_max = 1.0;
        self.probing_from = None;
        self.set_limit(self.limit * served.max(SHRINK_MAX));
    }

    /// Follows the latency of work that the limit does not bound. A limit that nobody reaches stays.
    fn learn_unlimited(&mut self) {
        if let Some((limit, _)) = self.probing_from.take() {
            self.set_limit(limit);
        }
        self.base_us = if self.base_us > 0.0 {
            self.base_us + 0.1 * (self.mean_us - self.base_us)
        } else {
            self.mean_us
        };
    }

    fn follow_latency(&mut self) {
        if self.base_us <= 0.0 {
            self.base_us = self.mean_us;
            return self.begin_probe();
        }
        let ratio = self.aim() * self.base_us / self.mean_us;
        let next = self.limit * ratio.clamp(SHRINK_MAX, GROWTH_MAX);
        self.rounds_to_probe = self.rounds_to_probe.saturating_sub(1);
        if ratio < SURPRISE || next < DRIFT * self.reference_limit || self.rounds_to_probe == 0 {
            return self.begin_probe();
        }
        self.grow_or_shrink_to(next);
        self.reference_limit = self.reference_limit.max(self.limit);
    }

    fn grow_or_shrink_to(&mut self, next: f64) {
        if next > self.limit {
            let step = (next - self.limit).min(self.step_max);
            self.step_max *= 2.0;
            self.set_limit(self.limit + step);
        } else {
            self.set_limit(next);
        }
    }

    fn begin_probe(&mut self) {
        self.probing_from = Some((self.limit, self.mean_us));
        let queue_free = (self.base_us / self.mean_us).min(1.0);
        self.set_limit(self.limit * (PROBE_SHARE * queue_free).max(PROBE_SHARE_MIN));
    }

    fn continue_probe(&mut self, (limit_before, mean_before_us): (f64, f64)) {
        let change = self.mean_us / self.base_us;
        if change < PROBE_FELL && self.limit > self.min {
            self.base_us = self.mean_us;
            return self.set_limit(self.limit * PROBE_SHARE);
        }
        // A single probe is noisy, so a small change counts half.
        let weight = if (PROBE_FELL..1.0 / PROBE_FELL).contains(&change) { 0.5 } else { 1.0 };
        self.base_us += weight * (self.mean_us - self.base_us);
        self.variation += 0.5 * (self.round.variation().min(1.0) - self.variation);
        self.probing_from = None;
        self.rounds_to_probe = ROUNDS_BETWEEN_PROBES;
        let probe_limit = std::mem::replace(&mut self.limit, limit_before);
        let ratio = self.aim() * self.base_us / mean_before_us;
        self.grow_or_shrink_to((limit_before * ratio.min(GROWTH_MAX)).max(probe_limit));
        self.reference_limit = self.limit;
    }

    /// Mean latency to aim at, as a multiple of the base. One unit of work may always wait.
    fn aim(&self) -> f64 {
        AIM + AIM_PER_VARIATION * self.variation + 1.0 / self.limit
    }

    fn set_limit(&mut self, limit: f64) {
        self.limit = limit.clamp(self.min, self.max);
    }
}

impl MeasuringRound {
    /// Returns true if this end belongs to the round; the first one that does begins it.
    fn counts(&mut self, now: Micros) -> bool {
        if self.settling > 0 {
            self.settling -= 1;
            return false;
        }
        self.began_at.get_or_insert(now);
        true
    }

    /// Adds a latency to the mean and to the sum of squares (Welford's method).
    fn add(&mut self, latency_us: f64) {
        self.samples += 1;
        let distance = latency_us - self.mean_us;
        self.mean_us += distance / f64::from(self.samples);
        self.squares += distance * (latency_us - self.mean_us);
    }

    fn is_complete(&self, limit: u32, now: Micros) -> bool {
        let age = self.began_at.map_or(Wait::ZERO, |began| began.until(now));
        let ends = self.samples.saturating_add(self.overloads);
        if age < Wait::from_micros(ROUND_US_MIN) || ends < SAMPLES_MIN.max(limit) {
            return false;
        }
        let samples = f64::from(self.samples);
        let error = (self.squares / samples).sqrt() / samples.sqrt();
        ends >= SAMPLES_MAX.max(limit) || self.samples == 0 || error <= ERROR_MAX * self.mean_us
    }

    fn variation(&self) -> f64 {
        (self.squares / f64::from(self.samples.max(1))).sqrt() / self.mean_us.max(1.0)
    }

    fn overload_share(&self) -> f64 {
        f64::from(self.overloads) / f64::from((self.samples.saturating_add(self.overloads)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ends `count` works one millisecond apart, with the limit fully used.
    fn end(controller: &mut AdaptiveConcurrency, at: &mut Micros, count: u32, latency_us: u64) {
        for _ in 0..count {
            *at = at.after(Wait::from_micros(1_000));
            controller.began(controller.limit());
            controller.ended(Wait::from_micros(latency_us), controller.limit(), *at);
        }
    }

    #[test]
    fn it_grows_while_latency_does_not_and_stops_at_its_range() {
        let (mut controller, mut at) = (AdaptiveConcurrency::new(4, 100), Micros::ZERO);
        assert_eq!(controller.limit(), 20);
        end(&mut controller, &mut at, 5_000, 10_000);
        let probing = 0.7 * 100.0;
        assert!(f64::from(controller.limit()) >= probing, "{controller:?}");
        assert_eq!(controller.base_latency(), Wait::from_micros(10_000));
    }

    #[test]
    fn an_upstream_that_refuses_work_beyond_its_capacity_gets_little_more() {
        let (mut controller, mut at) = (AdaptiveConcurrency::new(1, 1_000), Micros::ZERO);
        for work in 0..20_000_u32 {
            at = at.after(Wait::from_micros(1_000));
            let limit = controller.limit();
            controller.began(limit);
            // 12 of those in flight are served.
            if work % limit < 12 {
                controller.ended(Wait::from_micros(10_000), limit, at);
            } else {
                controller.overloaded(limit, at);
            }
            if work > 2_000 {
                assert!((6..=14).contains(&controller.limit()), "{work}: {controller:?}");
            }
        }
    }

    #[test]
    fn an_upstream_that_answers_nothing_but_overload_leads_to_the_lowest_limit_and_recovers() {
        let (mut controller, mut at) = (AdaptiveConcurrency::new(2, 50), Micros::ZERO);
        for _ in 0..1_000 {
            at = at.after(Wait::from_micros(1_000));
            controller.overloaded(controller.limit(), at);
        }
        assert_eq!(controller.limit(), 2);
        end(&mut controller, &mut at, 3_000, 10_000);
        assert!(controller.limit() > 20, "{controller:?}");
    }

    #[test]
    fn a_range_that_is_none_is_repaired() {
        for ((min, max), limit) in [((0, 0), 1), ((5, 3), 5), ((30, 40), 30), ((1, 8), 8)] {
            assert_eq!(AdaptiveConcurrency::new(min, max).limit(), limit, "{min}..{max}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_measured_the_limit_stays_in_its_range(
            min in 1_u32..50,
            more in 0_u32..500,
            events in prop::collection::vec((0_u32..4, any::<u64>(), any::<u32>(), 0_u64..100_000), 0..2_000),
        ) {
            let mut controller = AdaptiveConcurrency::new(min, min + more);
            let mut at = Micros::ZERO;
            for (kind, latency_us, in_flight, later_us) in events {
                at = at.after(Wait::from_micros(later_us));
                let latency = Wait::from_micros(latency_us >> (latency_us % 64));
                match kind {
                    0 => controller.began(in_flight),
                    1 => controller.overloaded(in_flight % 100, at),
                    _ => controller.ended(latency, in_flight % 100, at),
                }
                prop_assert!((min..=min + more).contains(&controller.limit()), "{controller:?}");
                prop_assert!(controller.base_us.is_finite() && controller.mean_us.is_finite());
            }
        }
    }
}
