//! One page as a session: a temporary folder with the examples, a shell, and the servers that the page starts.
//!
//! The ports of a page are those that its readers use; here they stand for free ones, in commands and in output.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::{Captures, Regex};
use tempfile::TempDir;
use testkit::peers::Upstream;
use testkit::redis::TestRedis;
use testkit::wait;

use super::commands::{ServeCommand, serve_command};
use super::compare::has_line;
use super::shell::{PageShell, ShellOutput};
use crate::harness::DEADLINE;

/// Files of the repository that pages mention. Examples are copied, because pages may write beside them.
const EXAMPLES: &str = "examples";
const LINKED: [&str; 2] = ["docs", "crates"];
/// Folders of the system that a page may name; in a session they lie in its own folder.
const SYSTEM_FOLDERS: [&str; 3] = ["/var/lib/tollgate", "/etc/tollgate", "/usr/local/share/man"];

/// An address with a port, or the port of redis-cli.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    let hosts = r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1\]):|redis-cli(?: [^|;&\n]*)? -p ";
    Regex::new(&format!(r"((?:{hosts}))(\d+)\b")).expect("a valid pattern")
});

/// A running `tollgate serve`.
struct PageServer {
    id: String,
    /// Ports on the page.
    ports: Vec<u16>,
}

/// The session of a page; dropping it ends everything that it started.
pub(super) struct PageSession {
    shell: PageShell,
    servers: Vec<PageServer>,
    /// Standard error of all servers, also of those that have ended.
    logs: Vec<PathBuf>,
    /// Free ports by the ports on the page.
    ports: BTreeMap<u16, u16>,
    _redis: Vec<TestRedis>,
    _upstreams: Vec<Upstream>,
    home: PathBuf,
    folder: PathBuf,
    _directory: TempDir,
}

impl PageSession {
    /// Starts a session with the peers that the page asks for: `application on 3000`, `redis on 6379`.
    pub(super) fn start<'a>(peers: impl Iterator<Item = &'a str>) -> Result<PageSession, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [folder, home, bin] = ["page", "home", "bin"].map(|name| directory.path().join(name));
        for made in [&folder, &home, &bin] {
            fs::create_dir(made).map_err(|error| error.to_string())?;
        }
        let (mut ports, mut redis, mut upstreams) = (BTreeMap::new(), Vec::new(), Vec::new());
        for peer in peers {
            let (kind, port) = peer.split_once(" on ").ok_or("a marker `with` has a port")?;
            let port = port.parse().map_err(|_| format!("`{port}` is no port"))?;
            let real = match kind {
                "application" => {
                    upstreams.push(Upstream::start());
                    upstreams.last().expect("the new one").address().port()
                }
                "redis" => {
                    redis.push(TestRedis::start());
                    redis.last().expect("the new one").port()
                }
                _ => return Err(format!("there is no `{kind}` to start")),
            };
            ports.insert(port, real);
        }
        let link = |from: &Path, to: PathBuf| std::os::unix::fs::symlink(from, to);
        let binary = Path::new(env!("CARGO_BIN_EXE_tollgate"));
        link(binary, bin.join("tollgate")).map_err(|error| error.to_string())?;
        let pidof = format!("#!/bin/sh\ncat {}/servers\n", home.display());
        executable(&bin.join("pidof"), &pidof).map_err(|error| error.to_string())?;
        let root = super::repository();
        for name in LINKED {
            link(&root.join(name), folder.join(name)).map_err(|error| error.to_string())?;
        }
        let mut session = PageSession {
            shell: PageShell::start(&folder, &home, &bin),
            servers: Vec::new(),
            logs: Vec::new(),
            ports,
            _redis: redis,
            _upstreams: upstreams,
            home,
            folder,
            _directory: directory,
        };
        session.copy_examples(&root.join(EXAMPLES), Path::new(EXAMPLES))?;
        let listeners = ["HTTP", "GRPC", "RESP", "ADMIN"];
        let variables = listeners.map(|name| format!(" TOLLGATE_{name}=127.0.0.1:0"));
        session.shell.run(&format!("export{}", variables.concat()))?;
        Ok(session)
    }

    fn copy_examples(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        for entry in fs::read_dir(from).map_err(|error| error.to_string())? {
            let entry = entry.map_err(|error| error.to_string())?;
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                self.copy_examples(&entry.path(), &to)?;
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.write_file(&to.display().to_string(), &text)?;
            }
        }
        Ok(())
    }

    /// True once a server was started: from then on, output has parts that vary.
    pub(super) fn has_served(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Writes a file of the page, with the ports of this session.
    pub(super) fn write_file(&mut self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        let parent = path.parent().ok_or("a file has a folder")?;
        fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        fs::write(&path, self.with_known_ports(text)).map_err(|error| format!("{name}: {error}"))
    }

    /// Runs a command and returns its output, in the words of the page. The output of a server that starts is
    /// empty unless `shows_server`; it comes until the server is ready.
    pub(super) fn run(&mut self, command: &str, shows_server: bool) -> Result<ShellOutput, String> {
        if let Some(serve) = serve_command(command) {
            return self.serve(&serve, shows_server);
        }
        let command = self.with_free_ports(command)?;
        let command = self.with_own_folders(&command)?;
        let mut output = self.shell.run(&command)?;
        output.text = self.as_on_the_page(&output.text);
        Ok(output)
    }

    /// Starts a server and waits until it is ready. One that has the same ports on the page is stopped first.
    fn serve(&mut self, serve: &ServeCommand, shows: bool) -> Result<ShellOutput, String> {
        let taken = |server: &PageServer| {
            server.ports.iter().any(|port| serve.listeners.values().any(|p| p == port))
        };
        let (stopped, kept) = std::mem::take(&mut self.servers).into_iter().partition(taken);
        self.servers = kept;
        self.stop(stopped)?;
        for port in serve.listeners.values() {
            self.ports.remove(port);
        }
        let command = self.with_free_ports(&serve.text)?;
        let command = self.with_own_folders(&command)?;
        let log = self.home.join(format!("server-{}", self.logs.len()));
        self.logs.push(log.with_extension("err"));
        let name = log.display();
        let started = format!("{command} </dev/null >{name}.out 2>{name}.err &\nprintf %s $!");
        let id = self.shell.run(&started)?.text;
        let read = |end: &str| fs::read_to_string(format!("{name}.{end}")).unwrap_or_default();
        let ready = wait::until("a server to be ready or to end", || {
            let ended = !is_running(&id);
            let ready = read("out").lines().any(|line| line == "ready");
            (ready || ended).then_some(ready)
        });
        if !ready {
            let status = self.shell.run(&format!("wait {id}"))?.status;
            return Ok(ShellOutput {
                text: self.as_on_the_page(&(read("out") + &read("err"))),
                status,
            });
        }
        let out = read("out");
        for line in out.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["listening", listener, address] = words[..]
                && let Some(real) = address.rsplit(':').next().and_then(|port| port.parse().ok())
                && let Some(&port) = serve.listeners.get(listener)
            {
                self.ports.insert(port, real);
            }
        }
        let ports = serve.listeners.values().copied().collect();
        self.servers.push(PageServer { id, ports });
        self.tell_addresses()?;
        let text = if shows { self.as_on_the_page(&out) } else { String::new() };
        Ok(ShellOutput { text, status: 0 })
    }

    /// Stops servers and waits until they have ended.
    fn stop(&mut self, servers: Vec<PageServer>) -> Result<(), String> {
        for server in servers {
            let id = server.id;
            self.shell.run(&format!("kill -TERM {id}; wait {id}"))?;
        }
        Ok(())
    }

    /// Sets what `ask`, `keys` and `pidof` find.
    fn tell_addresses(&mut self) -> Result<(), String> {
        let mut exports = String::new();
        for (variable, port) in [("TOLLGATE_SERVER", 8080), ("TOLLGATE_ADMIN_URL", 9190)] {
            if let Some(real) = self.ports.get(&port) {
                exports += &format!("export {variable}=http://127.0.0.1:{real}\n");
            }
        }
        self.shell.run(&exports)?;
        let ids: Vec<&str> = self.servers.iter().map(|server| server.id.as_str()).collect();
        fs::write(self.home.join("servers"), ids.join(" ")).map_err(|error| error.to_string())
    }

    /// Waits until the line is in a log, with its variable parts.
    pub(super) fn wait_for_log(&self, line: &str) -> Result<(), String> {
        let logs = || -> String {
            let text = self.logs.iter().map(|log| fs::read_to_string(log).unwrap_or_default());
            self.as_on_the_page(&text.collect::<String>())
        };
        let found = wait::within(DEADLINE, || has_line(line, &logs()).then_some(()));
        found.ok_or_else(|| {
            format!("the line is not in the log:\n    - {line}\nthe log:\n{}", logs())
        })
    }

    /// Replaces the ports of the page in a command. `Err` names a port at which nothing listens.
    fn with_free_ports(&self, command: &str) -> Result<String, String> {
        let mut unknown = None;
        let replaced = ADDRESS.replace_all(command, |found: &Captures<'_>| {
            let port: u16 = found[2].parse().unwrap_or(0);
            if port != 0 && !self.ports.contains_key(&port) {
                unknown = Some(port);
            }
            let before = found[1].replace("0.0.0.0", "127.0.0.1");
            format!("{before}{}", self.ports.get(&port).unwrap_or(&port))
        });
        match unknown {
            None => Ok(replaced.into_owned()),
            Some(port) => Err(format!(
                "nothing on this page listens on port {port}: start it above, or write \
                 `<!-- with: application on {port} -->`"
            )),
        }
    }

    /// Replaces the ports of the page that are known already.
    fn with_known_ports(&self, text: &str) -> String {
        let replace = |found: &Captures<'_>| {
            let port = found[2].parse().unwrap_or(0);
            format!("{}{}", &found[1], self.ports.get(&port).unwrap_or(&port))
        };
        ADDRESS.replace_all(text, replace).into_owned()
    }

    /// Moves folders of the system into the session.
    fn with_own_folders(&self, command: &str) -> Result<String, String> {
        let mut command = command.to_string();
        for system in SYSTEM_FOLDERS {
            if !command.contains(system) {
                continue;
            }
            let own = format!("{}{system}", self.home.display());
            fs::create_dir_all(&own).map_err(|error| error.to_string())?;
            command = command.replace(system, &own);
        }
        Ok(command)
    }

    /// Replaces the ports and folders of this session in output.
    fn as_on_the_page(&self, output: &str) -> String {
        let output = ADDRESS.replace_all(output, |found: &Captures<'_>| {
            let real = found[2].parse().unwrap_or(0);
            let known = self.ports.iter().find(|(_, port)| **port == real);
            format!("{}{}", &found[1], known.map_or(real, |(page, _)| *page))
        });
        let folder = self.folder.display().to_string();
        output
            .replace(&format!("{folder}/"), "")
            .replace(&folder, ".")
            .replace(&self.home.display().to_string(), "")
    }
}

/// Writes a script that hides a program of the system.
fn executable(path: &Path, text: &str) -> std::io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
}

/// False if the process has ended, also if nobody has asked for its status yet.
pub(super) fn is_running(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}
