//! `Tally`: the verdicts and bans of a rule so far, counted without a cache line that all threads write.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Refusal;

use crate::stripes::{StripeNumber, StripedCounters};

/// The verdict of a rule on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its limits have room, and the request was allowed.
    Allowed,
    /// One of them has not: the request is refused.
    Refused,
    /// The same, but the rule is in shadow, or not enforced for this caller.
    Shadow,
    /// The same, but the rule only warns.
    Soft,
    /// The store is unavailable, and the rule refuses then.
    Unavailable,
    /// Its limits have room, but the request was refused: by another rule, or by a block. Nothing was charged.
    RefusedByOther,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 6] = [
        Verdict::Allowed,
        Verdict::Refused,
        Verdict::Shadow,
        Verdict::Soft,
        Verdict::Unavailable,
        Verdict::RefusedByOther,
    ];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Refused => "refused",
            Verdict::Shadow => "shadow",
            Verdict::Soft => "soft",
            Verdict::Unavailable => Refusal::StoreUnavailable.name(),
            Verdict::RefusedByOther => "refused_by_other",
        }
    }
}

/// Counts the verdicts and the bans of one rule.
#[derive(Debug, Default)]
pub struct Tally {
    verdicts: StripedCounters<{ Verdict::ALL.len() }>,
    /// Bans, which are rare: one by this instance, and one in shadow.
    bans: AtomicU64,
    shadow_bans: AtomicU64,
}

impl Tally {
    /// Counts one in the stripe of this thread.
    #[inline]
    pub(crate) fn add(&self, verdict: Verdict, stripe: StripeNumber) {
        self.verdicts.add_at(stripe, verdict as usize, 1);
    }

    /// Counts a ban.
    pub(crate) fn add_ban(&self, is_shadow: bool) {
        let counter = if is_shadow { &self.shadow_bans } else { &self.bans };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of callers that this instance has blocked because the rule refused them too often.
    pub fn bans(&self) -> u64 {
        self.bans.load(Ordering::Relaxed)
    }

    /// Number of callers that it would have blocked if the rule were not in shadow.
    pub fn shadow_bans(&self) -> u64 {
        self.shadow_bans.load(Ordering::Relaxed)
    }

    /// Number of times that the rule gave this verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.counts()[verdict as usize]
    }

    /// Number of times that the rule gave each verdict, in the order of [`Verdict::ALL`].
    pub fn counts(&self) -> [u64; Verdict::ALL.len()] {
        self.verdicts.sums()
    }
}
