//! Servers of others that are installed on the machine, such as nginx: found, given a port, and awaited.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{START_MAX, ServerProcess};
use crate::stopwatch::Stopwatch;

/// Finds a program of a Debian package, also in the folder for administrators, which not every `PATH` has.
pub fn command(program: &str, package: &str) -> Result<Command, String> {
    let in_sbin = format!("/usr/sbin/{program}");
    let is_there = |name: &&str| Command::new(name).arg("-v").output().is_ok();
    let found = [program, &in_sbin].into_iter().find(is_there);
    let missing = || format!("{program} is not installed; run as root: apt-get install {package}");
    found.map(Command::new).ok_or_else(missing)
}

/// Finds a free port, for servers that cannot report a port that they chose themselves.
pub fn free_address() -> Result<SocketAddr, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map_err(|error| format!("there is no free port: {error}"))
}

/// Starts a server and waits until it listens.
pub fn start(
    command: &mut Command,
    log: PathBuf,
    address: SocketAddr,
) -> Result<ServerProcess, String> {
    let mut process = ServerProcess::start(command.stdout(Stdio::null()), log)?;
    match wait_until_ready(&mut process, address) {
        Ok(()) => Ok(process),
        Err(problem) => Err(process.with_log(&problem)),
    }
}

#[expect(clippy::disallowed_methods, reason = "these servers do not say when they are ready")]
fn wait_until_ready(process: &mut ServerProcess, address: SocketAddr) -> Result<(), String> {
    let watch = Stopwatch::start();
    while TcpStream::connect(address).is_err() {
        if process.has_ended() {
            return Err("it ended at once".into());
        }
        if watch.elapsed() > START_MAX {
            return Err("it is not ready in time".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
