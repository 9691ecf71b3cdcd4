//! `tollgate keys`: shows and changes single callers on a running server.

use std::io::{self, Write};

use clap::builder::NonEmptyStringValueParser;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::listener::AdminArgs;
use super::client::{ClientRequest, path_segment};
use super::{CommandFailure, Report};
use crate::settings::parse_duration;
use all_rules::AllRulesReport;
use report::{CompletedAction, KeyReportBody};

mod all_rules;
mod overrides;
mod report;
pub(crate) mod top;

const EXAMPLES: &str = "\
A caller is named by a rule and a key in the form of the rule's `key`: user=42, ip=192.0.2.1, or
user=42,path=/export where it has two parts. The value alone will do where it can mean one thing.

Exit code
  0 done, 1 no answer or not done, 2 invalid command line.

Examples
  Why is user 42 refused?
    tollgate keys show api user=42

  Forget what user 42 has used, so that it is allowed again:
    tollgate keys reset api user=42

  Give 50 units back:
    tollgate keys grant api user=42 50

  Block an address for 15 minutes, and unblock it:
    tollgate keys block login ip=192.0.2.1 --for 15m
    tollgate keys unblock login ip=192.0.2.1

  Block a user under every rule that counts by users:
    tollgate keys block --all-rules user=42 --for 1d

  Give a customer other limits for a day, and remove them:
    tollgate keys override api user=42 --limit 100/second --for 1d
    tollgate keys override api user=42 --remove

  Which callers have the most requests, and the most refusals?
    tollgate keys top
    tollgate keys top --by refusals

Changes are not written into rules files: an override is lost at a restart, unless a shared store keeps it.";

/// Show, reset, block or grant single callers on a running server
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with examples: tollgate keys --help")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: KeysAction,

    /// Print the server's JSON response
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
    /// Refuse all requests of a caller for some time; a longer block stays
    Block {
        #[command(flatten)]
        caller: BlockedCallerArgs,
        /// Duration, such as 90s, 15m, 2h or 1d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: String,
    },
    /// Remove a block, also one of a `ban`; the caller's refusals stay counted
    Unblock(BlockedCallerArgs),
    /// Give units back to a caller, at most as many as are used
    Grant {
        #[command(flatten)]
        caller: CallerArgs,
        /// Number of units
        units: u64,
    },
    Override(overrides::Args),
    Top(top::Args),
}

/// The caller.
#[derive(Debug, clap::Args)]
struct CallerArgs {
    /// Name of the rule
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    rule: String,

    /// Key of the caller under this rule, such as user=42
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
}

/// The caller of a block, under one rule or all.
#[derive(Debug, clap::Args)]
struct BlockedCallerArgs {
    /// Name of the rule, and key of the caller under it, such as user=42; with --all-rules the key alone
    #[arg(
        value_names = ["RULE", "KEY"],
        num_args = 1..=2,
        required = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    caller: Vec<String>,

    /// Under every rule that counts by this fact alone
    #[arg(long)]
    all_rules: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    if let KeysAction::Block { caller, .. } | KeysAction::Unblock(caller) = &args.action {
        caller.check().map_err(CommandFailure::Usage)?;
        if caller.all_rules {
            let (request, _) = args.action.request();
            let print = |report: AllRulesReport| report.human_text();
            return args.send_and_print(&request, print);
        }
    }
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
    /// Sends the request, and prints the response as JSON or for people.
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
    /// The request to the server, and the action that it completes.
    fn request(&self) -> (ClientRequest, CompletedAction) {
        let post = |caller: &CallerArgs, body: Value| caller.request(Method::POST, Some(body));
        match self {
            KeysAction::Show(caller) => (caller.request(Method::GET, None), CompletedAction::Shown),
            KeysAction::Reset(caller) => {
                (caller.request(Method::DELETE, None), CompletedAction::Reset)
            }
            KeysAction::Block { caller, time } => {
                (caller.post(json!({ "block": time })), CompletedAction::Blocked)
            }
            KeysAction::Unblock(caller) => {
                (caller.post(json!({ "block": null })), CompletedAction::Unblocked)
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

impl BlockedCallerArgs {
    /// Checks that there are as many names as `--all-rules` leaves.
    fn check(&self) -> Result<(), Report> {
        match (self.all_rules, self.caller.len()) {
            (true, 1) | (false, 2) => Ok(()),
            (true, _) => Err(Report::new("with --all-rules there is no RULE")
                .hint("write the key alone: keys block --all-rules user=42 --for 15m")),
            (false, _) => Err(Report::new("a caller is named by RULE and KEY")
                .hint("write both, such as api user=42, or --all-rules user=42")),
        }
    }

    fn post(&self, body: Value) -> ClientRequest {
        let rule = if self.all_rules { "*".into() } else { path_segment(&self.caller[0]) };
        let key = self.caller.last().map(|key| path_segment(key)).unwrap_or_default();
        let path = format!("/api/keys/{rule}/{key}");
        ClientRequest { method: Method::POST, path, body: Some(body.to_string()) }
    }
}

/// A time that the server will understand, as it was written: its log repeats it.
fn time(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.into())
}
