//! A bash that runs the commands of a page one after another, and keeps folder and variables between them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use testkit::wait;

/// Longest time of one command. Some measure for seconds, if the machine has other things to do.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Begins the line that ends the output of a command.
const END: &str = "\u{1e}end of the command: ";

/// Output of a command, as a terminal shows it.
pub(super) struct ShellOutput {
    pub(super) text: String,
    pub(super) status: i32,
}

/// The shell with its process group, in which everything that it starts runs. Dropping it ends the group.
pub(super) struct PageShell {
    bash: Child,
    /// Ends the group when the test is killed.
    guard: Child,
    stdin: ChildStdin,
    output: Receiver<String>,
    /// Folder of the files with commands.
    scripts: PathBuf,
    count: usize,
}

impl PageShell {
    /// Starts bash in a folder, with the programs of `bin` before all others and no settings from outside.
    pub(super) fn start(folder: &Path, home: &Path, bin: &Path) -> PageShell {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).env_clear().current_dir(folder).process_group(0);
        command.env("PATH", format!("{}:/usr/sbin:{path}", bin.display()));
        // Programs behave as on a terminal: curl shows no progress, redis-cli types of replies.
        command.env("HOME", home).env("CURL_HOME", home).env("FAKETTY", "1").env("LANG", "C.UTF-8");
        fs::write(home.join(".curlrc"), "silent\nshow-error\nmax-time = 20\n").expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut bash = command.spawn().expect("bash runs");
        let guard = Command::new("sh")
            .args(["-c", &format!("read -r _; kill -9 -- -{}", bash.id())])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh runs");
        let stdin = bash.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(bash.stdout.take().expect("a pipe"));
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut line = Vec::new();
            while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        PageShell { bash, guard, stdin, output, scripts: home.to_owned(), count: 0 }
    }

    /// Runs a command in the shell itself and returns its output. `Err` if it does not end.
    pub(super) fn run(&mut self, command: &str) -> Result<ShellOutput, String> {
        self.count += 1;
        let script = self.scripts.join(format!("command-{}", self.count));
        fs::write(&script, command).map_err(|error| error.to_string())?;
        let line = format!(". {} </dev/null 2>&1; printf '\\n{END}%s\\n' $?\n", script.display());
        self.stdin.write_all(line.as_bytes()).map_err(|error| error.to_string())?;
        let mut text = String::new();
        let deadline = wait::now() + COMMAND_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(wait::now());
            let Ok(line) = self.output.recv_timeout(left) else {
                return Err(format!("the command does not end; until now it printed:\n{text}"));
            };
            if let Some(status) = line.strip_prefix(END) {
                // The line break before the end is not the command's.
                text.pop();
                return Ok(ShellOutput { text, status: status.trim().parse().unwrap_or(-1) });
            }
            text += &line.replace('\r', "");
        }
    }
}

impl Drop for PageShell {
    fn drop(&mut self) {
        // The guard first: once the group has ended, its id may be reused.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        let group = format!("-{}", self.bash.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.bash.wait();
    }
}
