//! The command `tollgate` as a library with one function, which `main.rs` calls. It is not an interface
//! for programs: those embed the crate `tollgate`.

mod access;
mod background;
#[allow(dead_code, unused_imports, reason = "the commands that draw come next")]
mod chart;
mod cli;
mod control_plane;
mod credentials;
mod data_plane;
mod drain;
mod explanation_json;
mod history;
mod key_names;
mod listener_table;
mod listeners;
mod live;
mod metrics;
mod open_files;
mod peer_instances;
mod recent_refusals;
mod recording;
mod refusal_log;
mod replay;
mod reply;
mod run;
mod server_observer;
mod settings;
mod shutdown;
mod small_file;
mod snapshot;
mod store;
mod telemetry;
mod top;
mod upstream;
mod warnings;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, CliCommand, environment};

/// Parses the command line, runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let matches = Cli::command().try_get_matches();
    let matches = matches.unwrap_or_else(|error| environment::blame_variable(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        CliCommand::Serve(args) => cli::serve::run(&args, &matches),
        CliCommand::Check(args) => cli::check::run(&args),
        CliCommand::Simulate(args) => cli::simulate::run(&args),
        CliCommand::Ask(args) => cli::ask::run(&args),
        CliCommand::Keys(args) => cli::keys::run(&args),
        CliCommand::Bench(args) => cli::bench::run(&args),
        CliCommand::Top(args) => cli::top::run(&args),
        CliCommand::Schema(args) => cli::schema::run(&args),
        CliCommand::Completions(args) => cli::completions::run(&args),
        CliCommand::Man(args) => cli::man::run(&args),
    };
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if let Some(report) = failure.report() {
        // If standard error is closed too, the exit code has to be enough.
        let _ = writeln!(io::stderr(), "error: {report}");
    }
    failure.exit_code()
}
