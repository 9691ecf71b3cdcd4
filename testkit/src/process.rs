//! A child process that never outlives the test: killed when dropped, and killed by a guard of its
//! own if the test itself is killed.

use std::ffi::{OsStr, OsString};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCall {
    words: Vec<OsString>,
}

impl ProgramCall {
    /// A program with these arguments.
    pub fn new(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> ProgramCall {
        ProgramCall { words: vec![program.as_ref().to_owned()] }.with(arguments)
    }

    /// Adds arguments.
    #[must_use]
    pub fn with(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> ProgramCall {
        self.words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Makes the program and its arguments the last arguments of another program, such as valgrind.
    #[must_use]
    pub fn under(self, program: &str, arguments: &[&str]) -> ProgramCall {
        ProgramCall::new(program, arguments).with(self.words)
    }

    /// The command, without settings of Tollgate from the environment.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOLLGATE_") {
                command.env_remove(name);
            }
        }
        command
    }
}

/// A running child.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    guard: Child,
}

impl ChildProcess {
    /// Starts the command.
    ///
    /// # Panics
    ///
    /// If the program cannot be started; the message names it.
    #[must_use]
    pub fn start(command: &mut Command) -> ChildProcess {
        let name = command.get_program().to_owned();
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{}: {error}; `cargo xtask test --only packages` installs it", name.display())
        });
        let guard = guard_of(child.id());
        ChildProcess { child, guard }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends `SIGKILL` and waits until the process has ended.
    pub fn kill(&mut self) {
        // The guard first: once the child has ended, its process id may be reused.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id is a positive i32");
        let _ = kill_process(Pid::from_raw(id).expect("a process id is not 0"), signal);
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a shell that waits for the end of its input, which comes when this process ends for any reason, and then
/// kills the child. (The kernel's `PR_SET_PDEATHSIG` needs unsafe code and depends on the thread that started the
/// child.)
fn guard_of(id: u32) -> Child {
    Command::new("sh")
        .arg("-c")
        .arg(format!("read -r _; kill -9 {id}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("every machine has a shell")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_under_another() {
        let call = ProgramCall::new("echo", ["a b"]).with(["c"]).under("env", &["-u", "HOME"]);
        let command = call.command();
        assert_eq!(command.get_program(), "env");
        let words: Vec<&OsStr> = command.get_args().collect();
        assert_eq!(words, ["-u", "HOME", "echo", "a b", "c"]);
    }

    #[test]
    fn the_guard_kills_the_child_when_its_owner_is_gone() {
        let mut process = ChildProcess::start(Command::new("sleep").arg("600"));
        assert!(process.ended().is_none());
        // The kernel closes the pipe when the owner dies.
        drop(process.guard.stdin.take());
        let status = crate::wait::until("the guard to kill", || process.ended());
        assert!(!status.success());
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let process = ChildProcess::start(Command::new("sleep").arg("600"));
        let id = process.id();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }
}
