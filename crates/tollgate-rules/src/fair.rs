//! `Fair`: the queue in which requests of a rule wait their turn, instead of being refused.

use std::time::Duration;

/// The bounds of a rule's queue, and the shares of its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fair {
    /// The longest wait of a request.
    pub wait: Duration,
    /// The most waiting requests of one key.
    pub per_key: u32,
    /// The most waiting requests of the rule.
    pub total: u32,
    /// The weight of each tier in the order of the rule set, in thousandths; empty if all callers
    /// have equal shares.
    tier_weights: Box<[u32]>,
}

impl Fair {
    /// The most waiting requests of one key, unless the rule says otherwise.
    pub const PER_KEY: u32 = 100;
    /// The most waiting requests of a rule, unless it says otherwise.
    pub const TOTAL: u32 = 10_000;
    /// The highest bound that a rule can set: what waits takes memory.
    pub const TOTAL_MAX: u32 = 100_000;
    /// The weight of callers without a tier, in thousandths.
    const EQUAL_WEIGHT: u32 = 1_000;

    /// Creates a queue whose requests wait at most so long, with equal shares.
    pub fn new(wait: Duration) -> Fair {
        Fair { wait, per_key: Fair::PER_KEY, total: Fair::TOTAL, tier_weights: [].into() }
    }

    /// Sets the weight of each tier, in thousandths.
    #[must_use]
    pub fn with_tier_weights(self, tier_weights: Vec<u32>) -> Fair {
        Fair { tier_weights: tier_weights.into(), ..self }
    }

    /// The weight of a tier, by its place in the rule set, in thousandths.
    pub fn weight(&self, tier: Option<usize>) -> u32 {
        tier.and_then(|tier| self.tier_weights.get(tier).copied()).unwrap_or(Fair::EQUAL_WEIGHT)
    }
}
