//! What this listener counts, for metrics. Nothing that a caller sends becomes a label.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_rules::stripes::StripedCounters;

use super::commands::{COMMANDS, RespCommand};

const OTHER_COMMAND: usize = COMMANDS.len();

/// Why connections or commands came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespErrorKind {
    /// The bytes were no commands.
    Protocol,
    /// No token, or a wrong one.
    Auth,
    /// The arguments were wrong.
    Command,
}

const ERROR_KINDS: [&str; 3] = ["protocol", "auth", "command"];

/// Counts.
#[derive(Debug, Default)]
pub(crate) struct RespCounters {
    commands: StripedCounters<{ OTHER_COMMAND + 1 }>,
    errors: StripedCounters<{ ERROR_KINDS.len() }>,
    /// Allowed, then refused.
    throttled: StripedCounters<2>,
    /// Sets of numbers that are kept for it,
    limits_in_use: AtomicU64,
    /// and calls with others.
    overflow_calls: AtomicU64,
}

impl RespCounters {
    #[inline]
    pub(super) fn count_commands(&self, command: Option<RespCommand>, count: u64) {
        self.commands.add(command.map_or(OTHER_COMMAND, |command| command as usize), count);
    }

    pub(super) fn count_error(&self, trouble: RespErrorKind) {
        self.errors.add(trouble as usize, 1);
    }

    #[inline]
    pub(super) fn count_throttled(&self, allowed: u64, refused: u64) {
        // An addition that others could see costs as much if it adds nothing.
        for (index, count) in [allowed, refused].into_iter().enumerate() {
            if count > 0 {
                self.throttled.add(index, count);
            }
        }
    }

    pub(super) fn set_limits_in_use(&self, sets: usize) {
        self.limits_in_use.store(sets as u64, Ordering::Relaxed);
    }

    pub(super) fn count_overflow_call(&self) {
        self.overflow_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets of numbers of `CL.THROTTLE` that are kept.
    pub(crate) fn limits_in_use(&self) -> u64 {
        self.limits_in_use.load(Ordering::Relaxed)
    }

    /// Calls with numbers for which there was no room.
    pub(crate) fn overflow_calls(&self) -> u64 {
        self.overflow_calls.load(Ordering::Relaxed)
    }

    /// Each command and how often it came.
    pub(crate) fn command_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COMMANDS.iter().map(|one| one.name).chain(["other"]).zip(self.commands.sums())
    }

    /// Each kind of error and how often it was answered.
    pub(crate) fn error_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ERROR_KINDS.into_iter().zip(self.errors.sums())
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
        let figures = RespCounters::default();
        figures.count_commands(Some(RespCommand::Throttle), 3);
        figures.count_commands(Some(RespCommand::Asking), 1);
        figures.count_commands(None, 2);
        figures.count_error(RespErrorKind::Command);
        figures.count_throttled(2, 1);
        let counted: Vec<_> = figures.command_sums().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("cl.throttle", 3), ("asking", 1), ("other", 2)]);
        assert_eq!(figures.error_sums().last(), Some(("command", 1)));
        assert_eq!(figures.throttle_sums().collect::<Vec<_>>(), [("allowed", 2), ("refused", 1)]);
    }
}
