//! Limits the log lines about resets: a client can send hundreds of thousands of resets in a second, and the log
//! must neither drown in them nor lose the client that sent them.
//!
//! The first resets of each client in a second get a line each; one more line at its end counts the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Micros;

use super::audit::RespPeer;

/// Maximum lines of one client in a second, before the line that counts the rest.
const LINES_MAX: u32 = 10;

/// Maximum clients that are counted separately in a second; further ones are counted together. So a second has at
/// most 65 times 11 lines.
const CLIENTS_MAX: usize = 64;

const SECOND_US: u64 = 1_000_000;

/// Address of a client and number of its token; `None` for all clients beyond [`CLIENTS_MAX`].
pub(super) type ResetClient = Option<(IpAddr, Option<usize>)>;

/// Counts resets per client and second.
#[derive(Default)]
pub(super) struct ResetLog {
    counts: Mutex<ResetCounts>,
}

#[derive(Default)]
struct ResetCounts {
    second: u64,
    /// Bound: `CLIENTS_MAX` and one.
    clients: HashMap<ResetClient, ClientResets>,
}

/// Resets of one client in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClientResets {
    lines: u32,
    suppressed: SuppressedResets,
}

/// Resets that had no line of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SuppressedResets {
    pub(super) resets: u64,
    /// Number of those that found a key.
    pub(super) found: u64,
}

/// Suppressed resets of past seconds, per client.
pub(super) type ResetSummary = Vec<(ResetClient, SuppressedResets)>;

impl ResetLog {
    /// Counts one reset. Returns true if it gets a line of its own, and the summary to write before it.
    pub(super) fn count(&self, by: RespPeer, found: bool, now: Micros) -> (bool, ResetSummary) {
        let mut counted = self.lock_counts();
        let told = counted.begin_second(now);
        let client = Some((by.peer.ip(), by.token));
        let is_new = !counted.clients.contains_key(&client);
        let client = client.filter(|_| !is_new || counted.clients.len() < CLIENTS_MAX);
        let count = counted.clients.entry(client).or_default();
        if count.lines < LINES_MAX {
            count.lines += 1;
            return (true, told);
        }
        count.suppressed.resets += 1;
        count.suppressed.found += u64::from(found);
        (false, told)
    }

    /// Summary of the last second, if it is over.
    pub(super) fn take_due(&self, now: Micros) -> ResetSummary {
        self.lock_counts().begin_second(now)
    }

    /// Summary of all suppressed resets, when the server stops.
    pub(super) fn take_remaining(&self) -> ResetSummary {
        self.lock_counts().take()
    }

    fn lock_counts(&self) -> MutexGuard<'_, ResetCounts> {
        // The counts are consistent after every statement.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResetCounts {
    /// Begins a new second if this instant is in another one, and returns the summary of the last. A clock that went
    /// back begins one too.
    fn begin_second(&mut self, now: Micros) -> ResetSummary {
        let second = now.as_u64() / SECOND_US;
        if self.second == second {
            return Vec::new();
        }
        self.second = second;
        self.take()
    }

    fn take(&mut self) -> ResetSummary {
        let clients = self.clients.drain().map(|(client, count)| (client, count.suppressed));
        clients.filter(|(_, more)| more.resets > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(ip: [u8; 4], port: u16) -> RespPeer {
        RespPeer { peer: (ip, port).into(), token: Some(1) }
    }

    #[test]
    fn a_flood_has_few_lines_and_loses_no_count() {
        let resets = ResetLog::default();
        let (mut lines, mut told, mut more) = (0, 0, SuppressedResets::default());
        for turn in 0..200_000_u64 {
            // From another port each time: the client stays the same.
            let by = by([127, 0, 0, 1], turn as u16);
            let (line, before) = resets.count(by, turn % 2 == 0, Micros::new(turn * 10));
            lines += u64::from(line);
            for (client, one) in before {
                assert_eq!(client, Some(([127, 0, 0, 1].into(), Some(1))));
                told += 1;
                more.resets += one.resets;
                more.found += one.found;
            }
        }
        assert_eq!((lines, told), (20, 1), "two seconds");
        assert_eq!(resets.take_due(Micros::new(1_999_999)), [], "the second is not over");
        let [(_, last)] = resets.take_due(Micros::new(2_000_000))[..] else { panic!("one client") };
        assert_eq!(more.resets + last.resets + lines, 200_000);
        assert_eq!(more.found + last.found + lines / 2, 100_000);
        assert_eq!(resets.take_remaining(), []);
    }

    #[test]
    fn one_client_does_not_hide_another_and_many_are_bounded() {
        let resets = ResetLog::default();
        let now = Micros::new(5);
        let count = |ip, port| resets.count(by(ip, port), true, now).0;
        let lines = |lines: &mut dyn Iterator<Item = bool>| lines.filter(|line| *line).count();
        assert_eq!(lines(&mut (0..1_000).map(|port| count([192, 0, 2, 1], port))), 10);
        assert!(count([192, 0, 2, 2], 1), "another client");
        let strangers = (0..10_000_u16).map(|n| [198, 51, (n >> 8) as u8, n as u8]);
        assert_eq!(lines(&mut strangers.map(|ip| count(ip, 1))), 62 + 10);
        assert_eq!(resets.lock_counts().clients.len(), CLIENTS_MAX + 1);
        let told = resets.take_remaining();
        let others = told.iter().find(|(client, _)| client.is_none()).expect("the others");
        assert_eq!(others.1.resets, 10_000 - 62 - 10);
    }
}
