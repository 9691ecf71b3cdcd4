//! Descriptors: every connection takes one, and a process begins with few of them.

use crate::doors::DoorAddress;
use crate::settings::Settings;
use crate::telemetry::{Field, Logs};

/// What the runtime of a worker takes.
const PER_WORKER: u64 = 4;

/// What the process takes besides: standard streams, the doors themselves, watched directories, a
/// snapshot, connections to a shared store.
const BESIDES: u64 = 128;

/// What a run could need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needed {
    data_doors: u64,
    connections_each: u64,
    beside: u64,
}

impl Needed {
    /// `workers` serve each data door; `admin_connections` is the cap of the admin door.
    pub(crate) fn of(settings: &Settings, workers: usize, admin_connections: usize) -> Needed {
        let is_open = |door: &DoorAddress| *door != DoorAddress::None;
        let data_doors = [settings.http, settings.grpc, settings.resp];
        let data_doors = data_doors.into_iter().filter(is_open).count() as u64;
        let mut beside = BESIDES + PER_WORKER * data_doors * workers as u64;
        if is_open(&settings.admin) {
            beside += PER_WORKER + admin_connections as u64;
        }
        let connections_each = settings.max_connections.get() as u64;
        Needed { data_doors, connections_each, beside }
    }

    /// All of it.
    fn total(self) -> u64 {
        self.data_doors.saturating_mul(self.connections_each).saturating_add(self.beside)
    }

    /// How many connections each door could have with so many files; 0: none.
    fn that_fit(self, files: u64) -> u64 {
        files.saturating_sub(self.beside) / self.data_doors.max(1)
    }
}

/// Lets the process open as many files as it may, and warns if those are too few for all connections
/// that the doors let in.
pub(crate) fn make_room(needed: Needed, logs: &Logs) {
    let Some(files) = raise(logs) else { return };
    if files >= needed.total() {
        return;
    }
    let (total, fit) = (needed.total(), needed.that_fit(files));
    let mut fields: Vec<Field<'_>> = vec![("open_files_max", &files), ("needed", &total)];
    if fit > 0 {
        fields.push(("max_connections_that_fit", &fit));
    }
    logs.warn(
        "the doors let in more connections than this process may have open files: raise its hard \
         limit (LimitNOFILE= in a systemd unit, --ulimit nofile= of a container, ulimit -Hn), or let \
         in fewer with --max-connections",
        &fields,
    );
}

/// Raises the limit that holds to the one that this process may set itself. How many files may be open
/// then; `None`: any number.
#[cfg(target_os = "linux")]
fn raise(logs: &Logs) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    if maximum.is_some_and(|maximum| maximum <= before) {
        return Some(before);
    }
    // Where it is refused, the limit stays, and whether it is enough is looked at in any case.
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        return Some(before);
    }
    let to = maximum.map_or("any number".into(), |maximum| maximum.to_string());
    logs.info("more files may be open: the limit is raised", &[("from", &before), ("to", &to)]);
    maximum
}

/// Elsewhere it is left to whoever starts the process.
#[cfg(not(target_os = "linux"))]
fn raise(_: &Logs) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_and_what_fits() {
        let needed = Needed { data_doors: 3, connections_each: 10_000, beside: 400 };
        assert_eq!(needed.total(), 30_400);
        // files | connections of each door
        for (files, fit) in [(30_400, 10_000), (30_399, 9_999), (403, 1), (402, 0), (0, 0)] {
            assert_eq!(needed.that_fit(files), fit, "{files}");
        }
        let most = Needed { connections_each: u64::MAX, ..needed };
        assert_eq!(most.total(), u64::MAX);
        let none = Needed { data_doors: 0, ..needed };
        assert_eq!((none.total(), none.that_fit(1_000)), (400, 600));
    }
}
