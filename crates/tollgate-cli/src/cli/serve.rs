//! `tollgate serve`: the server.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, CommandFactory};

use super::{Cli, CommandFailure};
use crate::run;
use crate::settings::{Flags, ServerSettings};

const EXAMPLES: &str = "\
Settings
  Each flag can also be set by its environment variable, or by its name in the file of --config:
    http: 127.0.0.1:8080
    rules: [rules.yaml]
  Flags override the environment, the environment overrides the file.

Output
  One line for each listener, such as `listening http 127.0.0.1:8080`, then `ready`, on standard output.
  Logs go to standard error. SIGTERM or Ctrl-C waits for requests to finish; a second one stops at once.

Examples
  With demo rules, to try it:
    tollgate serve
    curl -i -d '{\"path\":\"/api/search\",\"user\":\"42\"}' http://127.0.0.1:8080/v1/check

  One limit for each caller, without a rules file:
    tollgate serve --limit \"100/minute burst 20\"

  Rules from a file, counters kept across restarts:
    tollgate serve --rules rules.yaml --snapshot /var/lib/tollgate/quotas

  Reachable from other machines, with a token and TLS:
    openssl rand -hex 32 > token && chmod 600 token
    tollgate serve --rules rules.yaml --http 0.0.0.0:8080 --auth-token-file token \\
                   --tls-cert cert.pem --tls-key key.pem";

/// Run the server
///
/// Without flags it serves demo rules on 127.0.0.1:8080, with counters in memory.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with examples: tollgate serve --help")]
pub(crate) struct Args {
    /// Settings file in YAML: names of these flags and their values
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG", help_heading = "Rules")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: Flags,
}

/// Runs the command. `matches` tells the source of each setting.
pub(crate) fn run(args: &Args, matches: &ArgMatches) -> Result<(), CommandFailure> {
    let Some((_, own)) = matches.subcommand() else { unreachable!("`serve` is a subcommand") };
    let command_line: Vec<OsString> = std::env::args_os().skip(2).collect();
    let settings = ServerSettings::resolve(own, args.config.as_ref(), &command_line, parse)?;
    run::run(settings)
}

/// Parses flags of `serve`.
fn parse(flags: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    let words = ["tollgate".into(), "serve".into()].into_iter().chain(flags);
    let matches = Cli::command().try_get_matches_from(words)?;
    let Some((_, own)) = matches.subcommand() else { unreachable!("`serve` is a subcommand") };
    Ok(own.clone())
}
