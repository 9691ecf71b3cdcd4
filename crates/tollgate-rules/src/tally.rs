//! `Tally`: the verdicts of a rule so far, counted without a cache line that all threads write.

use tollgate::Refusal;

use crate::stripes::{StripeNumber, StripedCounters};

/// The verdict of a rule on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its limits have room.
    Allowed,
    /// One of them has not: the request is refused.
    Refused,
    /// The same, but the rule is in shadow, or not enforced for this caller.
    Shadow,
    /// The same, but the rule only warns.
    Soft,
    /// The store is unavailable, and the rule refuses then.
    Unavailable,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 5] =
        [Verdict::Allowed, Verdict::Refused, Verdict::Shadow, Verdict::Soft, Verdict::Unavailable];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
            Verdict::Shadow => "shadow",
            Verdict::Soft => "soft",
            Verdict::Unavailable => Refusal::StoreUnavailable.name(),
        }
    }
}

/// Counts the verdicts of one rule.
#[derive(Debug, Default)]
pub struct Tally(StripedCounters<{ Verdict::ALL.len() }>);

impl Tally {
    /// Counts one in the stripe of this thread.
    #[inline]
    pub(crate) fn add(&self, verdict: Verdict, stripe: StripeNumber) {
        self.0.add_at(stripe, verdict as usize, 1);
    }

    /// Number of times that the rule gave this verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.counts()[verdict as usize]
    }

    /// Number of times that the rule gave each verdict, in the order of [`Verdict::ALL`].
    pub fn counts(&self) -> [u64; Verdict::ALL.len()] {
        self.0.sums()
    }
}
