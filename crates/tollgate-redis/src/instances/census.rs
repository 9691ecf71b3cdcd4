//! How many instances are alive, as far as that can be believed.
//!
//! A store that was emptied or stalled reports too few instances for a moment. Each instance would
//! then take a larger share, so a smaller number is believed only after a while.

use std::time::Duration;

use tokio::time::Instant;

/// Time for which the store must report fewer instances before they are believed. Every live
/// instance has reported several times within it.
const FEWER_BELIEVED_AFTER: Duration = Duration::from_secs(2);

/// The number of live instances.
#[derive(Debug, Default)]
pub(super) struct InstanceCensus {
    count: u32,
    /// The start of the period with fewer instances, and the largest number reported in it.
    fewer: Option<(Instant, u32)>,
}

impl InstanceCensus {
    /// The store says so many; how many to believe in.
    pub(super) fn observe(&mut self, count: u32, at: Instant) -> u32 {
        if count >= self.count {
            (self.count, self.fewer) = (count, None);
            return count;
        }
        let (since, most) = self.fewer.unwrap_or((at, count));
        let most = most.max(count);
        self.fewer = Some((since, most));
        if at - since >= FEWER_BELIEVED_AFTER {
            (self.count, self.fewer) = (most, None);
        }
        self.count
    }

    /// The store has not answered: neither has it told the others.
    pub(super) fn forget_fewer(&mut self) {
        self.fewer = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_believed_at_once_and_fewer_after_a_while() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut census = InstanceCensus::default();
        assert_eq!(census.observe(3, at(0)), 3);
        assert_eq!(census.observe(1, at(100)), 3);
        assert_eq!(census.observe(2, at(350)), 3);
        assert_eq!(census.observe(3, at(600)), 3, "they are all there again");
        assert_eq!(census.observe(1, at(700)), 3);
        assert_eq!(census.observe(2, at(1_000)), 3);
        assert_eq!(census.observe(1, at(2_699)), 3);
        assert_eq!(census.observe(1, at(2_700)), 2, "the most of what was told meanwhile");
        assert_eq!(census.observe(1, at(2_800)), 2);
        census.forget_fewer();
        assert_eq!(census.observe(1, at(9_000)), 2, "the store was away: nobody could say so");
        assert_eq!(census.observe(1, at(11_000)), 1);
        assert_eq!(census.observe(4, at(11_001)), 4);
    }
}
