//! Bytes per key: each contestant fills its table in a process of its own, so that no memory left
//! over from another is counted or reused.

use std::process::Command;

use tollgate_bench::keys::KeyStream;
use tollgate_bench::machine;

use crate::contestants::{self, CallerBuffers, LibraryQuota};

/// The option with which this program starts itself as a child.
pub(crate) const OPTION: &str = "--bytes-of";

/// Measures the bytes per key of a contestant in a child process.
pub(crate) fn measure_in_child(name: &str, keys: u64) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program).args([OPTION, name, "--keys", &keys.to_string()]).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// Prints the bytes per key of the contestant called `name`; this is the child's work.
pub(crate) fn print_bytes_per_key(name: &str, keys: u64) {
    let stream = KeyStream::each_once(0..keys);
    let before = machine::resident_bytes();
    // With the quota `Refused`, the first check of each key is charged and stays charged.
    let mut contestants = contestants::all(keys, LibraryQuota::Refused, |it| it == name);
    let contestant = contestants.pop().expect("the parent names one that exists");
    contestant.fill(&stream, &mut CallerBuffers::default());
    let bytes = machine::resident_bytes() - before;
    println!("{}", bytes as f64 / keys as f64);
}
