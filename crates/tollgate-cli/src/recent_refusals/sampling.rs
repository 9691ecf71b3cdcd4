//! Decides which refusals of a flood are recorded: the first few of each rule in a second.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Micros;

/// Most refusals of all rules that are recorded in a second.
const PER_SECOND_MAX: u64 = 50;

/// Most refusals of one rule that are recorded in a second, so that the flood of one does not hide the others.
const PER_RULE_MAX: u64 = 5;

/// Number of counters of rules. Rules that share one share its refusals.
const RULE_COUNTERS: usize = 64;

/// Bits of a counter that hold its count; the others hold the second.
const COUNT_BITS: u32 = 8;

/// Refusals recorded in this second, over all and by rule.
#[derive(Debug)]
pub(super) struct RefusalSampling {
    all: SecondCounter,
    by_rule: [SecondCounter; RULE_COUNTERS],
}

/// A count that begins anew each second. A counter that is full is only read, so threads do not slow each other.
#[derive(Debug, Default)]
struct SecondCounter(AtomicU64);

impl Default for RefusalSampling {
    fn default() -> RefusalSampling {
        RefusalSampling {
            all: SecondCounter::default(),
            by_rule: std::array::from_fn(|_| SecondCounter::default()),
        }
    }
}

impl RefusalSampling {
    /// Returns true if a refusal by this rule is recorded.
    pub(super) fn admits(&self, rule_hash: u64, now: Micros) -> bool {
        let second = now.as_u64() / 1_000_000;
        let of_rule = &self.by_rule[rule_hash as usize % RULE_COUNTERS];
        !self.all.is_full(second, PER_SECOND_MAX)
            && of_rule.count(second, PER_RULE_MAX)
            && self.all.count(second, PER_SECOND_MAX)
    }
}

impl SecondCounter {
    /// Returns true if it has counted so many in this second.
    fn is_full(&self, second: u64, most: u64) -> bool {
        count_in(self.0.load(Ordering::Relaxed), second) >= most
    }

    /// Counts one if there are fewer in this second; `false` if there are not.
    fn count(&self, second: u64, most: u64) -> bool {
        let counted = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |packed| {
            let count = count_in(packed, second);
            (count < most).then_some(second << COUNT_BITS | (count + 1))
        });
        counted.is_ok()
    }
}

/// The count of a packed counter in a second; 0 if the counter is of another one.
fn count_in(packed: u64, second: u64) -> u64 {
    // The clock may go back: what is not this second does not count.
    let is_now = packed >> COUNT_BITS == second;
    if is_now { packed & ((1 << COUNT_BITS) - 1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_admits_a_few_of_each_rule() {
        let sampling = RefusalSampling::default();
        let admitted = |rule: u64, second: u64| {
            let now = Micros::from_secs(second);
            (0..1_000).filter(|_| sampling.admits(rule, now)).count() as u64
        };
        assert_eq!(admitted(1, 10), PER_RULE_MAX);
        assert_eq!(admitted(1, 10), 0);
        assert_eq!(admitted(2, 10), PER_RULE_MAX, "another rule is not hidden");
        let others: u64 = (3..40).map(|rule| admitted(rule, 10)).sum();
        assert_eq!(others, PER_SECOND_MAX - 2 * PER_RULE_MAX, "all rules together are bounded");
        assert_eq!(admitted(1, 11), PER_RULE_MAX, "the next second");
        assert_eq!(admitted(1, 9), PER_RULE_MAX, "a clock that was set back");
    }
}
