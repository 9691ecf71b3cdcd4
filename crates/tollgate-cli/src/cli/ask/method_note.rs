//! The note of `tollgate ask` without a method: which rules apply only to requests with one.

use std::io::{self, Write as _};

use http::Method;
use serde::Deserialize;

use crate::cli::client::ClientRequest;
use crate::cli::client::listener::DataArgs;
use crate::cli::human_output::printable;

/// Most rules that are named.
const RULES_MAX: usize = 10;

/// The response of `/api/explain`, as far as it is needed here.
#[derive(Deserialize)]
struct MethodNoteReply {
    rules: Vec<MethodNoteRule>,
}

#[derive(Deserialize)]
struct MethodNoteRule {
    name: String,
    result: String,
    conditions: Vec<MethodNoteCondition>,
}

#[derive(Deserialize)]
struct MethodNoteCondition {
    text: String,
    holds: bool,
}

/// Prints a note to standard error if rules would apply to the same request with a method. Their names come from the
/// admin listener; where that does not answer, the note has none, and only stands if no rule applied at all.
pub(super) fn print(server: &DataArgs, question: String, no_rule_applied: bool) {
    let note = match rules_that_need_a_method(server, question) {
        Some(rules) if rules.is_empty() => return,
        Some(rules) => format!(
            "note: the question has no method, and these rules need one: {}\n\
             hint: add --method, such as --method POST",
            rules.join(", ")
        ),
        None if no_rule_applied => {
            "note: the question has no method, so rules that match a method did not apply\n\
             hint: add --method, such as --method POST"
                .into()
        }
        None => return,
    };
    // The answer is printed: a closed standard error is no reason to fail.
    let _ = writeln!(io::stderr(), "{note}");
}

/// The rules that lack nothing but a method, each with its condition. `None` if the admin listener does not say.
fn rules_that_need_a_method(server: &DataArgs, question: String) -> Option<Vec<String>> {
    // The admin listener of another server knows other rules.
    let listener = server.names_one_server().then(|| server.admin_listener().ok())??;
    let path = "/api/explain".into();
    let request = ClientRequest { method: Method::POST, path, body: Some(question) };
    let response = listener.ask(&request).ok().filter(|response| response.status == 200)?;
    let explained: MethodNoteReply = serde_json::from_str(&response.body).ok()?;
    Some(explained.needing_a_method())
}

impl MethodNoteReply {
    fn needing_a_method(&self) -> Vec<String> {
        let unmatched = self.rules.iter().filter(|rule| rule.result == "not_matched");
        let needing = unmatched.filter_map(|rule| {
            let mut failing = rule.conditions.iter().filter(|one| !one.holds);
            let only = failing.next().filter(|one| one.text.starts_with("method is "))?;
            let condition = printable(&only.text);
            failing.next().is_none().then(|| format!("{} ({condition})", printable(&rule.name)))
        });
        needing.take(RULES_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_lack_only_a_method_are_named() {
        let rule = |name: &str, result: &str, conditions: &[(&str, bool)]| MethodNoteRule {
            name: name.into(),
            result: result.into(),
            conditions: conditions
                .iter()
                .map(|(text, holds)| MethodNoteCondition { text: (*text).into(), holds: *holds })
                .collect(),
        };
        let rules = vec![
            rule(
                "login",
                "not_matched",
                &[("path matches /login", true), ("method is POST", false)],
            ),
            rule("other", "not_matched", &[("path matches /x", false), ("method is POST", false)]),
            rule("path", "not_matched", &[("path matches /x", false)]),
            rule("applies", "allowed", &[("method is not GET", true)]),
            rule("get", "not_matched", &[("method is GET or HEAD", false)]),
        ];
        let needing = MethodNoteReply { rules }.needing_a_method();
        assert_eq!(needing, ["login (method is POST)", "get (method is GET or HEAD)"]);
    }
}
