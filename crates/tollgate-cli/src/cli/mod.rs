//! The command line: the commands, each in its own file, and their failures.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod completions;
pub(crate) mod environment;
pub(crate) mod human_output;
pub(crate) mod keys;
pub(crate) mod man;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod top;

/// Rate limiter: a server, and tools for its operators
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    arg_required_else_help = true,
    // Help is pasted into tickets, and values in the environment may be secret.
    mut_subcommands(|command| command.mut_args(|arg| taking_negatives(arg.hide_env_values(true))))
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// Lets options for numbers take values with a leading hyphen, so that the error for `-5/minute` is about the
/// number and not about an unknown flag `-5`.
fn taking_negatives(arg: clap::Arg) -> clap::Arg {
    let names = |wanted: &[&str]| {
        let mut names = arg.get_value_names().unwrap_or_default().iter();
        names.any(|name| wanted.contains(&name.as_str()))
    };
    match (names(&["RATE", "TIME"]), names(&["N"])) {
        (true, _) => arg.allow_hyphen_values(true),
        (_, true) => arg.allow_negative_numbers(true),
        _ => arg,
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Serve(Box<serve::Args>),
    Check(check::Args),
    Simulate(simulate::Args),
    Ask(ask::Args),
    Keys(keys::Args),
    Bench(bench::Args),
    Top(top::Args),
    Schema(schema::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Failure of a command.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The command line is invalid.
    Usage(Report),
    /// The command line was valid but the command failed.
    Input(Report),
    /// The same, with the problem already printed.
    Reported,
    /// The command succeeded and its answer is no.
    NegativeAnswer,
    /// The reader closed standard output, as `head` does: not an error.
    OutputClosed,
}

impl CommandFailure {
    /// The report to print, if any.
    pub(crate) fn report(&self) -> Option<&Report> {
        match self {
            CommandFailure::Usage(report) | CommandFailure::Input(report) => Some(report),
            CommandFailure::Reported
            | CommandFailure::NegativeAnswer
            | CommandFailure::OutputClosed => None,
        }
    }

    /// The exit code, as STYLE.md defines it: 2 is for an invalid command line.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            CommandFailure::Usage(_) => ExitCode::from(2),
            CommandFailure::Input(_) | CommandFailure::Reported => ExitCode::from(1),
            CommandFailure::NegativeAnswer => ExitCode::from(3),
            CommandFailure::OutputClosed => ExitCode::SUCCESS,
        }
    }

    /// The failure of writing to standard output.
    pub(crate) fn from_output(error: impl Into<io::Error>) -> CommandFailure {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::OutputClosed,
            _ => CommandFailure::Input(Report::new(format!("cannot write the output: {error}"))),
        }
    }
}

/// A problem and, unless it is obvious, a hint how to solve it.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) problem: String,
    pub(crate) hint: Option<String>,
}

impl Report {
    pub(crate) fn new(problem: impl Into<String>) -> Report {
        Report { problem: problem.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Report {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        match &self.hint {
            None => Ok(()),
            Some(hint) => write!(f, "\nhint: {hint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn help_does_not_repeat_the_environment() {
        let mut command = Cli::command();
        command.build();
        let mut waiting = vec![&command];
        let mut found = 0;
        while let Some(command) = waiting.pop() {
            waiting.extend(command.get_subcommands());
            for arg in command.get_arguments().filter(|arg| arg.get_env().is_some()) {
                assert!(arg.is_hide_env_values_set(), "{} {arg}", command.get_name());
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }
}
