//! What this listener counts, for metrics. Nothing that a caller sends becomes a label.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_rules::stripes::Counters;

use super::commands::{ALL, Command};

const OTHER: usize = ALL.len();

/// Why connections or commands came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The bytes were no commands.
    Protocol,
    /// No token, or a wrong one.
    Auth,
    /// The arguments were wrong.
    Command,
}

const TROUBLES: [&str; 3] = ["protocol", "auth", "command"];

/// Counts.
#[derive(Debug, Default)]
pub(crate) struct RespFigures {
    commands: Counters<{ OTHER + 1 }>,
    troubles: Counters<{ TROUBLES.len() }>,
    /// Allowed, then refused.
    throttled: Counters<2>,
    /// Sets of numbers that are kept for it,
    sets: AtomicU64,
    /// and calls with others.
    apart: AtomicU64,
}

impl RespFigures {
    #[inline]
    pub(super) fn commands(&self, command: Option<Command>, count: u64) {
        self.commands.add(command.map_or(OTHER, |command| command as usize), count);
    }

    pub(super) fn trouble(&self, trouble: Trouble) {
        self.troubles.add(trouble as usize, 1);
    }

    #[inline]
    pub(super) fn throttled(&self, allowed: u64, refused: u64) {
        // An addition that others could see costs as much if it adds nothing.
        for (index, count) in [allowed, refused].into_iter().enumerate() {
            if count > 0 {
                self.throttled.add(index, count);
            }
        }
    }

    pub(super) fn sets_in_use(&self, sets: usize) {
        self.sets.store(sets as u64, Ordering::Relaxed);
    }

    pub(super) fn decided_apart(&self) {
        self.apart.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets of numbers of `CL.THROTTLE` that are kept.
    pub(crate) fn sets(&self) -> u64 {
        self.sets.load(Ordering::Relaxed)
    }

    /// Calls with numbers for which there was no room.
    pub(crate) fn apart(&self) -> u64 {
        self.apart.load(Ordering::Relaxed)
    }

    /// Each command and how often it came.
    pub(crate) fn command_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ALL.iter().map(|one| one.name).chain(["other"]).zip(self.commands.sums())
    }

    /// Each kind of error and how often it was answered.
    pub(crate) fn error_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TROUBLES.into_iter().zip(self.troubles.sums())
    }

    /// What `CL.THROTTLE` was answered.
    pub(crate) fn throttle_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["allowed", "refused"].into_iter().zip(self.throttled.sums())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_counted_together() {
        let figures = RespFigures::default();
        figures.commands(Some(Command::Throttle), 3);
        figures.commands(Some(Command::Asking), 1);
        figures.commands(None, 2);
        figures.trouble(Trouble::Command);
        figures.throttled(2, 1);
        let counted: Vec<_> = figures.command_sums().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("cl.throttle", 3), ("asking", 1), ("other", 2)]);
        assert_eq!(figures.error_sums().last(), Some(("command", 1)));
        assert_eq!(figures.throttle_sums().collect::<Vec<_>>(), [("allowed", 2), ("refused", 1)]);
    }
}
