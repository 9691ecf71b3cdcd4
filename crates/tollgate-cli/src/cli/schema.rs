//! `tollgate schema`: the form of rules files, for editors.

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
const EXAMPLES: &str = r#"With it an editor completes the names of fields, shows what they mean, and
underlines what has no place in a rules file. What a schema cannot say, such as
a rate that is zero or a rule that nothing reaches, `tollgate check` tells.

Save it beside the rules:

  tollgate schema > tollgate.schema.json

and let the first line of each rules file name it, which every editor with
yaml-language-server understands (VS Code, Neovim, Emacs, Helix, Zed ...):

  # yaml-language-server: $schema=tollgate.schema.json"#;
