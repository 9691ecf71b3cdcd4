//! Servers as child processes: started on their core, awaited, and always killed at the end.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::machine;
use crate::stopwatch::Stopwatch;

/// The generator's core.
pub const GENERATOR_CORE: usize = 0;
/// The core of all servers, which are measured in turn while the others are idle.
pub const SERVER_CORE: usize = 1;
/// Timeout for the start of a server.
pub const START_MAX: Duration = Duration::from_secs(10);

/// A running server. Dropping it kills it, also while a panic unwinds.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a program on the servers' core. Its standard error goes to a log file.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<ServerProcess, String> {
        let file = File::create(&log)
            .map_err(|error| format!("cannot write the log {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stderr(file);
        // A child inherits the cores of the thread that starts it. It then also sees only one core and starts a
        // suitable number of threads.
        let start = || {
            machine::pin(SERVER_CORE);
            command.spawn()
        };
        let child = std::thread::scope(|scope| scope.spawn(start).join());
        let child = child.expect("starting a process does not panic").map_err(|error| {
            format!("cannot start {}: {error}", command.get_program().to_string_lossy())
        })?;
        let process = ServerProcess { child, log };
        check_pinned(process.id(), SERVER_CORE)?;
        Ok(process)
    }

    /// Starts a server that prints `listening LISTENER ADDRESS` and `ready` on standard output.
    pub fn start_announced<A: FromStr>(
        command: &mut Command,
        log: PathBuf,
        listener: &str,
    ) -> Result<(ServerProcess, A), String> {
        let mut process = ServerProcess::start(command.stdout(Stdio::piped()), log)?;
        let address = process.wait_until_ready(listener);
        match address {
            Ok(address) => Ok((process, address)),
            Err(problem) => Err(process.with_log(&problem)),
        }
    }

    fn wait_until_ready<A: FromStr>(&mut self, listener: &str) -> Result<A, String> {
        let output = self.child.stdout.take().expect("standard output is piped");
        let (sender, lines) = mpsc::channel();
        // Reads to the end, so that a server that prints more is never blocked by a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                let _ = sender.send(line); // nobody listens once it is ready
            }
        });
        let (watch, mut address) = (Stopwatch::start(), None);
        loop {
            match lines.recv_timeout(START_MAX.saturating_sub(watch.elapsed())) {
                Ok(line) if line == "ready" => break,
                Ok(line) => address = address_in(&line, listener).or(address),
                Err(RecvTimeoutError::Timeout) => return Err("it is not ready in time".into()),
                Err(RecvTimeoutError::Disconnected) => return Err("it ended at once".into()),
            }
        }
        address.ok_or_else(|| format!("it is ready but said no `listening {listener} ADDRESS`"))
    }

    /// The problem with the end of the server's log.
    pub fn with_log(&self, problem: &str) -> String {
        const SHOWN_LINES_MAX: usize = 15;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = &lines[lines.len().saturating_sub(SHOWN_LINES_MAX)..];
        let text: String = end.iter().map(|line| format!("\n    {line}")).collect();
        format!("{problem}{text}")
    }

    /// Returns true if the process has exited by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a program that was built together with this one.
pub fn sibling_program(name: &str) -> Result<PathBuf, String> {
    Ok(programs_folder()?.join(name))
}

/// The folder of this program and of those built together with it.
pub fn programs_folder() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| format!("no path of this: {error}"))?;
    Ok(this.parent().expect("a program lies in a folder").to_owned())
}

/// Checks the cores of a process: pinning fails silently if the system does not allow it.
pub fn check_pinned(process: u32, core: usize) -> Result<(), String> {
    match machine::cores_of(process) {
        cores if cores == core.to_string() => Ok(()),
        cores => Err(format!("it should run on core {core} and runs on {cores}: allow cores 0, 1")),
    }
}

/// Parses the address in `listening http 127.0.0.1:8080`, if the line is about this listener.
fn address_in<A: FromStr>(line: &str, listener: &str) -> Option<A> {
    let (its_listener, address) = line.strip_prefix("listening ")?.split_once(' ')?;
    (its_listener == listener).then(|| address.trim().parse().ok())?
}

/// A directory for configurations and logs, removed at the end.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Makes an empty directory.
    pub fn new() -> Result<ScratchDir, String> {
        let path = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("cannot make the directory {}: {error}", path.display()))?;
        Ok(ScratchDir(path))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into the directory.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        match std::fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(error) => Err(format!("cannot write {}: {error}", path.display())),
        }
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // what is left is small, and in a place for such
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_server_is_taken_at_its_word_and_ended_when_dropped() {
        let scratch = ScratchDir::new().unwrap();
        let script = "echo listening grpc 127.0.0.1:1; echo listening http 127.0.0.1:2; \
                      echo ready; exec sleep 60";
        let (process, address): (_, SocketAddr) =
            ServerProcess::start_announced(&mut shell(script), scratch.path().join("log"), "http")
                .unwrap();
        assert_eq!(address, SocketAddr::from(([127, 0, 0, 1], 2)));
        let id = process.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn a_server_that_does_not_start_is_quoted() {
        let scratch = ScratchDir::new().unwrap();
        let start = |script| {
            let started = ServerProcess::start_announced::<SocketAddr>(
                &mut shell(script),
                scratch.path().join("log-2"),
                "http",
            );
            started.map(|_| ()).unwrap_err()
        };
        assert_eq!(start("echo no such file >&2"), "it ended at once\n    no such file");
        assert!(start("echo ready; exec sleep 60").contains("no `listening http"));
        let missing = Command::new("tollgate-no-such-program").status().unwrap_err();
        let started = ServerProcess::start(
            &mut Command::new("tollgate-no-such-program"),
            scratch.path().join("log-2"),
        );
        assert!(started.map(|_| ()).unwrap_err().ends_with(&missing.to_string()));
    }
}
