//! A real terminal: a command in a pane of a tmux server of its own.

use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::wait;

/// A pane; its tmux server ends when it is dropped.
pub(crate) struct TmuxPane {
    /// The directory of the server's socket, which nobody else has.
    directory: TempDir,
}

/// The name of the socket in its directory.
const SOCKET: &str = "pane";

impl TmuxPane {
    /// Runs a command line of a shell, in which `$TOLLGATE` is the program. When it has ended, the pane shows `left
    /// CODE`, and `restored` if the terminal is in the state of before.
    pub(crate) fn run(columns: u16, lines: u16, command: &str) -> TmuxPane {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let pane = TmuxPane { directory };
        let script = format!(
            "before=$(stty -g); {command}; echo left $?; test \"$before\" = \"$(stty -g)\" && echo restored; \
             exec cat"
        );
        let size = [columns, lines].map(|size| size.to_string());
        let program = format!("TOLLGATE={}", env!("CARGO_BIN_EXE_tollgate"));
        let new = ["new-session", "-d", "-x", &size[0], "-y", &size[1], "-e", &program];
        pane.tmux(&[&new[..], &["sh", "-c", &script]].concat());
        pane
    }

    /// Runs a command of tmux and returns its output.
    fn tmux(&self, args: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-f", "/dev/null", "-S"]).arg(self.directory.path().join(SOCKET));
        tmux.args(args).env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOLLGATE_") {
                tmux.env_remove(name);
            }
        }
        let output = tmux.output();
        let output = output.expect("tmux is installed: `cargo xtask test --only packages` does it");
        let Output { status, stdout, stderr } = output;
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "tmux {args:?}: {stderr}");
        String::from_utf8(stdout).expect("a pane is text")
    }

    /// Presses keys, by the names that tmux has for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let size = [columns, lines].map(|size| size.to_string());
        self.tmux(&["resize-window", "-x", &size[0], "-y", &size[1]]);
    }

    /// The text that the pane shows now.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the text is as wanted, and returns it.
    pub(crate) fn wait_until(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = wait::within(crate::harness::DEADLINE, || {
            last = self.text();
            is_wanted(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("the pane never showed {what}:\n{last}"))
    }

    /// Waits until the pane shows this text.
    pub(crate) fn wait_for(&self, wanted: &str) -> String {
        self.wait_until(wanted, |text| text.contains(wanted))
    }

    /// The process that the shell of the pane waits for.
    pub(crate) fn process_id(&self) -> String {
        let shell = self.tmux(&["list-panes", "-F", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(children).expect("the shell runs");
        children.split_whitespace().next().expect("it has a child").into()
    }
}

impl Drop for TmuxPane {
    fn drop(&mut self) {
        // A server that has ended cannot be asked to end; that is no failure.
        let socket = self.directory.path().join(SOCKET);
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}
