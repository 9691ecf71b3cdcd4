//! The command `tollgate`: parse, dispatch, exit code.

mod cli;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Check(args) => cli::check::run(&args),
        Command::Simulate(args) => cli::simulate::run(&args),
        Command::Schema(args) => cli::schema::run(&args),
    };
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if let Some(report) = failure.report() {
        // If standard error is closed too, the exit code has to be enough.
        let _ = writeln!(io::stderr(), "error: {report}");
    }
    failure.exit_code()
}
