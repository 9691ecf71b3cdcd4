//! Runs `browser.js` in node, and answers what its cases ask of this process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testkit::peers;
use testkit::process::ChildProcess;

/// A running node process with its browser. Both end when it is dropped.
pub(crate) struct DashboardBrowser {
    output: BufReader<ChildStdout>,
    input: ChildStdin,
    process: ChildProcess,
    /// Home of the browser: nothing of the user's is read or written.
    _home: TempDir,
}

impl DashboardBrowser {
    /// Starts the cases with these settings, which `browser.js` documents.
    pub(crate) fn start(settings: &Value) -> DashboardBrowser {
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("node");
        command
            .arg(script("browser.js"))
            .arg(settings.to_string())
            .env("NODE_PATH", peers::node_path())
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = ChildProcess::start(&mut command);
        let output = BufReader::new(process.child().stdout.take().expect("it is a pipe"));
        let input = process.child().stdin.take().expect("it is a pipe");
        DashboardBrowser { output, input, process, _home: home }
    }

    /// Lets all cases run and fails with what they report. `answer` handles a line `ask REQUEST` of a case; its result is
    /// sent back as one line.
    pub(crate) fn run(mut self, mut answer: impl FnMut(&str) -> String) {
        let mut report = String::new();
        for line in (&mut self.output).lines() {
            let line = line.expect("the output is UTF-8");
            match line.strip_prefix("ask ") {
                Some(request) => {
                    writeln!(self.input, "{}", answer(request)).expect("node reads");
                }
                None => {
                    println!("{line}");
                    report += &format!("{line}\n");
                }
            }
        }
        let status = self.process.child().wait().expect("it was started");
        assert!(status.success(), "cases failed:\n{report}");
    }
}

/// A file of this folder.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard").join(name)
}
