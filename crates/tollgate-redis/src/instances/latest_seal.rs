//! `LatestSeal`: the latest version of a fact that this instance has known, so that no earlier one is taken again.

use tollgate::Micros;

/// Time by which a version may be older than the latest, and for which such a version is taken after the latest came.
/// Two changes at one time on two instances have times by two clocks, and all instances take the one that the store has.
const TOLERANCE_US: u64 = 10_000_000;

/// The latest version of one fact. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LatestSeal {
    /// The time of its seal, by the store's clock; 0 if none is known.
    pub(super) authored: u64,
    /// The instant at which it came, by this instance's clock.
    came: Micros,
}

impl LatestSeal {
    /// Returns true if a version is one that somebody has written back.
    pub(super) fn is_replay(self, authored: u64, now: Micros) -> bool {
        let is_near = authored.saturating_add(TOLERANCE_US) >= self.authored;
        // A clock that was set back ends the tolerance.
        let age = now.as_u64().checked_sub(self.came.as_u64());
        let is_fresh = age.is_some_and(|age| age <= TOLERANCE_US);
        authored < self.authored && !(is_near && is_fresh)
    }

    /// Records a version that was taken. An earlier one that was taken within the tolerance changes nothing.
    pub(super) fn record(&mut self, authored: u64, now: Micros) {
        if authored > self.authored {
            *self = LatestSeal { authored, came: now };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_version_is_taken_for_ten_seconds_and_only_if_it_is_that_near() {
        let mut latest = LatestSeal::default();
        latest.record(60_000_000, Micros::new(5_000_000));
        // authored, now, is a replay
        let rows = [
            (60_000_000, 5_000_000, false),
            (60_000_000, 900_000_000, false),
            (60_000_001, 900_000_000, false),
            (59_999_999, 15_000_000, false),
            (59_999_999, 15_000_001, true),
            (50_000_000, 15_000_000, false),
            (49_999_999, 5_000_000, true),
            (59_999_999, 4_999_999, true),
            (0, 5_000_000, true),
        ];
        for (authored, now, is_replay) in rows {
            assert_eq!(latest.is_replay(authored, Micros::new(now)), is_replay, "{authored} {now}");
        }
    }

    #[test]
    fn the_tolerance_cannot_be_walked_backwards() {
        let mut latest = LatestSeal::default();
        latest.record(100_000_000, Micros::new(1));
        for (authored, is_replay) in [(91_000_000, false), (82_000_000, true), (73_000_000, true)] {
            assert_eq!(latest.is_replay(authored, Micros::new(2)), is_replay, "{authored}");
            latest.record(authored, Micros::new(2));
        }
        assert_eq!(latest, LatestSeal { authored: 100_000_000, came: Micros::new(1) });
    }
}
