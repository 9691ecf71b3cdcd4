//! The limit of open files: every connection needs one, and a process starts with a low limit.

use crate::settings::ServerSettings;
use crate::telemetry::{LogField, Logs};

/// Default of `--max-connections`.
pub(crate) const CONNECTIONS_DEFAULT: usize = 10_000;

/// Files that the runtime of a worker needs.
const FILES_PER_WORKER: u64 = 4;

/// Files for everything else: standard streams, the listeners themselves, watched directories, a snapshot,
/// connections to a shared store.
const OTHER_FILES: u64 = 128;

/// The open files that a run could need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFilesBudget {
    data_listeners: u64,
    /// Connections that each data listener should accept.
    connections_wanted: u64,
    /// Connections of each data listener below which a warning is logged: `--max-connections` if it is
    /// given, else `--max-connections-per-ip`.
    connections_min: u64,
    /// True if `connections_wanted` is the default and may be lowered.
    is_default: bool,
    other_files: u64,
}

impl OpenFilesBudget {
    /// Computes the budget. `workers` serve each data listener; `admin_connections` is the cap of the
    /// admin listener.
    pub(crate) fn of(
        settings: &ServerSettings,
        workers: usize,
        admin_connections: usize,
    ) -> OpenFilesBudget {
        let open = || settings.listeners.open().map(|(entry, _)| entry);
        let data_listeners = open().filter(|entry| entry.is_data()).count() as u64;
        let mut beside = OTHER_FILES + FILES_PER_WORKER * data_listeners * workers as u64;
        if open().any(|entry| !entry.is_data()) {
            beside += FILES_PER_WORKER + admin_connections as u64;
        }
        let given = settings.max_connections.map(|given| given.get() as u64);
        let wanted = given.unwrap_or(CONNECTIONS_DEFAULT as u64);
        let least = given.unwrap_or(settings.max_connections_per_ip.get() as u64).min(wanted);
        OpenFilesBudget {
            data_listeners,
            connections_wanted: wanted,
            connections_min: least,
            is_default: given.is_none(),
            other_files: beside,
        }
    }

    /// Number of files for this many connections at each data listener.
    fn files(self, connections: u64) -> u64 {
        self.data_listeners.saturating_mul(connections).saturating_add(self.other_files)
    }

    /// Number of connections that each data listener could have with this many files.
    fn connections_that_fit(self, files: u64) -> u64 {
        files.saturating_sub(self.other_files) / self.data_listeners.max(1)
    }

    /// Number of connections that each data listener accepts with this many files. If not even one fits,
    /// the listeners wait for free files, so a lower cap would not help.
    fn connections(self, files: u64) -> usize {
        let fit = self.connections_that_fit(files);
        let connections = match self.is_default && fit > 0 {
            true => self.connections_wanted.min(fit),
            false => self.connections_wanted,
        };
        usize::try_from(connections).unwrap_or(usize::MAX)
    }
}

/// Raises the limit of open files as far as needed and allowed. Returns the number of connections that each
/// data listener accepts: `--max-connections` if it is given, else as many as fit. Warns if they are too few.
pub(crate) fn raise_file_limit(needed: OpenFilesBudget, logs: &Logs) -> usize {
    let Some(files) = raise(needed.files(needed.connections_wanted)) else {
        return needed.connections(u64::MAX);
    };
    let (total, fit) = (needed.files(needed.connections_min), needed.connections_that_fit(files));
    if files < total {
        let mut fields: Vec<LogField<'_>> = vec![("open_files_max", &files), ("needed", &total)];
        if fit > 0 {
            fields.push(("max_connections_that_fit", &fit));
        }
        logs.warn(
            "the listeners accept more connections than this process may have open files: raise its hard \
             limit (LimitNOFILE= in a systemd unit, --ulimit nofile= of a container, ulimit -Hn), or \
             lower --max-connections",
            &fields,
        );
    }
    needed.connections(files)
}

/// Raises the limit of open files to this number, or as far as this process may. Returns the limit
/// afterwards; `None` means unlimited.
#[cfg(target_os = "linux")]
fn raise(wanted: u64) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    let most = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if most <= before {
        return Some(before);
    }
    // If the system refuses, the limit stays; the caller checks whether it is enough.
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }) {
        Ok(()) => Some(most),
        Err(_) => Some(before),
    }
}

/// Does nothing: on other systems the operator sets the limit.
#[cfg(not(target_os = "linux"))]
fn raise(_: u64) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_and_what_fits() {
        let needed = OpenFilesBudget {
            data_listeners: 3,
            connections_wanted: 10_000,
            connections_min: 1_000,
            is_default: true,
            other_files: 400,
        };
        assert_eq!(
            (needed.files(needed.connections_wanted), needed.files(needed.connections_min)),
            (30_400, 3_400)
        );
        // files | connections that fit, that are let in by default, that are let in if asked for
        let rows = [
            (30_401, 10_000, 10_000),
            (30_400, 10_000, 10_000),
            (30_399, 9_999, 9_999),
            (403, 1, 1),
            (402, 0, 10_000),
            (0, 0, 10_000),
        ];
        for (files, fit, by_default) in rows {
            assert_eq!(needed.connections_that_fit(files), fit, "{files}");
            assert_eq!(needed.connections(files), by_default, "{files}");
            let given = OpenFilesBudget { is_default: false, ..needed };
            assert_eq!(given.connections(files), 10_000, "{files}");
        }
        assert_eq!(needed.files(u64::MAX), u64::MAX);
        let none = OpenFilesBudget { data_listeners: 0, ..needed };
        assert_eq!((none.files(10), none.connections_that_fit(1_000)), (400, 600));
    }
}
