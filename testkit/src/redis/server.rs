//! One `redis-server`: started on a free port, killed, frozen and restarted at will.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use super::ports;
use crate::process::ChildProcess;
use crate::wait;

/// The files of a server that speaks TLS only.
#[derive(Clone, Debug)]
pub struct RedisTlsFiles {
    /// The server's certificate, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The certificate authority of the server's certificate, and of clients' if they need one.
    pub ca: PathBuf,
}

/// The options to start a server with.
#[derive(Clone, Debug, Default)]
pub struct TestRedisLaunch {
    args: Vec<String>,
    socket: bool,
    tls: Option<RedisTlsFiles>,
    core: Option<usize>,
    sentinel: Option<String>,
}

impl TestRedisLaunch {
    /// A server on a free port, without persistence.
    #[must_use]
    pub fn new() -> TestRedisLaunch {
        TestRedisLaunch::default()
    }

    /// Further arguments of `redis-server`, such as `["--maxmemory", "2mb"]`.
    #[must_use]
    pub fn args<S: ToString>(mut self, args: &[S]) -> TestRedisLaunch {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Also listens on a Unix socket: [`TestRedis::socket`].
    #[must_use]
    pub fn with_socket(mut self) -> TestRedisLaunch {
        self.socket = true;
        self
    }

    /// Speaks TLS on its port, and nothing else. Clients need no certificate, unless
    /// `--tls-auth-clients yes` is among the arguments.
    #[must_use]
    pub fn tls(mut self, tls: RedisTlsFiles) -> TestRedisLaunch {
        self.tls = Some(tls);
        self
    }

    /// Runs on this processor only.
    #[must_use]
    pub fn on_core(mut self, core: usize) -> TestRedisLaunch {
        self.core = Some(core);
        self
    }

    /// A sentinel with this configuration file, which it rewrites.
    pub(super) fn sentinel(mut self, configuration: String) -> TestRedisLaunch {
        self.sentinel = Some(configuration);
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, or it does not come up; its log is in the message.
    #[must_use]
    pub fn start(self) -> TestRedis {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if let Some(text) = &self.sentinel {
            std::fs::write(folder.path().join("sentinel.conf"), text).expect("a file written");
        }
        let mut server = TestRedis { launch: self, port: 0, folder, process: None };
        // A port may be taken between our check and the server's start; three in a row are no accident.
        for _ in 0..3 {
            server.port = ports::free();
            if server.try_start() {
                return server;
            }
        }
        panic!("redis-server does not start:\n{}", server.log());
    }
}

/// A `redis-server`; stopped, with its files, when dropped.
#[derive(Debug)]
pub struct TestRedis {
    launch: TestRedisLaunch,
    port: u16,
    folder: TempDir,
    /// `None` while it is killed.
    process: Option<ChildProcess>,
}

impl TestRedis {
    /// A server on a free port, without persistence.
    #[must_use]
    pub fn start() -> TestRedis {
        TestRedisLaunch::new().start()
    }

    /// The same with further arguments of `redis-server`.
    #[must_use]
    pub fn with(args: &[&str]) -> TestRedis {
        TestRedisLaunch::new().args(args).start()
    }

    /// Its port, the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://…` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.launch.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.address())
    }

    /// The path of its Unix socket, if it was asked for.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Its folder: logs, configuration, dumps.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process id.
    ///
    /// # Panics
    ///
    /// While it is killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Runs a command and returns the output of `redis-cli`; an error of Redis is text like any other answer.
    ///
    /// # Panics
    ///
    /// If `redis-cli` cannot be started.
    #[must_use = "use `tell` for a command that must succeed"]
    pub fn cli<S: AsRef<str>>(&self, words: &[S]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(tls) = &self.launch.tls {
            command.arg("--tls").arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.cert).arg("--key").arg(&tls.key);
        }
        command.args(words.iter().map(AsRef::as_ref)).stdin(Stdio::null());
        let output = command.output().expect("redis-cli is installed with redis-server");
        let mut text = output.stdout;
        text.extend_from_slice(&output.stderr);
        String::from_utf8_lossy(&text).trim_end().to_owned()
    }

    /// Runs a command that answers `OK`.
    ///
    /// # Panics
    ///
    /// If the answer is another.
    pub fn tell<S: AsRef<str>>(&self, words: &[S]) {
        let answer = self.cli(words);
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        assert_eq!(answer, "OK", "{}: {}", self.address(), words.join(" "));
    }

    /// Kills the server with `SIGKILL` and waits until it has ended. Its data is lost.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends `SIGSTOP`: the server keeps its connections, the kernel accepts new ones, and nothing is answered.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let path = format!("/proc/{}/stat", self.pid());
        wait::until_true("the server to freeze", || {
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        });
    }

    /// Sends `SIGCONT`: the server continues.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts it again on the same port and in the same folder; kills it before if it runs.
    ///
    /// # Panics
    ///
    /// If it does not come up; its log is in the message.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_start(), "redis-server does not start again:\n{}", self.log());
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("the server runs").signal(signal);
    }

    /// Starts the server. Returns true once it answers, and false if it ended instead.
    fn try_start(&mut self) -> bool {
        // The server's own log and not an answer to PING, which could come from another server on the same
        // port.
        const READY: [&str; 2] = ["Ready to accept connections", "Sentinel ID is"];
        let _ = std::fs::remove_file(self.folder.path().join("log"));
        let mut process = ChildProcess::start(&mut self.command());
        let up = wait::within(wait::WAIT_TIMEOUT, || {
            let log = self.log();
            let ready = READY.iter().any(|line| log.contains(line));
            if ready { Some(true) } else { process.ended().map(|_| false) }
        });
        let up = up.unwrap_or_else(|| {
            panic!("redis-server is not ready after {:?}:\n{}", wait::WAIT_TIMEOUT, self.log())
        });
        self.process = up.then_some(process);
        up
    }

    fn command(&self) -> Command {
        let mut command = match self.launch.core {
            None => Command::new("redis-server"),
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &core.to_string(), "redis-server"]);
                command
            }
        };
        let folder = self.folder.path();
        let port = self.port.to_string();
        if self.launch.sentinel.is_some() {
            command.arg(folder.join("sentinel.conf")).args(["--port", &port, "--sentinel"]);
        } else {
            let (plain, tls) =
                if self.launch.tls.is_some() { ("0", &*port) } else { (&*port, "0") };
            command.args(["--port", plain, "--save", "", "--appendonly", "no"]);
            if let Some(files) = &self.launch.tls {
                command.args(["--tls-port", tls, "--tls-auth-clients", "no"]);
                command.arg("--tls-cert-file").arg(&files.cert);
                command.arg("--tls-key-file").arg(&files.key);
                command.arg("--tls-ca-cert-file").arg(&files.ca);
            }
        }
        if self.launch.socket {
            command.arg("--unixsocket").arg(self.socket());
        }
        command.args(["--bind", "127.0.0.1", "--daemonize", "no"]);
        command.arg("--dir").arg(folder).arg("--logfile").arg(folder.join("log"));
        command.args(&self.launch.args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_and_starts_again_empty_on_the_same_port() {
        let mut server = TestRedis::start();
        let port = server.port();
        server.tell(&["SET", "a", "1"]);
        assert_eq!(server.cli(&["GET", "a"]), "1");
        server.kill();
        assert!(server.cli(&["PING"]).contains("Connection refused"));
        server.restart();
        assert_eq!((server.port(), server.cli(&["DBSIZE"]).as_str()), (port, "0"));
    }

    #[test]
    fn a_frozen_server_answers_nothing_until_it_is_thawed() {
        let server = TestRedis::start();
        server.freeze();
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        std::io::Write::write_all(&mut stream, b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        assert!(std::io::Read::read(&mut stream, &mut answer).is_err());
        server.thaw();
        stream.set_read_timeout(Some(wait::WAIT_TIMEOUT)).unwrap();
        std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }

    #[test]
    fn arguments_and_sockets_are_passed_on() {
        let server = TestRedisLaunch::new().args(&["--requirepass", "open"]).with_socket().start();
        assert!(server.cli(&["DBSIZE"]).starts_with("NOAUTH"));
        assert!(server.socket().exists());
        let folder = server.folder().to_owned();
        drop(server);
        assert!(!folder.exists());
    }
}
