//! Debouncing: a file that is being written causes many events.

use tollgate::{Micros, Wait};

/// Time without hints after which a write counts as complete.
pub(super) const QUIET: Wait = Wait::from_micros(100_000);

/// The same after a file was renamed into place: it is complete, but others may follow.
pub(super) const QUIET_AFTER_RENAME: Wait = Wait::from_micros(10_000);

/// Longest wait after the first hint, however many follow.
const WAIT_MAX: Wait = Wait::from_micros(1_000_000);

/// Timer for acting on hints.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    /// Time of the first hint, and end of the quiet time.
    waiting: Option<(Micros, Micros)>,
}

impl Debounce {
    /// Records a hint, with the quiet time after it.
    pub(super) fn hint(&mut self, now: Micros, quiet: Wait) {
        let (first, until) = self.waiting.unwrap_or((now, now));
        self.waiting = Some((first, until.max(now.after(quiet))));
    }

    /// The time to act, if there was a hint.
    pub(super) fn due(&self) -> Option<Micros> {
        self.waiting.map(|(first, until)| first.after(WAIT_MAX).min(until))
    }

    /// Returns true if it is time to act, and clears the hints then.
    pub(super) fn settled(&mut self, now: Micros) -> bool {
        let settled = self.due().is_some_and(|due| due <= now);
        if settled {
            self.waiting = None;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_quiet_but_not_forever() {
        // Instants of hints in ms, `true` for renames; when it is time.
        let every_50: Vec<(u64, bool)> = (0..100).map(|n| (n * 50, false)).collect();
        let rows: [(&[(u64, bool)], u64); 7] = [
            (&[(0, false)], 100),
            (&[(0, false), (99, false)], 199),
            (&[(500, false), (599, false), (650, false)], 750),
            (&[(500, true)], 510),
            (&[(500, true), (505, true)], 515),
            (&[(500, false), (505, true)], 600),
            (&every_50, 1_000),
        ];
        for (hints, due) in rows {
            let mut debounce = Debounce::default();
            let ms = |ms: u64| Micros::new(ms * 1_000);
            assert!(!debounce.settled(ms(9_999)), "nobody hinted");
            for (at, renamed) in hints {
                debounce.hint(ms(*at), if *renamed { QUIET_AFTER_RENAME } else { QUIET });
            }
            assert_eq!(debounce.due(), Some(ms(due)), "{hints:?}");
            assert!(!debounce.settled(Micros::new(due * 1_000 - 1)));
            assert!(debounce.settled(ms(due)));
            assert!(!debounce.settled(ms(due)), "used up");
        }
    }
}
