//! Summary of a trace by caller: how much each was served, how long it waited, and how fair that was.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tollgate::Wait;
use tollgate_rules::Answer;

/// Most callers that are counted one by one; the rest is counted together.
const CALLERS_MAX: usize = 100_000;

/// Most callers that are shown.
const CALLERS_SHOWN_MAX: usize = 10;

/// The name of all callers beyond the most.
const OTHERS: &str = "(others)";

/// Counts of all callers.
#[derive(Default)]
pub(super) struct CallerTallies {
    /// Bound: `CALLERS_MAX` and one more.
    callers: HashMap<Box<str>, CallerTally>,
}

/// Counts of one caller.
#[derive(Clone, Copy, Default)]
struct CallerTally {
    requests: u64,
    served: u64,
    /// Sum of the delays of served requests.
    delay_us: u64,
    longest_us: u64,
}

impl CallerTallies {
    /// Counts a request that was decided after a wait in a queue.
    pub(super) fn add(&mut self, caller: Box<str>, answer: &Answer, waited: Wait) {
        let is_full = self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&caller);
        let caller = if is_full { OTHERS.into() } else { caller };
        let tally = self.callers.entry(caller).or_default();
        tally.requests += 1;
        if answer.allowed() {
            let us = |wait: Wait| wait.as_micros().unwrap_or_default();
            let delay_us = us(waited) + us(answer.delay());
            tally.served += 1;
            tally.delay_us += delay_us;
            tally.longest_us = tally.longest_us.max(delay_us);
        }
    }

    /// Jain's index of the served requests: 1 if all callers were served equally often.
    fn index(&self) -> f64 {
        let served = || self.callers.values().map(|tally| tally.served as f64);
        let (sum, squares) = (served().sum::<f64>(), served().map(|one| one * one).sum::<f64>());
        if squares == 0.0 { 1.0 } else { sum * sum / (self.callers.len() as f64 * squares) }
    }
}

impl CallerTally {
    fn mean(&self) -> Duration {
        Duration::from_micros(self.delay_us / self.served.max(1))
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us)
    }
}

impl fmt::Display for CallerTallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<_> = self.callers.iter().collect();
        if all.is_empty() {
            return Ok(());
        }
        all.sort_by_key(|(name, tally)| (std::cmp::Reverse(tally.requests), *name));
        writeln!(f, "\n{:<20}{:>10}", "callers", all.len())?;
        writeln!(f, "{:<20}{:>10.3}", "  fairness (Jain)", self.index())?;
        let width = all.iter().take(CALLERS_SHOWN_MAX).map(|(name, _)| name.chars().count());
        let width = width.max().unwrap_or(0).clamp(6, 40);
        writeln!(
            f,
            "\n{:<width$}  {:>8}  {:>8}  {:>10}  {:>13}",
            "caller", "requests", "served", "mean delay", "longest delay"
        )?;
        for (name, tally) in all.iter().take(CALLERS_SHOWN_MAX) {
            let name: String = name.chars().take(40).collect();
            let CallerTally { requests, served, .. } = tally;
            let (mean, longest) = (millis(tally.mean()), millis(tally.longest()));
            writeln!(f, "{name:<width$}  {requests:>8}  {served:>8}  {mean:>10}  {longest:>13}")?;
        }
        match all.len().saturating_sub(CALLERS_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Formats a duration in milliseconds.
fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
