//! Options of a limit beside its numbers.

use crate::time::Micros;

/// The start of fixed windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// At whole multiples of the period since the Unix epoch: every process agrees.
    #[default]
    Epoch,
    /// At whole multiples of the period since this instant: "resets at 09:00".
    Anchor(Micros),
    /// At the first charged request; it lasts exactly one period.
    FirstHit,
}

impl Align {
    /// Offset of windows after a multiple of the period.
    pub(super) fn offset(self, period: u64) -> u64 {
        match self {
            Align::Anchor(anchor) => anchor.as_u64() % period,
            Align::Epoch | Align::FirstHit => 0,
        }
    }
}

/// The way in which a sliding window counter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Two counters, the older weighted by its overlap: small, fast, an estimate.
    #[default]
    Estimate,
    /// This many sub-buckets counted whole: never above N in any trailing period.
    Buckets(u32),
}

/// The treatment of used units when a limit's numbers change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Used units stay used: 40 left of 100 becomes 140 left of 200, and none of 20. Windows,
    /// counters and logs keep their counts whatever the numbers are. A bucket does not count use above a
    /// smaller capacity; it remembers such use, and a larger capacity counts it again.
    #[default]
    Keep,
    /// All keys start fresh.
    Reset,
    /// Remaining units grow or shrink with the limit: 40 of 100 becomes 80 of 200.
    Scale,
}

/// Options beside the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LimitOptions {
    pub(super) queue: bool,
    pub(super) align: Align,
    pub(super) stagger: bool,
    pub(super) precision: Precision,
    pub(super) on_change: OnChange,
}
