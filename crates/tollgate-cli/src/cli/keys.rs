//! `tollgate keys`: what single callers have used on a running server, and what to do about it.

use std::io::{self, Write};

use clap::builder::NonEmptyStringValueParser;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::CommandFailure;
use super::client::listener::AdminArgs;
use super::client::{ClientRequest, path_segment};
use crate::settings::parse_duration;
use report::{CompletedAction, KeyReportBody};

mod overrides;
mod report;
mod top;

const EXAMPLES: &str = "\
A caller is named by a rule and a key, as the rule's `key` has it: user=42, ip=192.0.2.1, or
user=42,path=/export where it has two parts. The value alone will do where it can mean one thing.

Exit code
  0 done, 1 no answer or not done, 2 the command line makes no sense.

Examples
  Why is user 42 refused?
    tollgate keys show api user=42

  Let it in again, all forgotten:
    tollgate keys reset api user=42

  Give 50 units back:
    tollgate keys grant api user=42 50

  Keep an address out for a quarter of an hour, and let it in again:
    tollgate keys block login ip=192.0.2.1 --for 15m
    tollgate keys unblock login ip=192.0.2.1

  Other limits for a customer until tomorrow, and back to the rule's:
    tollgate keys override api user=42 --limit 100/second --for 1d
    tollgate keys override api user=42 --remove

  Who asks most, who is refused most?
    tollgate keys top
    tollgate keys top --by refusals

What is done here is not written into rules files: an override ends with the server, unless a shared store keeps it.";

/// Look at single callers on a running server; reset, block or grant
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with examples: tollgate keys --help")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: KeysAction,

    /// Print the server's JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    listener: AdminArgs,
}

#[derive(Debug, clap::Subcommand)]
enum KeysAction {
    /// Show what a caller has used, and whether it is blocked
    Show(CallerArgs),
    /// Forget what a caller has used, its refusals and its block
    Reset(CallerArgs),
    /// Refuse everything from a caller for a time; a longer block stays
    Block {
        #[command(flatten)]
        caller: CallerArgs,
        /// How long, such as 90s, 15m, 2h or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: String,
    },
    /// Lift a block, also one that the caller has earned; its refusals stay counted
    Unblock(CallerArgs),
    /// Give units back to a caller, as far as they are used
    Grant {
        #[command(flatten)]
        caller: CallerArgs,
        /// How many
        units: u64,
    },
    Override(overrides::Args),
    Top(top::Args),
}

/// Whose units.
#[derive(Debug, clap::Args)]
struct CallerArgs {
    /// The name of the rule
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    rule: String,

    /// The caller's key under this rule, such as user=42
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.action {
        KeysAction::Top(top) => {
            args.send_and_print(&top.request(), |answer| top.human_text(&answer))
        }
        action => {
            let (request, done) = action.request();
            args.send_and_print(&request, |report: KeyReportBody| report.human_text(&done))
        }
    }
}

impl Args {
    /// Asks, and prints the answer as it came or for people.
    fn send_and_print<A: DeserializeOwned>(
        &self,
        request: &ClientRequest,
        for_people: impl FnOnce(A) -> String,
    ) -> Result<(), CommandFailure> {
        let listener = self.listener.listener()?;
        let response = listener.ask(request).map_err(CommandFailure::Input)?;
        if response.status != 200 {
            return Err(CommandFailure::Input(listener.refused(&response)));
        }
        let answer = serde_json::from_str::<A>(&response.body);
        let answer =
            answer.map_err(|error| CommandFailure::Input(listener.not_tollgate(&error)))?;
        let text =
            if self.json { format!("{}\n", response.body.trim_end()) } else { for_people(answer) };
        io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output)
    }
}

impl KeysAction {
    /// What to ask of the server, and what is done when it agrees.
    fn request(&self) -> (ClientRequest, CompletedAction) {
        let post = |caller: &CallerArgs, body: Value| caller.request(Method::POST, Some(body));
        match self {
            KeysAction::Show(caller) => (caller.request(Method::GET, None), CompletedAction::Shown),
            KeysAction::Reset(caller) => {
                (caller.request(Method::DELETE, None), CompletedAction::Reset)
            }
            KeysAction::Block { caller, time } => {
                (post(caller, json!({ "block": time })), CompletedAction::Blocked)
            }
            KeysAction::Unblock(caller) => {
                (post(caller, json!({ "block": null })), CompletedAction::Unblocked)
            }
            KeysAction::Grant { caller, units } => {
                (post(caller, json!({ "grant": units })), CompletedAction::Granted(*units))
            }
            KeysAction::Override(args) => {
                (post(&args.caller, args.body()), args.completed_action())
            }
            KeysAction::Top(top) => (top.request(), CompletedAction::Shown),
        }
    }
}

impl CallerArgs {
    fn request(&self, method: Method, body: Option<Value>) -> ClientRequest {
        let (rule, key) = (path_segment(&self.rule), path_segment(&self.key));
        let path = format!("/api/keys/{rule}/{key}");
        ClientRequest { method, path, body: body.map(|body| body.to_string()) }
    }
}

/// A time that the server will understand, as it was written: its log repeats it.
fn time(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.into())
}
