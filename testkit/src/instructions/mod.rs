//! Instructions per request, counted by callgrind: a measure of cost that no other process disturbs.
//!
//! A program runs twice under valgrind, with some requests and with three times as many. The difference of the two
//! counts, divided by the additional requests, leaves out start and end. One connection asks about the same few
//! keys in the same order, so two measurements differ by less than 2 %. Only user space is counted: not the kernel, and
//! not the time that a cache miss takes.
//!
//! Read in this order: `paths.rs` (the requests that are counted), `program_run.rs` and `callgrind.rs` (one run),
//! `scripted_client.rs` (the client), `ceilings.rs` (the highest counts that the tests accept).

mod callgrind;
pub mod ceilings;
pub mod paths;
mod program_run;
mod scripted_client;

use std::path::Path;
use std::sync::Mutex;

use crate::process::ProgramCall;
use paths::{LIBRARY_PATHS, LibraryPath, SERVER_PATHS, ServerPath};
use program_run::ProgramRun;
use scripted_client::ScriptedClient;

/// The instructions of one path, per decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstructionCount {
    /// The name of the path.
    pub path: &'static str,
    /// Instructions per decision.
    pub instructions: f64,
}

/// Counts every path of the server with this `tollgate` program.
#[must_use]
pub fn count_server_paths(tollgate: &Path) -> Vec<InstructionCount> {
    in_parallel(&SERVER_PATHS, |path| InstructionCount {
        path: path.name,
        instructions: count_server(path, |scratch| path.serve_call(tollgate, scratch)),
    })
}

/// Counts every path of the library with this `library-loop` program.
#[must_use]
pub fn count_library_paths(library_loop: &Path) -> Vec<InstructionCount> {
    in_parallel(&LIBRARY_PATHS, |path| InstructionCount {
        path: path.name,
        instructions: count_library(path, library_loop),
    })
}

/// Counts the instructions per decision of a server. `call` returns its command line, given a folder for files.
pub fn count_server(path: &ServerPath, call: impl Fn(&Path) -> ProgramCall) -> f64 {
    let count =
        |exchanges| callgrind::count(&call, |server| drive(path, server, exchanges, COUNTED_KEYS));
    let few = path.exchanges;
    per_decision(count(few), count(3 * few), 2 * few * path.decisions)
}

/// Counts the instructions per decision of a loop without sockets.
#[must_use]
pub fn count_library(path: &LibraryPath, library_loop: &Path) -> f64 {
    let count = |decisions: usize| {
        let call = |_: &Path| ProgramCall::new(library_loop, [path.name, &decisions.to_string()]);
        callgrind::count(call, ProgramRun::wait_until_ended)
    };
    let few = path.decisions;
    per_decision(count(few), count(3 * few), 2 * few)
}

/// Sends a server this many decisions for many callers and ends it, without counting: the traffic that trains a
/// profile-guided build.
pub fn train(path: &ServerPath, decisions: usize, call: impl FnOnce(&Path) -> ProgramCall) {
    let mut server = ProgramRun::start(call);
    drive(path, &mut server, decisions / path.decisions, TRAINING_KEYS);
}

/// Sends requests or pipelines until all are answered, and ends the server.
fn drive(path: &ServerPath, server: &mut ProgramRun, exchanges: usize, keys: u64) {
    let address = server.wait_until_ready(path.protocol.listener());
    ScriptedClient::connect(address, path).drive(exchanges, keys);
    server.terminate();
}

/// Number of different callers in training: more than the processor's inner caches hold.
const TRAINING_KEYS: u64 = 50_000;

/// Number of different callers; all of them are known to the server after the first requests.
const COUNTED_KEYS: u64 = 16;

fn per_decision(few: u64, many: u64, additional: usize) -> f64 {
    many.saturating_sub(few) as f64 / additional as f64
}

/// Maps the items on as many threads as there are cores: each item waits for a process of its own.
fn in_parallel<T: Sync, R: Send>(items: &[T], map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, results) = (Mutex::new(items.iter().enumerate()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let next = queue.lock().expect("taking an item does not panic").next();
            let Some((index, item)) = next else { return };
            let result = map(item);
            results.lock().expect("adding a result does not panic").push((index, result));
        }
    };
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().expect("adding a result does not panic");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_their_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, |item| item * 2), (0..200).step_by(2).collect::<Vec<_>>());
    }

    #[test]
    fn the_start_does_not_count() {
        assert_eq!(per_decision(1_000_000 + 10 * 50, 1_000_000 + 30 * 50, 20), 50.0);
    }
}
