//! The command `tollgate` from outside: what goes in, what comes out, the exit code.
#![allow(dead_code, reason = "each test program needs a part of it")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Output of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> CommandOutput {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        CommandOutput {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl CommandOutput {
    /// The answers of a run in which nothing was wrong.
    pub(crate) fn answers(&self, what: &str) -> Vec<Value> {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{what}");
        self.lines()
    }

    /// Standard output as JSON lines.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// The command, with pipes, in the directory that [`file`] makes files in.
pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs it with these arguments.
pub(crate) fn run<'a>(args: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    tollgate().args(args).output().expect("tollgate runs").into()
}

/// The same with something on standard input.
pub(crate) fn run_with<'a>(
    args: impl IntoIterator<Item = &'a str>,
    input: impl AsRef<[u8]> + Send,
) -> CommandOutput {
    let mut command = tollgate();
    command.args(args);
    feed(command, input)
}

/// Runs a command with this on its standard input.
pub(crate) fn feed(mut command: Command, input: impl AsRef<[u8]> + Send) -> CommandOutput {
    let mut child = command.spawn().expect("tollgate runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        // Whatever is wrong may end the program before it has read everything.
        scope.spawn(move || stdin.write_all(input.as_ref()).ok());
        child.wait_with_output().expect("tollgate ends").into()
    })
}

/// A file for one test; its name may have directories.
pub(crate) fn file(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(path.parent().expect("a directory")).expect("a place for files of tests");
    fs::write(&path, content).expect("a place for files of tests");
    path
}

/// Runs a command line in a shell that finds `tollgate`.
#[cfg(unix)]
pub(crate) fn paste(command: &str) -> CommandOutput {
    let binary = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let directory = binary.parent().expect("a directory").to_str().expect("text");
    let path = format!("{directory}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path).current_dir(env!("CARGO_TARGET_TMPDIR"));
    shell.output().expect("a shell").into()
}
