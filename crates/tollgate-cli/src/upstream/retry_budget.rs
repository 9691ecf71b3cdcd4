//! The retry budget of an upstream: retries are at most a share of requests, so that they cannot multiply the load of an
//! upstream that is already failing.

use std::sync::{Mutex, PoisonError};

/// Parts of one retry.
const RETRY_PARTS: u64 = 100_000;

/// The most retries that are saved up.
const SAVED_MAX: u64 = 100;

/// Retries that a new budget has: enough for the failures that lead to an ejection.
const AT_FIRST: u64 = 10;

/// Retries in each second that are allowed beside the share, so that a quiet upstream has retries as well.
const PER_SECOND: u64 = 3;

/// The budget. Only retries lock it.
#[derive(Debug)]
pub(super) struct RetryBudget(Mutex<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    /// Parts of retries saved up. Bound: [`SAVED_MAX`] retries.
    parts: u64,
    /// Requests that have been counted.
    requests: u64,
    /// The time until which the seconds have been counted.
    at_ms: u64,
}

impl RetryBudget {
    /// A budget with a few retries.
    pub(super) fn new(requests: u64, now_ms: u64) -> RetryBudget {
        let parts = AT_FIRST * RETRY_PARTS;
        RetryBudget(Mutex::new(BudgetState { parts, requests, at_ms: now_ms }))
    }

    /// Takes one retry, if there is one. `requests` is the number of all requests so far.
    pub(super) fn take(&self, percent: u8, requests: u64, now_ms: u64) -> bool {
        if percent == 0 {
            return false;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by_requests = requests.saturating_sub(state.requests) * u64::from(percent);
        let by_time =
            now_ms.saturating_sub(state.at_ms).saturating_mul(PER_SECOND * RETRY_PARTS / 1_000);
        let earned = by_requests.saturating_mul(RETRY_PARTS / 100).saturating_add(by_time);
        state.parts = state.parts.saturating_add(earned).min(SAVED_MAX * RETRY_PARTS);
        state.requests = requests;
        state.at_ms = state.at_ms.max(now_ms);
        let left = state.parts.checked_sub(RETRY_PARTS);
        state.parts = left.unwrap_or(state.parts);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of retries that can be taken at once.
    fn take_all(budget: &RetryBudget, percent: u8, requests: u64, now_ms: u64) -> usize {
        (0..1_000).take_while(|_| budget.take(percent, requests, now_ms)).count()
    }

    #[test]
    fn retries_are_a_share_of_requests_and_a_few_by_time() {
        let budget = RetryBudget::new(0, 0);
        // Percent, requests so far, the time; retries
        let rows = [
            (10, 0, 0, 10),
            (10, 9, 0, 0),
            (10, 10, 0, 1),
            (10, 510, 0, 50),
            (20, 520, 0, 2),
            (10, 520, 333, 0),
            (10, 520, 334, 1),
            (10, 520, 10_334, 30),
            // No more than the bound is saved up.
            (10, 1_000_000, 10_334, 100),
            (10, 1_000_000, 10_000_000, 100),
            // A clock or a count that goes back gives nothing.
            (10, 5, 5, 0),
            (0, 2_000_000, 20_000_000, 0),
        ];
        for (number, (percent, requests, now_ms, want)) in rows.into_iter().enumerate() {
            assert_eq!(take_all(&budget, percent, requests, now_ms), want, "row {number}");
        }
    }
}
