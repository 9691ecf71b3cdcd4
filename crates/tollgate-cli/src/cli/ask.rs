//! `tollgate ask`: sends one check to a running server, and prints the answer for people or programs.

mod explain;
mod method_note;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

use tollgate::Refusal;

use super::client::ClientRequest;
use super::client::listener::DataArgs;
use super::human_output::{self, printable, wait};
use super::{CommandFailure, Report};

const EXAMPLES: &str = "\
Exit code
  0 allowed, 3 refused, 1 no answer, 2 invalid command line.

Examples
  May user 42 search?
    tollgate ask --path /api/search --user 42

  In a script:
    tollgate ask --path /login --method POST --ip 192.0.2.1 --json

  Why is it refused, and when would it pass? This charges nothing:
    tollgate ask --explain --path /api/search --user 42

  A caller with an API key, which stays out of the command line:
    tollgate ask --path /api/search --api-key-file key.txt

  With a token, over TLS:
    tollgate ask --server https://limits.example.com:8080 --token-file token \\
      --ca-file ca.pem --user 42

This is a real check: an allowed request is charged. With --cost 0 it is not.";

/// Send one check to a running server
///
/// Prints whether a request with these facts is allowed, and the state of each limit.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "More, with examples: tollgate ask --help")]
pub(crate) struct Args {
    /// Path of the request
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Method of the request
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Host that the request is for
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// User that sends the request
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// IP address of the client
    #[arg(long, value_name = "ADDR")]
    ip: Option<IpAddr>,

    /// Tier of the user
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,

    /// File with the API key of the caller; - reads standard input. Spaces and line ends around it do not count
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Cost of the request, instead of the rules' cost; 0 charges nothing
    #[arg(long, value_name = "UNITS")]
    cost: Option<u64>,

    /// Header of the request; may be given several times, each name once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// Explain the decision: rules, keys and arithmetic. Charges nothing; asks the admin listener
    #[arg(long)]
    explain: bool,

    /// Explain a recorded refusal instead, by its id in /api/refusals
    #[arg(
        long,
        value_name = "ID",
        requires = "explain",
        conflicts_with_all =
            ["path", "method", "host", "user", "ip", "tier", "api_key_file", "cost", "headers"]
    )]
    refusal: Option<String>,

    /// Print the server's JSON response
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: DataArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CommandFailure> {
    check_headers(&args.headers).map_err(CommandFailure::Usage)?;
    let api_key = args.api_key_file.as_deref().map(read_api_key).transpose();
    let question = request_body(args, api_key.map_err(CommandFailure::Input)?);
    let question = Value::Object(question).to_string();
    if args.explain {
        let listener = args.server.admin_listener()?;
        return explain::run(&listener, (question, args.refusal.as_deref()), args.json);
    }
    let listener = args.server.listener()?;
    let request = ClientRequest {
        method: Method::POST,
        path: "/v1/check".into(),
        body: Some(question.clone()),
    };
    let response = listener.ask(&request).map_err(CommandFailure::Input)?;
    let decision = serde_json::from_str::<CheckReply>(&response.body);
    // 503 is a refusal while the store is unavailable, or no decision at all.
    let is_decision =
        matches!(response.status, 200 | 429) || response.status == 503 && decision.is_ok();
    if !is_decision {
        let report = listener.refused(&response);
        return Err(CommandFailure::Input(match missing_flags(&response.body) {
            Some(hint) => report.hint(hint),
            None => report,
        }));
    }
    let decision =
        decision.map_err(|error| CommandFailure::Input(listener.not_tollgate(&error)))?;
    let text = if args.json { format!("{}\n", response.body) } else { decision.human_text() };
    io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output)?;
    if args.method.is_none() && !args.json {
        method_note::print(&args.server, question, decision.rule.is_none());
    }
    if decision.allowed { Ok(()) } else { Err(CommandFailure::NegativeAnswer) }
}

/// The flags for facts that the server misses, if that is the problem.
fn missing_flags(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct MissingFactsBody {
        missing: Vec<Vec<String>>,
    }
    let MissingFactsBody { missing } = serde_json::from_str(body).ok()?;
    let flag = |fact: &String| match fact.strip_prefix("header.") {
        Some(name) => Some(format!("--header {}=VALUE", printable(name))),
        None if *fact == "api_key" => Some("--api-key-file FILE".into()),
        None if ["user", "ip", "tier", "path", "method", "host"].contains(&&**fact) => {
            Some(format!("--{fact} {}", if fact == "ip" { "ADDR" } else { "VALUE" }))
        }
        None => None,
    };
    let any_of =
        |facts: &Vec<String>| facts.iter().filter_map(flag).collect::<Vec<_>>().join(" or ");
    let flags: Vec<_> = missing.iter().map(any_of).filter(|flags| !flags.is_empty()).collect();
    (!flags.is_empty()).then(|| format!("add {}", flags.join(", and ")))
}

/// Most bytes of a file with an API key.
const API_KEY_BYTES_MAX: u64 = 64 << 10;

/// Reads the API key from a file, or from standard input. It is a secret, so it is no flag: other users of the machine
/// see those.
fn read_api_key(path: &Path) -> Result<String, Report> {
    let mut key = String::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().take(API_KEY_BYTES_MAX).read_to_string(&mut key),
        false => {
            File::open(path).and_then(|file| file.take(API_KEY_BYTES_MAX).read_to_string(&mut key))
        }
    };
    let shown = path.display();
    read.map_err(|error| Report::new(format!("cannot read the API key from {shown}: {error}")))?;
    match key.trim() {
        "" => Err(Report::new(format!("there is no API key in {shown}"))
            .hint("write the key alone into the file, or `-` to read standard input")),
        key => Ok(key.into()),
    }
}

fn request_body(args: &Args, api_key: Option<String>) -> Map<String, Value> {
    let mut question = Map::new();
    let texts = [
        ("method", &args.method),
        ("path", &args.path),
        ("host", &args.host),
        ("api_key", &api_key),
        ("user", &args.user),
        ("tier", &args.tier),
        ("ip", &args.ip.map(|ip| ip.to_string())),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            question.insert(name.into(), text.as_str().into());
        }
    }
    if let Some(cost) = args.cost {
        question.insert("cost".into(), cost.into());
    }
    if !args.headers.is_empty() {
        let fields = args.headers.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        question.insert("headers".into(), Value::Object(fields.collect()));
    }
    question
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write a name and a value: x-tenant=acme".into()),
    }
}

/// Refuses a header that is given twice, ignoring case.
fn check_headers(headers: &[(String, String)]) -> Result<(), Report> {
    for (index, (name, _)) in headers.iter().enumerate() {
        if headers[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return Err(Report::new(format!("--header {name:?} is given twice"))
                .hint("write a header once, with several values separated by commas"));
        }
    }
    Ok(())
}

/// The response of `/v1/check`, as far as it is shown to people.
#[derive(Deserialize)]
struct CheckReply {
    allowed: bool,
    rule: Option<String>,
    limit: Option<String>,
    remaining: Option<u64>,
    max: Option<u64>,
    retry_after_ms: Option<u64>,
    delay_ms: Option<u64>,
    reason: Option<String>,
    limits: Vec<CheckReplyLimit>,
}

#[derive(Deserialize)]
struct CheckReplyLimit {
    rule: String,
    limit: String,
    allowed: bool,
    /// Remaining units; unknown while the store is unavailable.
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    soft: bool,
}

impl CheckReply {
    fn human_text(&self) -> String {
        let mut text = self.sentence();
        text.push('\n');
        if !self.limits.is_empty() {
            text.push('\n');
            text.push_str(&table(&self.limits));
        }
        text
    }

    fn sentence(&self) -> String {
        let (Some(rule), Some(limit)) = (&self.rule, &self.limit) else {
            return "Allowed: no rule applies.".into();
        };
        let (rule, limit) = (printable(rule), printable(limit));
        let number = |number: Option<u64>| number.unwrap_or_default();
        let (remaining, max) = (number(self.remaining), number(self.max));
        match (self.allowed, self.delay_ms.unwrap_or_default()) {
            (true, 0) => format!("Allowed: {remaining} of {max} left under {rule} ({limit})."),
            (true, delay) => {
                let delay = wait(Some(delay));
                format!("Allowed after {delay}: {remaining} of {max} left under {rule} ({limit}).")
            }
            (false, _) if self.reason.as_deref() == Some(Refusal::StoreUnavailable.name()) => {
                let retry = wait(self.retry_after_ms);
                format!(
                    "Refused: the store is unavailable, and {rule} ({limit}) refuses then. Retry in \
                     {retry}."
                )
            }
            (false, _) => match self.retry_after_ms {
                Some(_) => {
                    let retry = wait(self.retry_after_ms);
                    format!("Refused by {rule} ({limit}). Retry in {retry}.")
                }
                None => format!("Refused by {rule} ({limit}). Waiting does not help."),
            },
        }
    }
}

fn table(limits: &[CheckReplyLimit]) -> String {
    let rows = limits.iter().map(|one| {
        let standing = if one.shadow {
            " (shadow)"
        } else if one.soft {
            " (soft)"
        } else {
            ""
        };
        let answer = if one.allowed { "allowed" } else { "refused" };
        let retry = if one.allowed { "-".into() } else { wait(one.retry_after_ms) };
        [
            printable(&one.rule),
            printable(&one.limit),
            format!("{answer}{standing}"),
            one.remaining.map_or_else(|| "-".into(), |remaining| remaining.to_string()),
            retry,
            if one.remaining.is_some() { wait(one.reset_after_ms) } else { "-".into() },
        ]
    });
    let head = ["rule", "limit", "answer", "left", "retry in", "full in"];
    human_output::table(head, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_what_is_missing() {
        let hint =
            |missing: &str| missing_flags(&format!(r#"{{"message":"m","missing":{missing}}}"#));
        assert_eq!(hint(r#"[["user","ip"]]"#).as_deref(), Some("add --user VALUE or --ip ADDR"));
        let two = hint(r#"[["user"],["header.x-a"]]"#);
        assert_eq!(two.as_deref(), Some("add --user VALUE, and --header x-a=VALUE"));
        let key = hint(r#"[["api_key","host"]]"#);
        assert_eq!(key.as_deref(), Some("add --api-key-file FILE or --host VALUE"));
        assert_eq!(hint(r#"[["entry.a"]]"#), None);
        assert_eq!(missing_flags(r#"{"message":"m"}"#), None);
    }

    #[test]
    fn people_get_a_sentence_and_a_table() {
        let rows = [
            (
                r#"{"allowed":true,"rule":null,"limit":null,"remaining":null,"max":null,
                    "retry_after_ms":0,"delay_ms":0,"limits":[]}"#,
                "Allowed: no rule applies.\n",
            ),
            (
                r#"{"allowed":false,"rule":"api","limit":"10/second","remaining":0,"max":10,
                    "retry_after_ms":100,"delay_ms":0,"limits":[
                    {"rule":"api","limit":"10/second","allowed":false,"remaining":0,
                     "retry_after_ms":100,"reset_after_ms":1900},
                    {"rule":"all","limit":"9/minute","allowed":false,"remaining":0,"shadow":true,
                     "retry_after_ms":null,"reset_after_ms":60000}]}"#,
                "Refused by api (10/second). Retry in 100 ms.\n\n\
                 \x20 rule  limit      answer            left  retry in  full in\n\
                 \x20 api   10/second  refused           0     100 ms    1.9 s\n\
                 \x20 all   9/minute   refused (shadow)  0     never     60 s\n",
            ),
        ];
        let unavailable = (
            r#"{"allowed":false,"rule":"login","limit":"5/minute","remaining":null,"max":5,
                "retry_after_ms":1000,"delay_ms":0,"reason":"store_unavailable","limits":[
                {"rule":"login","limit":"5/minute","allowed":false,"remaining":null,
                 "retry_after_ms":1000,"reset_after_ms":null}]}"#,
            "Refused: the store is unavailable, and login (5/minute) refuses then. Retry in 1 s.\n\n\
             \x20 rule   limit     answer   left  retry in  full in\n\
             \x20 login  5/minute  refused  -     1 s       -\n",
        );
        for (json, want) in rows.into_iter().chain([unavailable]) {
            let decision: CheckReply = serde_json::from_str(json).unwrap();
            assert_eq!(decision.human_text(), want);
        }
    }
}
