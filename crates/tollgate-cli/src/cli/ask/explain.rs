//! `tollgate ask --explain`: why a request is decided as it is, for people or programs. It asks the admin
//! listener, and charges nothing.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::cli::client::ClientRequest;
use crate::cli::client::listener::ListenerClient;
use crate::cli::human_output::{printable, printable_whole};
use crate::cli::{CommandFailure, Report};

/// Asks for an explanation and prints it: of the check with this body, or of a recorded refusal.
pub(super) fn run(
    listener: &ListenerClient<'_>,
    (check, refusal): (String, Option<&str>),
    json: bool,
) -> Result<(), CommandFailure> {
    let request = match refusal {
        Some(id) => {
            let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
            let path = format!("/api/explain?refusal={id}");
            ClientRequest { method: Method::GET, path, body: None }
        }
        None => {
            let path = "/api/explain".into();
            ClientRequest { method: Method::POST, path, body: Some(check) }
        }
    };
    let response = listener.ask(&request).map_err(CommandFailure::Input)?;
    if response.status != 200 {
        return Err(CommandFailure::Input(listener.refused(&response)));
    }
    let story = serde_json::from_str::<ExplanationReply>(&response.body);
    let story = story.map_err(|error| CommandFailure::Input(listener.not_tollgate(&error)))?;
    let text = if json { format!("{}\n", response.body) } else { story.human_text() };
    io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output)?;
    match (&story.decision.error, story.decision.allowed) {
        (_, true) => Ok(()),
        // The same as of a check: facts are missing, so there is no decision.
        (Some(_), false) if story.decision.reason.as_deref() == Some("missing_facts") => {
            let problem = "the server would not decide this request: it lacks facts";
            Err(CommandFailure::Input(Report::new(problem)))
        }
        _ => Err(CommandFailure::NegativeAnswer),
    }
}

/// The response of `/api/explain`, as far as it is shown to people.
#[derive(Deserialize)]
struct ExplanationReply {
    summary: String,
    facts: Vec<FactReply>,
    decision: DecisionReplyPart,
    rules: Vec<RuleReply>,
    rules_not_listed: Option<u64>,
    retry: Option<RetryReply>,
}

#[derive(Deserialize)]
struct DecisionReplyPart {
    allowed: bool,
    error: Option<String>,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct FactReply {
    name: String,
    value: String,
    note: Option<String>,
}

#[derive(Deserialize)]
struct RuleReply {
    name: String,
    result: String,
    why: String,
    conditions: Vec<ConditionReply>,
    key: Option<KeyReply>,
    tier: Option<TierReply>,
    #[serde(rename = "override")]
    own_limits: Option<OverrideReply>,
    cost: Option<CostReply>,
    limits: Vec<LimitReply>,
    /// `None` if the rule has none, or the server does not say so.
    #[serde(default)]
    ban: Option<String>,
}

#[derive(Deserialize)]
struct ConditionReply {
    text: String,
    holds: bool,
    found: Option<String>,
}

#[derive(Deserialize)]
struct KeyReply {
    template: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct TierReply {
    name: String,
    why: String,
}

#[derive(Deserialize)]
struct OverrideReply {
    limits: Vec<String>,
}

#[derive(Deserialize)]
struct CostReply {
    units: u64,
    why: String,
}

#[derive(Deserialize)]
struct LimitReply {
    limit: String,
    arithmetic: String,
}

#[derive(Deserialize)]
struct RetryReply {
    text: String,
}

/// Results of rules that have no part in a decision: these are listed in one line each.
const ASIDE: [&str; 3] = ["not_matched", "off", "not_needed"];

impl ExplanationReply {
    fn human_text(&self) -> String {
        let mut text = format!("{}\n", printable_whole(&self.summary));
        if let Some(retry) = &self.retry {
            let _ = writeln!(text, "{}", printable_whole(&retry.text));
        }
        if !self.facts.is_empty() {
            text.push_str("\nSeen as\n");
        }
        for fact in &self.facts {
            let note = fact.note.as_deref().map(|note| format!(" ({})", printable_whole(note)));
            let (name, value) = (printable(&fact.name), printable(&fact.value));
            let _ = writeln!(text, "  {name:<9} {value}{}", note.unwrap_or_default());
        }
        let is_aside = |rule: &&RuleReply| ASIDE.contains(&&*rule.result);
        self.rules.iter().filter(|rule| !is_aside(rule)).for_each(|rule| rule.write(&mut text));
        let aside: Vec<&RuleReply> = self.rules.iter().filter(is_aside).collect();
        if !aside.is_empty() {
            text.push_str("\nWithout a part in it\n");
        }
        for rule in aside {
            let why = printable_whole(&rule.why);
            let _ = writeln!(text, "  {}: {why}", printable(&rule.name));
        }
        if let Some(more @ 1..) = self.rules_not_listed {
            let _ = writeln!(text, "  … and {more} more that do not apply");
        }
        text
    }
}

impl RuleReply {
    fn write(&self, text: &mut String) {
        let result = printable(&self.result).replace('_', " ");
        let why = printable_whole(&self.why);
        let _ = writeln!(text, "\nRule {}: {result}. {why}", printable(&self.name));
        let mut line = |name: &str, what: String| {
            let _ = writeln!(text, "  {name:<9} {what}");
        };
        for one in &self.conditions {
            let found = one.found.as_deref().map(|found| format!(" (found {})", printable(found)));
            let name = if one.holds { "holds" } else { "fails" };
            line(name, format!("{}{}", printable_whole(&one.text), found.unwrap_or_default()));
        }
        if let Some(key) = &self.key {
            let counted = key.text.as_deref().map_or_else(|| "none".into(), printable);
            line("key", format!("{counted}, by {}", printable(&key.template)));
        }
        if let Some(tier) = &self.tier {
            line("tier", format!("{}: {}", printable(&tier.name), printable_whole(&tier.why)));
        }
        if let Some(own) = &self.own_limits {
            line("override", printable_whole(&own.limits.join(", ")));
        }
        if let Some(cost) = &self.cost {
            line("cost", format!("{}: {}", cost.units, printable_whole(&cost.why)));
        }
        for one in &self.limits {
            let (limit, sum) = (printable(&one.limit), printable_whole(&one.arithmetic));
            line("limit", format!("{limit}: {sum}"));
        }
        if let Some(ban) = &self.ban {
            line("ban", printable_whole(ban));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_a_story() {
        let text = r#"{"refusal":null,"at":"2026-12-01T12:00:01.250Z","summary":"Refused by api (20/s).",
            "facts":[{"name":"path","value":"/a","note":"sent as //a"},{"name":"user","value":"4\u001b2","note":null}],
            "decision":{"allowed":false,"reason":"over_limit"},
            "rules":[{"name":"api","result":"refused","why":"20/s has no room.",
                "conditions":[{"text":"method is GET","holds":true,"found":"GET"}],
                "key":{"template":"{user|ip}","text":"user=42","hash":"1f2e","parts":[]},
                "tier":{"name":"pro","why":"stated"},"override":{"limits":["5/s"],"until":null,"run_time":true},
                "blocked_for_ms":null,"cost":{"units":5,"why":"stated by the request"},
                "limits":[{"limit":"20/s","arithmetic":"bucket of 20, 3.4 tokens"}]},
              {"name":"idle","result":"off","why":"The rule is switched off.","conditions":[],"key":null,
                "tier":null,"override":null,"blocked_for_ms":null,"cost":null,"limits":[]}],
            "rules_not_listed":2,"retry":{"after_ms":960,"at":null,"allowed":true,"text":"In 960 ms."}}"#;
        let story: ExplanationReply = serde_json::from_str(text).unwrap();
        let want = "\
Refused by api (20/s).
In 960 ms.

Seen as
  path      /a (sent as //a)
  user      4\\u{1b}2

Rule api: refused. 20/s has no room.
  holds     method is GET (found GET)
  key       user=42, by {user|ip}
  tier      pro: stated
  override  5/s
  cost      5: stated by the request
  limit     20/s: bucket of 20, 3.4 tokens

Without a part in it
  idle: The rule is switched off.
  … and 2 more that do not apply
";
        assert_eq!(story.human_text(), want);
    }
}
