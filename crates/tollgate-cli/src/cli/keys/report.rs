//! The report about a caller for people, in sentences and a table.

use serde::Deserialize;

use crate::cli::human_output::{printable, table, wait};
use tollgate::Refusal;

/// The action that the server has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletedAction {
    Shown,
    Reset,
    Blocked,
    Unblocked,
    Granted(u64),
    OverrideSet,
    OverrideRemoved,
}

/// The response of `/api/keys`, as far as it is shown to people.
#[derive(Deserialize)]
pub(super) struct KeyReportBody {
    rule: String,
    key: String,
    /// The hash of the key, as in log lines.
    hash: Option<String>,
    mode: String,
    /// True if the rule only warns.
    #[serde(default)]
    soft: bool,
    /// True if no rule applies to this caller.
    #[serde(default)]
    exempt: bool,
    /// True if the rule is enforced for this caller; a rule may be enforced for a share of callers.
    #[serde(default = "yes")]
    enforced: bool,
    /// True if the rule refuses every request.
    #[serde(default)]
    closed: bool,
    /// False if nothing is known of this caller.
    #[serde(default = "yes")]
    seen: bool,
    /// The tier that the caller counts under, if it is known.
    tier: Option<String>,
    blocked_for_ms: Option<u64>,
    #[serde(rename = "override")]
    replaced_by: Option<KeyReportOverride>,
    limits: Vec<KeyReportLimit>,
    /// After a reset: true if there was anything to forget.
    reset: Option<bool>,
    /// After a change, with a shared store: status of sharing it with other instances.
    shared: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct KeyReportOverride {
    until: Option<String>,
    run_time: bool,
}

#[derive(Deserialize)]
struct KeyReportLimit {
    tier: Option<String>,
    limit: String,
    max: u64,
    /// Remaining units; unknown while the store is unavailable.
    remaining: Option<u64>,
    balance: Option<i64>,
    allowed: bool,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    /// The reason for a refusal.
    reason: Option<String>,
    decided_by: String,
}

impl KeyReportLimit {
    fn is_unavailable(&self) -> bool {
        self.reason.as_deref() == Some(UNAVAILABLE)
    }
}

/// The reason of a limit whose store is unavailable.
const UNAVAILABLE: &str = Refusal::StoreUnavailable.name();

impl KeyReportBody {
    pub(super) fn human_text(&self, done: &CompletedAction) -> String {
        let sentences = [
            self.action_text(done),
            self.unseen_text(),
            Some(self.next_request_text()),
            self.strictness(),
            self.not_in_store(),
            self.override_text(done),
            self.crowded(),
        ];
        let mut text = sentences.into_iter().flatten().collect::<Vec<_>>().join("\n");
        text.push('\n');
        if !self.limits.is_empty() {
            text = format!("{text}\n{}", self.table());
        }
        if let Some(hash) = &self.hash {
            text = format!("{text}\nIn log lines the key is {}.\n", printable(hash));
        }
        text
    }

    fn action_text(&self, done: &CompletedAction) -> Option<String> {
        let (rule, key) = (printable(&self.rule), printable(&self.key));
        match (done, self.reset) {
            (CompletedAction::Reset, Some(false)) => {
                Some(format!("{rule} has nothing stored for {key}."))
            }
            (CompletedAction::Reset, _) => Some(format!("{rule} has forgotten what {key} did.")),
            (CompletedAction::Granted(units), _) => Some(format!(
                "{key} got {units} {} back under {rule}, at most as many as were used.",
                if *units == 1 { "unit" } else { "units" }
            )),
            (CompletedAction::Unblocked, _) => Some(format!("{key} is not blocked under {rule}.")),
            (CompletedAction::OverrideRemoved, _) => Some(format!(
                "{key} has no limits of its own under {rule} that were set at run time."
            )),
            (
                CompletedAction::Shown | CompletedAction::Blocked | CompletedAction::OverrideSet,
                _,
            ) => None,
        }
    }

    fn unseen_text(&self) -> Option<String> {
        (!self.seen).then(|| never_seen(&printable(&self.key)))
    }

    fn not_in_store(&self) -> Option<String> {
        (self.shared.as_deref() == Some("no")).then(|| {
            "The store did not answer, so this was done on this server only: repeat it when the store \
             answers."
                .into()
        })
    }

    /// The answer to the caller's next request, as a sentence.
    fn next_request_text(&self) -> String {
        let (rule, key) = (printable(&self.rule), printable(&self.key));
        if self.exempt {
            return format!("No rule applies to {key}: it is exempt.");
        }
        if self.blocked_for_ms.is_some() {
            let left = wait(self.blocked_for_ms);
            return format!("{key} is blocked under {rule} for another {left}.");
        }
        if self.has_tiers() {
            let tier = match &self.tier {
                Some(tier) => format!(", which is {}", printable(tier)),
                None => String::new(),
            };
            return format!(
                "{rule} depends on the tier of {key}{tier}: these are the limits of each."
            );
        }
        if let Some(one) = self.exceeded() {
            let limit = printable(&one.limit);
            if one.is_unavailable() {
                let refuses = match self.leniency() {
                    Some(leniency) => format!("which {leniency}"),
                    None => "which refuses then".into(),
                };
                return format!(
                    "It is unknown what {key} has left: the store of {rule} ({limit}), {refuses}, is \
                     unavailable."
                );
            }
            return match (self.leniency(), one.retry_after_ms) {
                (Some(leniency), _) => format!("{key} is over {rule} ({limit}), which {leniency}."),
                (None, Some(_)) => {
                    let retry = wait(one.retry_after_ms);
                    format!("{key} is refused by {rule} ({limit}). Retry in {retry}.")
                }
                (None, None) => {
                    format!("{key} is refused by {rule} ({limit}). Waiting does not help.")
                }
            };
        }
        match self.limits.iter().min_by_key(|one| one.remaining) {
            Some(KeyReportLimit { limit, max, remaining, .. }) => {
                let (limit, remaining) = (printable(limit), remaining.unwrap_or_default());
                format!("{key} is allowed: {remaining} of {max} left under {rule} ({limit}).")
            }
            None if self.closed && self.leniency().is_none() => {
                format!("{key} is refused: {rule} allows nothing. Waiting does not help.")
            }
            None => format!("{key} is allowed: {rule} has no limits for it."),
        }
    }

    /// The exceeded limit with the longest wait, where `None` means for ever. One that was decided comes
    /// before one whose store is unavailable.
    fn exceeded(&self) -> Option<&KeyReportLimit> {
        let wait_of =
            |one: &&KeyReportLimit| (!one.is_unavailable(), one.retry_after_ms.unwrap_or(u64::MAX));
        self.limits.iter().filter(|one| !one.allowed).max_by_key(wait_of)
    }

    /// The reason why the rule does not refuse this caller, if there is one.
    fn leniency(&self) -> Option<&'static str> {
        match &*self.mode {
            "off" => Some("is off: it refuses nothing"),
            "shadow" => Some("is in shadow mode: it counts but refuses nothing"),
            _ if self.soft => Some("only warns"),
            "enforce" => None,
            _ => (!self.enforced).then_some("is not enforced for this caller"),
        }
    }

    /// The mode of the rule as a sentence, unless another sentence says it.
    fn strictness(&self) -> Option<String> {
        let rule = printable(&self.rule);
        let is_said =
            self.blocked_for_ms.is_none() && !self.has_tiers() && self.exceeded().is_some();
        match (self.leniency(), &*self.mode) {
            _ if self.exempt => None,
            (Some(leniency), _) => (!is_said).then(|| format!("{rule} {leniency}.")),
            (None, "enforce") => None,
            (None, mode) => Some(format!("{rule} is enforced for {} of callers.", printable(mode))),
        }
    }

    /// The answer of a limit to a request of cost 1, and the wait.
    fn answer(&self, one: &KeyReportLimit) -> (&'static str, Option<u64>) {
        let lenient = self.leniency().is_some();
        match self.blocked_for_ms {
            _ if self.exempt => ("exempt", Some(0)),
            // Both the block and the limit have to pass.
            Some(block_ms) if !lenient => {
                ("blocked", one.retry_after_ms.map(|limit_ms| limit_ms.max(block_ms)))
            }
            _ if one.allowed => ("allowed", Some(0)),
            _ if one.is_unavailable() => (UNAVAILABLE, one.retry_after_ms),
            _ => (if lenient { "over" } else { "refused" }, one.retry_after_ms),
        }
    }

    fn override_text(&self, done: &CompletedAction) -> Option<String> {
        let key = printable(&self.key);
        let KeyReportOverride { until, run_time } = self.replaced_by.as_ref()?;
        let until = match until {
            Some(until) => format!("until {}", printable(until)),
            None => "without an end".into(),
        };
        let origin = match run_time {
            true => "set at run time",
            false => "from the rules file",
        };
        let still = if *done == CompletedAction::OverrideRemoved { "still " } else { "" };
        Some(format!("{key} {still}has limits of its own, {origin}, {until}."))
    }

    fn crowded(&self) -> Option<String> {
        let shared = self.limits.iter().any(|one| one.decided_by == "overflow");
        shared.then(|| {
            "The table is full: this caller is counted together with others. Raise --max-keys of the \
             server."
                .into()
        })
    }

    fn has_tiers(&self) -> bool {
        self.limits.iter().any(|one| one.tier != self.limits[0].tier)
    }

    fn table(&self) -> String {
        let tiers = self.limits.iter().any(|one| one.tier.is_some());
        let row = |one: &KeyReportLimit| {
            let tier = match &one.tier {
                Some(tier) if self.has_tiers() && one.tier == self.tier => {
                    format!("{} (current)", printable(tier))
                }
                Some(tier) => printable(tier),
                None => (if tiers { "-" } else { "" }).into(),
            };
            let left = match (one.balance, one.remaining) {
                // In debt: the negative balance.
                (Some(balance @ ..0), _) => balance.to_string(),
                (_, Some(remaining)) => remaining.to_string(),
                (_, None) => "-".into(),
            };
            let (answer, retry_ms) = self.answer(one);
            [
                tier,
                printable(&one.limit),
                answer.into(),
                left,
                one.max.to_string(),
                if retry_ms == Some(0) { "-".into() } else { wait(retry_ms) },
                if one.is_unavailable() { "-".into() } else { wait(one.reset_after_ms) },
            ]
        };
        let rows: Vec<_> = self.limits.iter().map(row).collect();
        table(["tier", "limit", "answer", "left", "of", "retry in", "full in"], &rows)
    }
}

/// The doubt about a caller that nothing is known of.
pub(super) fn never_seen(key: &str) -> String {
    format!(
        "{key} was never seen by this server, or so long ago that nothing is kept: is the key right?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: &str = r#"{"tier":null,"limit":"10/second","max":10,"remaining":0,"balance":-5,
        "allowed":false,"retry_after_ms":600,"reset_after_ms":1500,"decided_by":"memory"}"#;
    const FREE: &str = r#"{"tier":null,"limit":"99/hour","max":99,"remaining":98,"balance":98,
        "allowed":true,"retry_after_ms":0,"reset_after_ms":36364,"decided_by":"memory"}"#;
    const PRO: &str = r#"{"tier":"pro","limit":"100/second","max":100,"remaining":7,"balance":7,
        "allowed":true,"retry_after_ms":0,"reset_after_ms":930,"decided_by":"overflow"}"#;

    fn report(mode: &str, blocked: &str, replaced_by: &str, limits: &[&str]) -> KeyReportBody {
        let limits = limits.join(",");
        let text = format!(
            r#"{{"rule":"api","key":"user=42","hash":"1f2e3d4c5b6a7988","mode":"{mode}",
                "blocked_for_ms":{blocked},"override":{replaced_by},"limits":[{limits}]}}"#
        );
        serde_json::from_str(&text).expect(&text)
    }

    #[test]
    fn people_get_sentences_and_a_table() {
        let found =
            report("enforce", "null", "null", &[USED, FREE]).human_text(&CompletedAction::Shown);
        let want = "\
user=42 is refused by api (10/second). Retry in 600 ms.

  limit      answer   left  of  retry in  full in
  10/second  refused  -5    10  600 ms    1.5 s
  99/hour    allowed  98    99  -         36.364 s

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(found, want);
        let found = report("25%", "null", "null", &[FREE, PRO]).human_text(&CompletedAction::Shown);
        let want = "\
api depends on the tier of user=42: these are the limits of each.
api is enforced for 25% of callers.
The table is full: this caller is counted together with others. Raise --max-keys of the server.

  tier  limit       answer   left  of   retry in  full in
  -     99/hour     allowed  98    99   -         36.364 s
  pro   100/second  allowed  7     100  -         930 ms

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(found, want);
    }

    #[test]
    fn a_store_that_does_not_answer_is_said_to_be_the_reason() {
        let unknown = r#"{"tier":null,"limit":"5/minute","max":5,"remaining":null,"balance":null,
            "allowed":false,"retry_after_ms":1000,"reset_after_ms":null,
            "reason":"store_unavailable","decided_by":"closed"}"#;
        let text =
            report("enforce", "null", "null", &[unknown]).human_text(&CompletedAction::Shown);
        let want = "\
It is unknown what user=42 has left: the store of api (5/minute), which refuses then, is unavailable.

  limit     answer             left  of  retry in  full in
  5/minute  store_unavailable  -     5   1 s       -

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(text, want);
    }

    #[test]
    fn nothing_is_allowed_to_a_blocked_caller() {
        let never = USED.replace("600", "null");
        // The longer of two waits is the one that helps.
        let limits = [USED, FREE, &USED.replace("600", "900001"), &never];
        let text = report("enforce", "900000", "null", &limits).human_text(&CompletedAction::Shown);
        let want = "\
user=42 is blocked under api for another 900 s.

  limit      answer   left  of  retry in   full in
  10/second  blocked  -5    10  900 s      1.5 s
  99/hour    blocked  98    99  900 s      36.364 s
  10/second  blocked  -5    10  900.001 s  1.5 s
  10/second  blocked  -5    10  never      1.5 s

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(text, want);
    }

    #[test]
    fn a_rule_that_refuses_nobody_is_not_said_to_refuse() {
        const OVER: &str = "user=42 is over api (10/second), which ";
        // mode, soft, exempt, blocked for, limits; first lines, answers of the table
        type Row<'a> = (&'a str, bool, bool, &'a str, &'a [&'a str], String, &'a [&'a str]);
        let rows: [Row<'_>; 8] = [
            (
                "enforce",
                true,
                false,
                "null",
                &[USED, FREE],
                format!("{OVER}only warns."),
                &["over", "allowed"],
            ),
            (
                "enforce",
                true,
                false,
                "null",
                &[FREE],
                "user=42 is allowed: 98 of 99 left under api (99/hour).\napi only warns.".into(),
                &["allowed"],
            ),
            (
                "shadow",
                true,
                false,
                "null",
                &[USED],
                format!("{OVER}is in shadow mode: it counts but refuses nothing."),
                &["over"],
            ),
            (
                "off",
                false,
                false,
                "null",
                &[USED],
                format!("{OVER}is off: it refuses nothing."),
                &["over"],
            ),
            // Blocked while the rule was strict.
            (
                "enforce",
                true,
                false,
                "900000",
                &[USED],
                "user=42 is blocked under api for another 900 s.\napi only warns.".into(),
                &["over"],
            ),
            (
                "enforce",
                true,
                false,
                "null",
                &[USED, PRO],
                "api depends on the tier of user=42: these are the limits of each.\n\
                 api only warns.\nThe table is full: this caller is counted together with others. \
                 Raise --max-keys of the server."
                    .into(),
                &["over", "allowed"],
            ),
            (
                "25%",
                false,
                false,
                "null",
                &[USED],
                "user=42 is refused by api (10/second). Retry in 600 ms.\n\
                 api is enforced for 25% of callers."
                    .into(),
                &["refused"],
            ),
            (
                "shadow",
                true,
                true,
                "900000",
                &[USED, FREE],
                "No rule applies to user=42: it is exempt.".into(),
                &["exempt", "exempt"],
            ),
        ];
        for (mode, soft, exempt, blocked, limits, lines, answers) in rows {
            let mut report = report(mode, blocked, "null", limits);
            (report.soft, report.exempt) = (soft, exempt);
            let text = report.human_text(&CompletedAction::Shown);
            let (found, table) = text.split_once("\n\n").expect(&text);
            assert_eq!(found, lines);
            let words = ["allowed", "refused", "over", "blocked", "exempt"];
            let found = table.split_whitespace().filter(|word| words.contains(word));
            assert_eq!(found.collect::<Vec<_>>(), answers, "{text}");
        }
    }

    #[test]
    fn the_first_lines_say_what_matters() {
        const RUN_TIME: &str =
            r#"{"limits":["99/hour"],"until":"2026-12-01T00:00:00Z","run_time":true}"#;
        const OF_FILE: &str = r#"{"limits":["99/hour"],"until":null,"run_time":false}"#;
        let never = USED.replace("600", "null");
        let plain = "user=42 is allowed: 98 of 99 left under api (99/hour).";
        // mode, blocked for, override, limit, what was done, the lines
        type Row<'a> = (&'a str, &'a str, &'a str, &'a str, CompletedAction, &'a [&'a str]);
        let rows: [Row<'_>; 9] = [
            (
                "enforce",
                "900000",
                "null",
                FREE,
                CompletedAction::Blocked,
                &["user=42 is blocked under api for another 900 s."],
            ),
            (
                "enforce",
                "null",
                "null",
                FREE,
                CompletedAction::Unblocked,
                &["user=42 is not blocked under api.", plain],
            ),
            (
                "enforce",
                "null",
                "null",
                &never,
                CompletedAction::Shown,
                &["user=42 is refused by api (10/second). Waiting does not help."],
            ),
            (
                "shadow",
                "null",
                "null",
                FREE,
                CompletedAction::Reset,
                &[
                    "api has forgotten what user=42 did.",
                    plain,
                    "api is in shadow mode: it counts but refuses nothing.",
                ],
            ),
            (
                "off",
                "null",
                "null",
                FREE,
                CompletedAction::Shown,
                &[plain, "api is off: it refuses nothing."],
            ),
            (
                "enforce",
                "null",
                "null",
                FREE,
                CompletedAction::Granted(1),
                &["user=42 got 1 unit back under api, at most as many as were used.", plain],
            ),
            (
                "enforce",
                "null",
                RUN_TIME,
                FREE,
                CompletedAction::OverrideSet,
                &[
                    plain,
                    "user=42 has limits of its own, set at run time, until \
                     2026-12-01T00:00:00Z.",
                ],
            ),
            (
                "enforce",
                "null",
                OF_FILE,
                FREE,
                CompletedAction::OverrideRemoved,
                &[
                    "user=42 has no limits of its own under api that were set at run time.",
                    plain,
                    "user=42 still has limits of its own, from the rules file, without an end.",
                ],
            ),
            // One tier alone is the caller's.
            (
                "enforce",
                "null",
                "null",
                &PRO.replace("overflow", "memory"),
                CompletedAction::Shown,
                &["user=42 is allowed: 7 of 100 left under api (100/second)."],
            ),
        ];
        for (mode, blocked, replaced_by, limit, done, want) in rows {
            let text = report(mode, blocked, replaced_by, &[limit]).human_text(&done);
            let found: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            assert_eq!(found, want);
        }
        let mut nothing = report("enforce", "null", "null", &[]);
        nothing.reset = Some(false);
        let text = nothing.human_text(&CompletedAction::Reset);
        assert!(text.starts_with("api has nothing stored for user=42.\nuser=42 is allowed: api"));
        nothing.shared = Some("no".into());
        let text = nothing.human_text(&CompletedAction::Reset);
        assert!(text.contains("\nThe store did not answer, so this was done on this server only"));
    }

    #[test]
    fn a_rule_that_allows_nothing_says_so() {
        let standing = |mode: &str, closed: bool| {
            let report = format!(
                r#"{{"rule":"r","key":"k=1","mode":"{mode}","closed":{closed},"limits":[]}}"#
            );
            serde_json::from_str::<KeyReportBody>(&report).unwrap().next_request_text()
        };
        let allowed = "k=1 is allowed: r has no limits for it.";
        let refused = "k=1 is refused: r allows nothing. Waiting does not help.";
        assert_eq!(standing("enforce", true), refused);
        assert_eq!(standing("enforce", false), allowed);
        assert_eq!(standing("shadow", true), allowed);
    }
}
