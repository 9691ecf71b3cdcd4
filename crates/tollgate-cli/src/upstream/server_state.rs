//! The state of a server for people: why it gets no requests or fails them, since when, and which change of it is logged.

use std::fmt;

use super::error::ForwardError;

/// Shortest time between two log lines about one server.
const SILENCE_MS: u64 = 1_000;

/// The same for a server that keeps getting requests: clients that make it fail could cause a line with each answer.
const TRIED_SILENCE_MS: u64 = 10_000;

/// The state of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// It gets requests.
    #[default]
    Available,
    /// Its last requests all failed. It still gets requests, because at most half of the servers are ejected, or because
    /// an ejection has ended.
    Failing,
    /// It gets no requests for some time, because several in a row failed.
    Ejected,
    /// It gets no requests until its health checks succeed.
    Down,
}

impl ServerState {
    /// All states.
    pub(crate) const ALL: [ServerState; 4] =
        [ServerState::Available, ServerState::Failing, ServerState::Ejected, ServerState::Down];

    /// The word in metrics and in the admin API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerState::Available => "available",
            ServerState::Failing => "failing",
            ServerState::Ejected => "ejected",
            ServerState::Down => "down",
        }
    }

    /// Returns true if the server gets requests.
    pub(crate) fn gets_requests(self) -> bool {
        matches!(self, ServerState::Available | ServerState::Failing)
    }
}

/// The last failure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// A request failed.
    Request(ForwardError),
    /// The body of a response broke off.
    BrokenBody,
    /// A health check was answered with this status.
    CheckStatus(u16),
    /// A health check failed.
    Check(ForwardError),
    /// A health check was not answered in time.
    CheckTimeout,
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureReason::Request(error) => f.write_str(error.code()),
            FailureReason::BrokenBody => f.write_str("broken_response"),
            FailureReason::CheckStatus(status) => write!(f, "health check: status {status}"),
            FailureReason::Check(error) => write!(f, "health check: {}", error.code()),
            FailureReason::CheckTimeout => f.write_str("health check: no answer in time"),
        }
    }
}

/// Notes about the state of a server.
#[derive(Debug, Default)]
pub(super) struct StateNotes {
    /// The last failure.
    pub(super) reason: Option<FailureReason>,
    /// The state when it was last looked at.
    pub(super) state: ServerState,
    /// The Unix time of the change to it, in milliseconds.
    pub(super) since_unix_ms: u64,
    /// The state that the last log line named, and its time.
    logged: ServerState,
    logged_at_ms: Option<u64>,
}

impl StateNotes {
    /// Notes the state. Returns the one that was logged before if a line is to be logged; a change that comes too soon after a
    /// line is logged later, unless the state has changed back.
    pub(super) fn look(
        &mut self,
        state: ServerState,
        now_ms: u64,
        unix_ms: u64,
    ) -> Option<ServerState> {
        if state != self.state {
            (self.state, self.since_unix_ms) = (state, unix_ms);
        }
        if state == self.logged {
            return None;
        }
        let is_tried = state.gets_requests() && self.logged.gets_requests();
        let silence_ms = if is_tried { TRIED_SILENCE_MS } else { SILENCE_MS };
        if self.logged_at_ms.is_some_and(|at_ms| now_ms < at_ms.saturating_add(silence_ms)) {
            return None;
        }
        self.logged_at_ms = Some(now_ms);
        Some(std::mem::replace(&mut self.logged, state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_logged_once_and_not_too_often() {
        use ServerState::{Available, Down, Ejected, Failing};
        // Time, state | logged, since
        let rows = [
            (0, Available, false, 0),
            (5, Ejected, true, 1_005),
            (6, Ejected, false, 1_005),
            (1_004, Available, false, 2_004),
            (1_005, Available, true, 2_004),
            (1_500, Failing, false, 2_500),
            (11_004, Failing, false, 2_500),
            (11_005, Failing, true, 2_500),
            (11_006, Available, false, 12_006),
            (11_007, Failing, false, 12_007),
            (21_005, Failing, false, 12_007),
            (21_006, Down, true, 22_006),
            (21_007, Available, false, 22_007),
            (22_006, Available, true, 22_007),
        ];
        let mut notes = StateNotes::default();
        for (now_ms, state, is_logged, since) in rows {
            let logged_before = notes.look(state, now_ms, now_ms + 1_000);
            assert_eq!(logged_before.is_some(), is_logged, "at {now_ms}");
            assert_eq!(notes.since_unix_ms, since, "at {now_ms}");
        }
    }

    #[test]
    fn a_client_cannot_fill_the_log() {
        let mut notes = StateNotes::default();
        let states = [ServerState::Failing, ServerState::Available];
        let lines = (0..100_000_u64)
            .filter_map(|number| notes.look(states[(number % 2) as usize], number, number));
        assert!(lines.count() <= 11);
    }
}
