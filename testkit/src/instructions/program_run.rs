//! One run of a program with its files in a folder of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{ChildProcess, ProgramCall};
use crate::wait;

/// Timeout for the start and for the end of a program: valgrind makes it 50 times slower.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// A program that runs. Its output goes to files.
pub(super) struct ProgramRun {
    process: ChildProcess,
    /// The folder for the program's files and its output.
    scratch: TempDir,
}

impl ProgramRun {
    /// Starts a program. `call` returns its command line, given a folder for files.
    pub(super) fn start(call: impl FnOnce(&Path) -> ProgramCall) -> ProgramRun {
        let scratch = TempDir::new().expect("a folder for temporary files");
        let file = |name| File::create(scratch.path().join(name)).expect("a file can be written");
        let mut command = call(scratch.path()).command();
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let process = ChildProcess::start(&mut command);
        ProgramRun { process, scratch }
    }

    /// Waits for the lines `listening LISTENER ADDRESS` and `ready`, and returns the address.
    pub(super) fn wait_until_ready(&mut self, listener: &str) -> SocketAddr {
        let ready = wait::within(RUN_TIMEOUT, || {
            let ended = self.process.ended().is_some();
            let output = self.file("stdout");
            (ended || output.ends_with("ready\n")).then_some(output)
        });
        let listening = format!("listening {listener} ");
        let output = ready.unwrap_or_default();
        let address = output.lines().find_map(|line| line.strip_prefix(&listening)?.parse().ok());
        address.unwrap_or_else(|| panic!("no {listener} listener{}", self.quoted()))
    }

    /// Sends SIGTERM and waits until the program has ended.
    pub(super) fn terminate(&mut self) {
        self.process.signal(Signal::TERM);
        self.wait_until_ended();
    }

    /// Waits until the program has ended.
    pub(super) fn wait_until_ended(&mut self) {
        let ended = wait::within(RUN_TIMEOUT, || self.process.ended());
        assert!(ended.is_some(), "the program does not end{}", self.quoted());
    }

    /// The text of a file in the folder.
    pub(super) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.path().join(name)).unwrap_or_default()
    }

    /// The output of the program, for a failure.
    pub(super) fn quoted(&self) -> String {
        format!("; the program said:\n{}{}", self.file("stdout"), self.file("stderr"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "cannot find the port")]
    fn a_server_that_does_not_start_is_quoted() {
        let call = |_: &Path| ProgramCall::new("sh", ["-c", "echo cannot find the port >&2"]);
        ProgramRun::start(call).wait_until_ready("http");
    }
}
