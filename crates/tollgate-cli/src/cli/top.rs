//! `tollgate top`: a live view of a running server in a terminal, and `--once` for one look as plain text.
//!
//! Data flows one way: a thread asks the server ([`worker`]), a [`TopScreen`] turns answers and keys into what is
//! shown and into requests, and [`draw`] draws it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use crossterm::event::{self, Event, KeyEventKind};

use screen::TopScreen;
use snapshot::ServerSnapshot;
use worker::{TopUpdate, WorkerCommand};

use super::client::listener::AdminArgs;
use super::{CommandFailure, Report};

mod draw;
mod key_action;
mod screen;
mod snapshot;
mod table_rows;
mod text;
mod worker;

/// Longest wait for a key before answers of the server are looked at.
const KEY_WAIT: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Keys
  q quit, ? help, Tab or 1 2 3 view, s sort, / filter, up and down select,
  r reset, b block, u unblock, g grant the selected caller (each is asked back once)

Examples
  tollgate top
  tollgate top --once
  tollgate top --admin https://limits.example.com:9190 --admin-token-file token";

/// Watch a running server: rates, latency, the heaviest callers, rules and store
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with the keys: tollgate top --help")]
pub(crate) struct Args {
    /// Print one look as plain text, without a terminal
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    listener: AdminArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    let listener = args.listener.listener()?;
    if args.once {
        let snapshot = ServerSnapshot::fetch(&listener).map_err(CommandFailure::Input)?;
        let text = text::snapshot_text(&snapshot);
        return io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output);
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let report = Report::new("top needs a terminal");
        return Err(CommandFailure::Usage(
            report.hint("print one look with `tollgate top --once`"),
        ));
    }
    drop(listener);
    let (commands, updates) = worker::start(Arc::new(args.clone()));
    let no_terminal = |error: io::Error| {
        CommandFailure::Input(Report::new(format!("cannot use the terminal: {error}")))
    };
    // Also restores the terminal if the program panics.
    let mut terminal = ratatui::try_init().map_err(no_terminal)?;
    let mut screen = TopScreen::new(args.listener.url());
    let watched = watch(&mut terminal, &mut screen, &commands, &updates);
    ratatui::restore();
    watched.map_err(no_terminal)
}

/// Draws, and handles keys and updates, until the user quits or a signal ends the program.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut TopScreen,
    commands: &SyncSender<WorkerCommand>,
    updates: &Receiver<TopUpdate>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| draw::draw(frame, screen))?;
        // A resize is an event too: the next turn draws with the new size.
        if event::poll(KEY_WAIT)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && let Some(command) = screen.on_key(key)
        {
            screen.on_sent(commands.try_send(command).is_ok());
        }
        loop {
            match updates.try_recv() {
                Ok(update) => screen.on_update(update),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the thread that asks the server has ended"));
                }
            }
        }
        if screen.is_done {
            return Ok(());
        }
    }
}
