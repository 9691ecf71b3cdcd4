//! Counts of callgrind, one of valgrind's tools.

use std::path::Path;

use super::program_run::ProgramRun;
use crate::process::ProgramCall;

/// The file of valgrind's report in the folder of a run.
const REPORT: &str = "report";

/// Counts the instructions of a program. `call` returns its command line, given a folder for files; `drive` does
/// something with it until it has ended.
pub(super) fn count(
    call: impl FnOnce(&Path) -> ProgramCall,
    drive: impl FnOnce(&mut ProgramRun),
) -> u64 {
    let mut run = ProgramRun::start(|scratch| {
        let report = format!("--log-file={}", scratch.join(REPORT).display());
        let options = ["--tool=callgrind", "--callgrind-out-file=/dev/null", &report];
        call(scratch).under("valgrind", &options)
    });
    drive(&mut run);
    let report = run.file(REPORT);
    instructions_in(&report).unwrap_or_else(|| panic!("no count in {report:?}{}", run.quoted()))
}

/// The number in the line `==7== Collected : 1234`.
fn instructions_in(report: &str) -> Option<u64> {
    let (_, number) = report.split_once("Collected : ")?;
    number.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_loop_takes_more_instructions() {
        let looping = |rounds: u32| {
            let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done");
            count(|_| ProgramCall::new("sh", ["-c", &script]), ProgramRun::wait_until_ended)
        };
        assert!(looping(2_000) > looping(1_000) + 50_000);
    }

    #[test]
    fn the_count_is_found_in_the_report() {
        let rows = [
            ("==7== \n==7== Collected : 1234\n==7==\n", Some(1_234)),
            ("==7== Process terminating\n", None),
        ];
        for (report, expected) in rows {
            assert_eq!(instructions_in(report), expected, "{report:?}");
        }
    }
}
