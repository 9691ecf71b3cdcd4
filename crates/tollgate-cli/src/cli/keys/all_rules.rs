//! The report about a block under all rules, for people.

use serde::Deserialize;

use super::report::never_seen;
use crate::cli::human_output::printable;

/// The response of `/api/keys/*`, as far as it is shown to people.
#[derive(Deserialize)]
pub(super) struct AllRulesReport {
    key: String,
    /// The rules under which the caller is blocked now.
    blocked: Option<Vec<String>>,
    /// The rules under which a block was removed.
    unblocked: Option<Vec<String>>,
    /// False if nothing was known of this caller before; older servers do not say so.
    seen: Option<bool>,
    skipped: Vec<SkippedRuleReport>,
    /// With a shared store: status of sharing the change with other instances.
    shared: Option<String>,
}

/// A rule that was left out.
#[derive(Deserialize)]
struct SkippedRuleReport {
    rule: String,
    reason: String,
}

impl AllRulesReport {
    pub(super) fn human_text(&self) -> String {
        let key = printable(&self.key);
        let list = |rules: &[String]| {
            rules.iter().map(|rule| printable(rule)).collect::<Vec<_>>().join(", ")
        };
        let mut text = match (&self.blocked, &self.unblocked) {
            (Some(rules), _) => format!("{key} is blocked under {}.\n", list(rules)),
            (None, Some(rules)) if !rules.is_empty() => {
                format!("{key} is no longer blocked under {}.\n", list(rules))
            }
            (None, _) => format!("{key} was not blocked under any rule.\n"),
        };
        if self.seen == Some(false) {
            text += &format!("{}\n", never_seen(&key));
        }
        for one in &self.skipped {
            let (rule, reason) = (printable(&one.rule), printable(&one.reason));
            text += &format!("Not under {rule}: {reason}.\n").replace("..\n", ".\n");
        }
        if self.shared.as_deref() == Some("no") {
            text += "The store did not answer, so this was done on this server only: repeat it when the \
                     store answers.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_where_the_caller_is_blocked_and_where_not() {
        let rows = [
            (
                r#"{"key":"user=42","blocked":["api","login"],"skipped":[{"rule":"daily","reason":"its key has other parts"}]}"#,
                "user=42 is blocked under api, login.\nNot under daily: its key has other parts.\n",
            ),
            (
                r#"{"key":"user=4","seen":false,"blocked":["api"],"skipped":[]}"#,
                "user=4 is blocked under api.\nuser=4 was never seen by this server, or so long ago that nothing is kept: is the key right?\n",
            ),
            (
                r#"{"key":"user=42","seen":true,"unblocked":["api"],"skipped":[]}"#,
                "user=42 is no longer blocked under api.\n",
            ),
            (
                r#"{"key":"user=42","unblocked":[],"skipped":[]}"#,
                "user=42 was not blocked under any rule.\n",
            ),
        ];
        for (json, want) in rows {
            let report: AllRulesReport = serde_json::from_str(json).unwrap();
            assert_eq!(report.human_text(), want);
        }
    }
}
