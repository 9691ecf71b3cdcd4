//! Waiting until it is quiet: a file that is being written tells of every piece.

use tollgate::{Micros, Wait};

/// As long without a hint means that whoever wrote is done.
const QUIET: Wait = Wait::from_micros(100_000);

/// The longest wait after the first hint, however many follow.
const WAIT_MAX: Wait = Wait::from_micros(1_000_000);

/// When to act on hints.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    /// The first hint and the last.
    between: Option<(Micros, Micros)>,
}

impl Debounce {
    pub(super) fn hint(&mut self, now: Micros) {
        let (first, _) = self.between.unwrap_or((now, now));
        self.between = Some((first, now));
    }

    /// When it is time, if there was a hint.
    pub(super) fn due(&self) -> Option<Micros> {
        let (first, last) = self.between?;
        Some(first.after(WAIT_MAX).min(last.after(QUIET)))
    }

    /// Whether it is time; if so, all hints are used up.
    pub(super) fn settled(&mut self, now: Micros) -> bool {
        let settled = self.due().is_some_and(|due| due <= now);
        if settled {
            self.between = None;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_quiet_but_not_forever() {
        // Instants of hints in ms; when it is time.
        let every_50: Vec<u64> = (0..100).map(|n| n * 50).collect();
        let rows: [(&[u64], u64); 4] =
            [(&[0], 100), (&[0, 99], 199), (&[500, 599, 650], 750), (&every_50, 1_000)];
        for (hints, due) in rows {
            let mut debounce = Debounce::default();
            let ms = |ms: u64| Micros::new(ms * 1_000);
            assert!(!debounce.settled(ms(9_999)), "nobody hinted");
            hints.iter().for_each(|at| debounce.hint(ms(*at)));
            assert_eq!(debounce.due(), Some(ms(due)), "{hints:?}");
            assert!(!debounce.settled(Micros::new(due * 1_000 - 1)));
            assert!(debounce.settled(ms(due)));
            assert!(!debounce.settled(ms(due)), "used up");
        }
    }
}
