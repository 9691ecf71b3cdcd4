//! `tollgate schema`: the JSON Schema of rules files, for editors.

use std::io::{self, Write};

use super::CommandFailure;

/// Print the JSON Schema of rules files, for editors
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args) -> Result<(), CommandFailure> {
    let schema = tollgate_rules::schema();
    writeln!(io::stdout(), "{schema:#}").map_err(CommandFailure::from_output)
}

/// The end of `--help`.
const EXAMPLES: &str = r#"With it an editor completes the names of fields, shows what they mean, and marks
mistakes. `tollgate check` also finds what a schema cannot express, such as a
rate of zero or a rule that never applies.

Save it beside the rules:

  tollgate schema > tollgate.schema.json

and name it in the first line of each rules file, for every editor with
yaml-language-server (VS Code, Neovim, Emacs, Helix, Zed ...):

  # yaml-language-server: $schema=tollgate.schema.json"#;
