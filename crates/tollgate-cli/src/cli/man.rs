//! `tollgate man`: the manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Cli, CommandFailure, Report};

/// Print the manual page, or write all of them into a directory
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples
  tollgate man | man -l -
  tollgate man --dir /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// Write one page for each command into this directory, creating it if it is missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    let Some(dir) = &args.dir else {
        let page = render(Cli::command()).map_err(CommandFailure::from_output)?;
        return io::stdout().write_all(&page).map_err(CommandFailure::from_output);
    };
    let written = fs::create_dir_all(dir);
    written.and_then(|()| clap_mangen::generate_to(Cli::command(), dir)).map_err(|error| {
        let dir = dir.display();
        let report = Report::new(format!("cannot write manual pages into {dir}: {error}"));
        CommandFailure::Input(
            report.hint("--dir names a writable directory; it is created if it is missing"),
        )
    })
}

fn render(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
