//! Counters of this listener, for metrics. Nothing that a client sends becomes a label.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_rules::stripes::StripedCounters;

use super::commands::{COMMANDS, RespCommand};
use crate::listeners::service::ListenerMetrics;
use crate::metrics::exposition::{MetricKind, MetricsPage};

const OTHER_COMMAND: usize = COMMANDS.len();

/// Kind of a command or protocol error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespErrorKind {
    /// The bytes were not valid RESP.
    Protocol,
    /// The token was missing or wrong.
    Auth,
    /// The command or its arguments were wrong.
    Command,
}

const ERROR_KINDS: [&str; 3] = ["protocol", "auth", "command"];

/// Counters of the resp listener.
#[derive(Debug, Default)]
pub(crate) struct RespCounters {
    commands: StripedCounters<{ OTHER_COMMAND + 1 }>,
    errors: StripedCounters<{ ERROR_KINDS.len() }>,
    /// Calls of `CL.THROTTLE`: allowed, then refused.
    throttled: StripedCounters<2>,
    /// Different limits of `CL.THROTTLE` in use.
    limits_in_use: AtomicU64,
    /// Calls of `CL.THROTTLE` that were decided in the overflow table.
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
        // Adding 0 to a shared counter costs as much as adding 1.
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

    /// Different limits of `CL.THROTTLE` in use.
    pub(crate) fn limits_in_use(&self) -> u64 {
        self.limits_in_use.load(Ordering::Relaxed)
    }

    /// Calls of `CL.THROTTLE` that were decided in the overflow table, because too many limits were in use.
    pub(crate) fn overflow_calls(&self) -> u64 {
        self.overflow_calls.load(Ordering::Relaxed)
    }

    /// Number of calls of each command.
    pub(crate) fn command_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COMMANDS.iter().map(|one| one.name).chain(["other"]).zip(self.commands.sums())
    }

    /// Number of errors of each kind.
    pub(crate) fn error_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ERROR_KINDS.into_iter().zip(self.errors.sums())
    }

    /// Number of calls of `CL.THROTTLE`, by outcome.
    pub(crate) fn throttle_sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["allowed", "refused"].into_iter().zip(self.throttled.sums())
    }
}

impl ListenerMetrics for RespCounters {
    fn write(&self, page: &mut MetricsPage) {
        let help = "Commands of Redis clients, by name.";
        let mut commands = page.family("tollgate_resp_commands_total", MetricKind::Counter, help);
        for (command, count) in self.command_sums() {
            commands.sample(&[("command", command)], count);
        }
        let help = "Error replies to Redis clients, by reason.";
        let mut errors = page.family("tollgate_resp_errors_total", MetricKind::Counter, help);
        for (reason, count) in self.error_sums() {
            errors.sample(&[("reason", reason)], count);
        }
        let help = "Calls of CL.THROTTLE, by outcome.";
        let mut throttled = page.family("tollgate_throttle_calls_total", MetricKind::Counter, help);
        for (outcome, count) in self.throttle_sums() {
            throttled.sample(&[("outcome", outcome)], count);
        }
        let help = "Sets of numbers that CL.THROTTLE is called with and that are kept.";
        page.family("tollgate_throttle_sets", MetricKind::Gauge, help)
            .sample(&[], self.limits_in_use());
        let help =
            "Calls of CL.THROTTLE that are counted separately, because too many sets are in use.";
        let mut apart =
            page.family("tollgate_throttle_calls_apart_total", MetricKind::Counter, help);
        apart.sample(&[], self.overflow_calls());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_commands_are_counted_together() {
        let counters = RespCounters::default();
        counters.count_commands(Some(RespCommand::Throttle), 3);
        counters.count_commands(Some(RespCommand::Asking), 1);
        counters.count_commands(None, 2);
        counters.count_error(RespErrorKind::Command);
        counters.count_throttled(2, 1);
        let counted: Vec<_> = counters.command_sums().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("cl.throttle", 3), ("asking", 1), ("other", 2)]);
        assert_eq!(counters.error_sums().last(), Some(("command", 1)));
        assert_eq!(counters.throttle_sums().collect::<Vec<_>>(), [("allowed", 2), ("refused", 1)]);
    }
}
