//! The record of a load: latencies and outcomes, in memory that does not grow with the number of requests.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Parts of the duration in which outcomes are counted separately, for the chart.
pub(super) const SLOTS: usize = 60;

/// Longest latency that is told apart from longer ones: an hour, in microseconds.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// Most different errors that are counted by their text; the others are counted together.
const ERRORS_MAX: usize = 8;

/// Steps in which the latencies of requests that were never sent are recorded.
const NOT_SENT_STEPS: u64 = 10_000;

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoadOutcome {
    Allowed,
    Refused,
    /// No answer in time.
    TimedOut,
    /// An error of the connection, or an answer that is neither yes nor no.
    Failed(String),
}

/// The times of one request, all after the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTimes {
    /// The time of the schedule.
    pub(super) intended: Duration,
    /// The time when a connection became free for it, if that was later.
    pub(super) ready: Duration,
    pub(super) sent: Duration,
    pub(super) answered: Duration,
}

/// Counts of one part of the duration, by the intended time of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadSlot {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) errors: u64,
    pub(super) not_sent: u64,
    /// The longest latency from the intended time, in microseconds.
    pub(super) max_us: u64,
}

/// Everything that is known about a load.
#[derive(Clone, Debug)]
pub(super) struct LoadRecord {
    duration: Duration,
    /// Latency from the intended time, in microseconds: what a caller who comes at that time sees.
    pub(super) corrected: Histogram<u64>,
    /// Latency from the moment of sending.
    pub(super) service: Histogram<u64>,
    /// Delay between the time when a request could have been sent and the time when it was: the generator's own.
    pub(super) lateness: Histogram<u64>,
    /// Bound: [`SLOTS`].
    pub(super) slots: Vec<LoadSlot>,
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) timed_out: u64,
    pub(super) failed: u64,
    pub(super) not_sent: u64,
    /// Errors by their text. Bound: [`ERRORS_MAX`] and one more for all others.
    pub(super) errors: BTreeMap<String, u64>,
    /// Time of the last answer.
    pub(super) last_answer: Duration,
    /// Largest part of its time that a thread of the generator was running, in percent.
    pub(super) busy_percent: u64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("these bounds are valid")
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl LoadRecord {
    pub(super) fn new(duration: Duration) -> LoadRecord {
        LoadRecord {
            duration,
            corrected: histogram(),
            service: histogram(),
            lateness: histogram(),
            slots: vec![LoadSlot::default(); SLOTS],
            allowed: 0,
            refused: 0,
            timed_out: 0,
            failed: 0,
            not_sent: 0,
            errors: BTreeMap::new(),
            last_answer: Duration::ZERO,
            busy_percent: 0,
        }
    }

    fn slot(&mut self, intended: Duration) -> &mut LoadSlot {
        let at = intended.as_nanos() * SLOTS as u128 / self.duration.as_nanos().max(1);
        let index = usize::try_from(at).unwrap_or(usize::MAX).min(SLOTS - 1);
        &mut self.slots[index]
    }

    /// Adds a request. One that timed out took at least the time until it was given up; one that failed says
    /// nothing about latency.
    pub(super) fn add(&mut self, times: &RequestTimes, outcome: LoadOutcome) {
        self.lateness.saturating_record(micros(times.sent.saturating_sub(times.ready)));
        let corrected_us = micros(times.answered.saturating_sub(times.intended));
        let slot = self.slot(times.intended);
        match outcome {
            LoadOutcome::Allowed => slot.allowed += 1,
            LoadOutcome::Refused => slot.refused += 1,
            LoadOutcome::TimedOut | LoadOutcome::Failed(_) => slot.errors += 1,
        }
        match outcome {
            LoadOutcome::Allowed => self.allowed += 1,
            LoadOutcome::Refused => self.refused += 1,
            LoadOutcome::TimedOut => self.timed_out += 1,
            LoadOutcome::Failed(error) => {
                self.failed += 1;
                self.count_error(error, 1);
                return;
            }
        }
        self.add_latency(times.intended, corrected_us, 1);
        let service_us = micros(times.answered.saturating_sub(times.sent));
        self.service.saturating_record(service_us.max(1));
        self.last_answer = self.last_answer.max(times.answered);
    }

    fn add_latency(&mut self, intended: Duration, corrected_us: u64, count: u64) {
        self.corrected.saturating_record_n(corrected_us.max(1), count);
        let slot = self.slot(intended);
        slot.max_us = slot.max_us.max(corrected_us);
    }

    /// Adds requests that were never sent, with these numbers, because no connection became free before `end`.
    /// They would have waited at least until then.
    pub(super) fn add_not_sent(
        &mut self,
        numbers: std::ops::Range<u64>,
        offset: impl Fn(u64) -> Duration,
        end: Duration,
    ) {
        let step = ((numbers.end - numbers.start) / NOT_SENT_STEPS).max(1);
        let mut from = numbers.start;
        while from < numbers.end {
            let count = step.min(numbers.end - from);
            let intended = offset(from);
            self.add_latency(intended, micros(end.saturating_sub(intended)), count);
            self.slot(intended).not_sent += count;
            self.not_sent += count;
            from += count;
        }
    }

    fn count_error(&mut self, error: String, count: u64) {
        let is_known = self.errors.contains_key(&error);
        let has_room = self.errors.len() < ERRORS_MAX;
        let name = if is_known || has_room { error } else { "other errors".into() };
        *self.errors.entry(name).or_default() += count;
    }

    /// Adds the record of another thread.
    pub(super) fn merge(&mut self, other: LoadRecord) {
        // The bounds are the same, so it cannot fail.
        let pairs = [
            (&mut self.corrected, &other.corrected),
            (&mut self.service, &other.service),
            (&mut self.lateness, &other.lateness),
        ];
        for (ours, theirs) in pairs {
            ours.add(theirs).expect("histograms have the same bounds");
        }
        for (ours, theirs) in self.slots.iter_mut().zip(&other.slots) {
            ours.allowed += theirs.allowed;
            ours.refused += theirs.refused;
            ours.errors += theirs.errors;
            ours.not_sent += theirs.not_sent;
            ours.max_us = ours.max_us.max(theirs.max_us);
        }
        self.allowed += other.allowed;
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.failed += other.failed;
        self.not_sent += other.not_sent;
        self.last_answer = self.last_answer.max(other.last_answer);
        self.busy_percent = self.busy_percent.max(other.busy_percent);
        other.errors.into_iter().for_each(|(error, count)| self.count_error(error, count));
    }

    /// Number of answers: yes or no.
    pub(super) fn answered(&self) -> u64 {
        self.allowed + self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn latency_counts_from_the_intended_time() {
        let mut record = LoadRecord::new(ms(600));
        // Sent at once, and one that waited 90 ms for a connection.
        let at_once = RequestTimes { intended: ms(0), ready: ms(0), sent: ms(1), answered: ms(3) };
        let waited =
            RequestTimes { intended: ms(10), ready: ms(100), sent: ms(100), answered: ms(102) };
        record.add(&at_once, LoadOutcome::Allowed);
        record.add(&waited, LoadOutcome::Refused);
        assert_eq!((record.corrected.min() / 100, record.corrected.max() / 1_000), (30, 92));
        assert_eq!(record.service.max() / 100, 20);
        assert_eq!(record.lateness.max() / 100, 10, "waiting for a connection is not lateness");
        let first = LoadSlot { allowed: 1, max_us: 3_000, ..LoadSlot::default() };
        let second = LoadSlot { refused: 1, max_us: 92_000, ..LoadSlot::default() };
        assert_eq!(record.slots[..2], [first, second]);
    }

    #[test]
    fn what_is_not_answered_took_at_least_as_long() {
        let mut record = LoadRecord::new(ms(1_000));
        let given_up =
            RequestTimes { intended: ms(0), ready: ms(0), sent: ms(0), answered: ms(500) };
        record.add(&given_up, LoadOutcome::TimedOut);
        record.add(&given_up, LoadOutcome::Failed("refused".into()));
        record.add_not_sent(100..1_000, ms, ms(1_000));
        assert_eq!((record.timed_out, record.failed, record.not_sent), (1, 1, 900));
        assert_eq!(record.corrected.len(), 901, "a failure has no latency");
        assert!(record.corrected.max() >= 899_000);
        assert_eq!(record.slots.iter().map(|slot| slot.not_sent).sum::<u64>(), 900);
        // A million of them are recorded in few steps.
        record.add_not_sent(0..1_000_000, |_| ms(0), ms(1));
        assert_eq!(record.not_sent, 1_000_900);
    }

    #[test]
    fn errors_have_bounded_names() {
        let mut record = LoadRecord::new(ms(1));
        for number in 0..100 {
            record.count_error(format!("error {number}"), 1);
        }
        let mut both = record.clone();
        both.merge(record);
        assert_eq!(both.errors.len(), ERRORS_MAX + 1);
        assert_eq!(both.errors["other errors"], 2 * (100 - ERRORS_MAX as u64));
        assert_eq!(both.errors["error 0"], 2);
    }
}
