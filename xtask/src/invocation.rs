//! One command line: run it, count the tests it reports, or print it for a person to repeat.
//!
//! The same value is printed and run, so that the two cannot drift apart.

use std::fmt;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::tally::{TestRunner, TestTally};

/// A program, its arguments and its additional environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Invocation {
    /// Parses a command line without quotes: words are separated by spaces.
    pub(crate) fn new(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_owned);
        let program = words.next().expect("a command line names a program");
        Self { program, arguments: words.collect(), environment: Vec::new() }
    }

    /// Adds arguments as they are, spaces and all.
    pub(crate) fn with(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs to the end with our own input and output. Returns true if it succeeded.
    pub(crate) fn run(&self) -> bool {
        match self.command().status() {
            Ok(status) => status.success(),
            Err(error) => self.cannot_start(&error),
        }
    }

    /// Returns true if it can be started and succeeds. Prints nothing: this only checks if a tool is installed.
    pub(crate) fn probe(&self) -> bool {
        let silent = self.command().stdin(Stdio::null()).output();
        silent.is_ok_and(|output| output.status.success())
    }

    /// Runs to the end and returns the standard output; `None` if it failed.
    pub(crate) fn output(&self) -> Option<String> {
        let output = self.command().stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs to the end, passes every line on as it comes, and adds up the results reported in them.
    pub(crate) fn run_and_count(&self, runner: TestRunner) -> (bool, TestTally) {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if std::io::stderr().is_terminal() {
            command.env("CARGO_TERM_COLOR", "always"); // the pipe would turn colours off
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return (self.cannot_start(&error), TestTally::default()),
        };
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let tally = thread::scope(|scope| {
            let errors = scope.spawn(|| pass_on(stderr, std::io::stderr(), runner));
            let output = pass_on(stdout, std::io::stdout(), runner);
            output + errors.join().expect("passing lines on does not panic")
        });
        (child.wait().is_ok_and(|status| status.success()), tally)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(crate::root());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn cannot_start(&self, error: &std::io::Error) -> bool {
        eprintln!("cannot start `{}`: {error}", self.program);
        false
    }
}

/// Copies lines from a pipe to our own output and adds up the results in them.
fn pass_on(from: impl Read, mut to: impl Write, runner: TestRunner) -> TestTally {
    let mut lines = BufReader::new(from);
    let mut tally = TestTally::default();
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        // The reader of our output may have closed it; the tests are counted all the same.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        if let Some(found) = TestTally::from_line(runner, &String::from_utf8_lossy(&line)) {
            tally = tally + found;
        }
        line.clear();
    }
    tally
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        write!(f, "{}", self.program)?;
        for argument in &self.arguments {
            write!(f, " {}", quoted(argument))?;
        }
        Ok(())
    }
}

/// The word as a shell must see it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_a_shell_would_run() {
        let rows = [
            (Invocation::new("cargo fmt --all --check"), "cargo fmt --all --check"),
            (
                Invocation::new("cargo test").env("RUSTFLAGS", "--cfg loom"),
                "RUSTFLAGS='--cfg loom' cargo test",
            ),
            (Invocation::new("echo").with(["it's", ""]), r"echo 'it'\''s' ''"),
        ];
        for (invocation, expected) in rows {
            assert_eq!(invocation.to_string(), expected);
        }
    }

    #[test]
    fn a_missing_program_is_a_failure_and_not_a_panic() {
        let missing = Invocation::new("tollgate-no-such-program");
        assert!(!missing.run());
        assert!(!missing.probe());
        assert_eq!(missing.run_and_count(TestRunner::Libtest), (false, TestTally::default()));
    }

    #[test]
    fn passes_lines_on_unchanged_while_counting() {
        let output = b"compiling \xff\ntest result: ok. 2 passed; 0 failed; 0 ignored\nno newline";
        let mut seen = Vec::new();
        let tally = pass_on(&output[..], &mut seen, TestRunner::Libtest);
        assert_eq!(seen, output);
        assert_eq!(tally, TestTally { passed: 2, ..TestTally::default() });
    }
}
