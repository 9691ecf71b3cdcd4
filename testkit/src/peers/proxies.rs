//! Proxies as processes: started with an example, ready when they listen, stopped when dropped.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::ExampleFiles;
use crate::process::ChildProcess;
use crate::wait;

/// A running proxy. Its log is printed if the test fails.
#[derive(Debug)]
pub struct ProxyProcess {
    name: &'static str,
    address: SocketAddr,
    process: ChildProcess,
    /// The folder with its configuration, its log and its other files.
    folder: TempDir,
}

impl ProxyProcess {
    /// nginx, one process in the foreground, with its temporary files in a folder of its own. The
    /// example has to have a line `http {`.
    ///
    /// # Panics
    ///
    /// If it does not listen on `address` in time; its log is in the message. So do the others.
    #[must_use]
    pub fn nginx(example: ExampleFiles, address: SocketAddr) -> ProxyProcess {
        ProxyProcess::start("nginx", address, |folder| {
            let mut http = String::from("http {\n");
            let path = folder.display();
            for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                writeln!(http, "    {name}_temp_path {path}/{name};").expect("a string takes all");
            }
            let example = example.replace("http {\n", http);
            let own = format!("daemon off; master_process off; pid {path}/pid; error_log stderr;");
            let mut command = Command::new(super::nginx());
            command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-g").arg(own);
            command.arg("-c").arg(folder.join(example.write(folder)));
            command
        })
    }

    /// Envoy, with one worker thread.
    #[must_use]
    pub fn envoy(example: &ExampleFiles, address: SocketAddr) -> ProxyProcess {
        ProxyProcess::start("envoy", address, |folder| {
            let mut command = Command::new(super::envoy());
            command.arg("-c").arg(example.write(folder));
            command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
            command
        })
    }

    /// Caddy.
    #[must_use]
    pub fn caddy(example: &ExampleFiles, address: SocketAddr) -> ProxyProcess {
        ProxyProcess::start("caddy", address, |folder| {
            let mut command = Command::new(super::caddy());
            command.args(["run", "--adapter", "caddyfile", "--config", example.write(folder)]);
            command
        })
    }

    /// Traefik. Files named in its configuration are in the same folder. It listens before it has read them, so
    /// this polls `/` until the route exists.
    #[must_use]
    pub fn traefik(example: &ExampleFiles, address: SocketAddr) -> ProxyProcess {
        let proxy = ProxyProcess::start("traefik", address, |folder| {
            let mut command = Command::new(super::traefik());
            command.arg(format!("--configfile={}", example.write(folder)));
            command
        });
        wait::until_true("traefik to have routes", || {
            status(address).is_ok_and(|status| !status.is_empty() && status != "404")
        });
        proxy
    }

    /// Any other server: a command that gets a folder of its own and is started in it.
    #[must_use]
    pub fn program(
        name: &'static str,
        address: SocketAddr,
        command: impl FnOnce(&Path) -> Command,
    ) -> ProxyProcess {
        ProxyProcess::start(name, address, command)
    }

    fn start(
        name: &'static str,
        address: SocketAddr,
        command: impl FnOnce(&Path) -> Command,
    ) -> ProxyProcess {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = command(folder.path());
        let log = File::create(folder.path().join(LOG)).expect("a log file");
        let errors = log.try_clone().expect("a log file twice");
        // Nothing from the user's home: no state, no settings, no certificates.
        for home in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(home, folder.path());
        }
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(log).stderr(errors);
        let process = ChildProcess::start(&mut command);
        let mut proxy = ProxyProcess { name, address, process, folder };
        wait::until_true(&format!("{name} to listen on {address}"), || {
            assert!(proxy.process.ended().is_none(), "{name} ended");
            TcpStream::connect(address).is_ok()
        });
        proxy
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder that it was started in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The proxy's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }
}

/// The status of `GET /`, as it is written.
fn status(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(wait::WAIT_TIMEOUT))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: ready\r\nconnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
}

const LOG: &str = "output.log";

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- what {} wrote:\n{}--- end", self.name, self.log());
        }
    }
}
