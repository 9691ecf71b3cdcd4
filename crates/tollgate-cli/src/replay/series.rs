//! `ReplaySeries`: requests over time. The length of a replay is not known at its beginning, so the step is
//! doubled whenever the series gets too long.

use tollgate::Micros;

/// Most steps of a series.
const STEPS_MAX: usize = 240;

/// Shortest step.
const STEP_MIN_US: u64 = 1_000_000;

/// Counts of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayStep {
    pub(crate) offered: u64,
    pub(crate) now_refused: u64,
    pub(crate) then_refused: u64,
}

/// Requests, and those refused by each rule set, over time. Bound: [`STEPS_MAX`] steps.
#[derive(Debug)]
pub(crate) struct ReplaySeries {
    /// The second of the first request.
    from_us: Option<u64>,
    step_us: u64,
    steps: Vec<ReplayStep>,
}

impl Default for ReplaySeries {
    fn default() -> ReplaySeries {
        ReplaySeries { from_us: None, step_us: STEP_MIN_US, steps: Vec::new() }
    }
}

impl ReplaySeries {
    pub(super) fn add(&mut self, at: Micros, [now_refused, then_refused]: [bool; 2]) {
        let at_us = at.as_u64();
        let from_us = *self.from_us.get_or_insert(at_us - at_us % STEP_MIN_US);
        // A time before the first counts as the first.
        let after_us = at_us.saturating_sub(from_us);
        while after_us / self.step_us >= STEPS_MAX as u64 {
            self.double_step();
        }
        let index = (after_us / self.step_us) as usize;
        if self.steps.len() <= index {
            self.steps.resize(index + 1, ReplayStep::default());
        }
        self.steps[index].add(&ReplayStep {
            offered: 1,
            now_refused: now_refused.into(),
            then_refused: then_refused.into(),
        });
    }

    fn double_step(&mut self) {
        self.step_us = self.step_us.saturating_mul(2);
        for index in 0..self.steps.len().div_ceil(2) {
            let mut pair = self.steps[2 * index];
            pair.add(&self.steps.get(2 * index + 1).copied().unwrap_or_default());
            self.steps[index] = pair;
        }
        self.steps.truncate(self.steps.len().div_ceil(2));
    }

    /// The second of the first request; 0 if there is none.
    pub(crate) fn start_s(&self) -> u64 {
        self.from_us.unwrap_or(0) / STEP_MIN_US
    }

    pub(crate) fn step_s(&self) -> u64 {
        self.step_us / STEP_MIN_US
    }

    pub(crate) fn steps(&self) -> &[ReplayStep] {
        &self.steps
    }
}

impl ReplayStep {
    fn add(&mut self, other: &ReplayStep) {
        self.offered += other.offered;
        self.now_refused += other.now_refused;
        self.then_refused += other.then_refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_however_long_the_series() {
        let mut series = ReplaySeries::default();
        for minute in 0..3_000_u64 {
            let at = Micros::new(1_700_000_000_500_000 + minute * 60_000_000);
            series.add(at, [minute % 2 == 0, minute % 3 == 0]);
            assert!(series.steps().len() <= STEPS_MAX);
            let sum = |part: fn(&ReplayStep) -> u64| series.steps().iter().map(part).sum::<u64>();
            assert_eq!(sum(|step| step.offered), minute + 1);
            assert_eq!(sum(|step| step.now_refused), minute / 2 + 1);
            assert_eq!(sum(|step| step.then_refused), minute / 3 + 1);
        }
        assert_eq!((series.start_s(), series.step_s()), (1_700_000_000, 1_024));
        series.add(Micros::ZERO, [false, false]);
        assert_eq!(
            series.steps()[0].offered,
            1_024 / 60 + 2,
            "a time before the first is the first"
        );
        series.add(Micros::MAX, [false, false]);
        assert!(series.steps().len() <= STEPS_MAX);
    }
}
