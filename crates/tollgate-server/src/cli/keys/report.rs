//! What the server says about a caller, in sentences and a table.

use serde::Deserialize;

use crate::cli::for_people::{printable, table, wait};

/// What was asked for, if the server has agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Looked,
    Reset,
    Blocked,
    Unblocked,
    Granted(u64),
    OverrideSet,
    OverrideRemoved,
}

/// What `/api/keys` answers, as far as people are told.
#[derive(Deserialize)]
pub(super) struct KeyReport {
    rule: String,
    key: String,
    /// The key as log lines have it.
    hash: Option<String>,
    mode: String,
    blocked_for_ms: Option<u64>,
    #[serde(rename = "override")]
    replaced_by: Option<Override>,
    limits: Vec<KeyLimit>,
    /// After a reset: whether there was anything to forget.
    reset: Option<bool>,
}

#[derive(Deserialize)]
struct Override {
    until: Option<String>,
    run_time: bool,
}

#[derive(Deserialize)]
struct KeyLimit {
    tier: Option<String>,
    limit: String,
    max: u64,
    remaining: u64,
    balance: i64,
    allowed: bool,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    decided_by: String,
}

impl KeyReport {
    pub(super) fn for_people(&self, done: &Done) -> String {
        let sentences = [
            self.what_was_done(done),
            Some(self.standing()),
            self.strictness(),
            self.limits_of_its_own(done),
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

    fn what_was_done(&self, done: &Done) -> Option<String> {
        let (rule, key) = (printable(&self.rule), printable(&self.key));
        match (done, self.reset) {
            (Done::Reset, Some(false)) => Some(format!("{rule} remembered nothing of {key}.")),
            (Done::Reset, _) => Some(format!("{rule} has forgotten what {key} did.")),
            (Done::Granted(units), _) => Some(format!(
                "{key} got {units} {} back under {rule}, as far as they were used.",
                if *units == 1 { "unit" } else { "units" }
            )),
            (Done::Unblocked, _) => Some(format!("{key} is not blocked under {rule}.")),
            (Done::OverrideRemoved, _) => {
                Some(format!("{key} has no limits of its own under {rule} that were set here."))
            }
            (Done::Looked | Done::Blocked | Done::OverrideSet, _) => None,
        }
    }

    /// What the caller's next request meets.
    fn standing(&self) -> String {
        let (rule, key) = (printable(&self.rule), printable(&self.key));
        if self.blocked_for_ms.is_some() {
            let left = wait(self.blocked_for_ms);
            return format!("{key} is blocked under {rule} for another {left}.");
        }
        if self.has_tiers() {
            return format!("{rule} depends on the tier of {key}: these are the limits of each.");
        }
        // Who waits longest decides; `None` is for ever.
        let wait_of = |one: &&KeyLimit| one.retry_after_ms.unwrap_or(u64::MAX);
        let refusing = self.limits.iter().filter(|one| !one.allowed).max_by_key(wait_of);
        if let Some(one) = refusing {
            let limit = printable(&one.limit);
            return match one.retry_after_ms {
                Some(_) => {
                    let retry = wait(one.retry_after_ms);
                    format!("{key} is refused by {rule} ({limit}). Retry in {retry}.")
                }
                None => format!("{key} is refused by {rule} ({limit}). Waiting does not help."),
            };
        }
        match self.limits.iter().min_by_key(|one| one.remaining) {
            Some(KeyLimit { limit, max, remaining, .. }) => {
                let limit = printable(limit);
                format!("{key} is allowed: {remaining} of {max} left under {rule} ({limit}).")
            }
            None => format!("{key} is allowed: {rule} has no limits for it."),
        }
    }

    /// What is said above holds for a rule that is enforced.
    fn strictness(&self) -> Option<String> {
        let rule = printable(&self.rule);
        match &*self.mode {
            "enforce" => None,
            "off" => Some(format!("{rule} is off: it refuses nobody.")),
            "shadow" => Some(format!("{rule} is in shadow mode: it counts and refuses nobody.")),
            mode => Some(format!("{rule} is enforced for {} of callers.", printable(mode))),
        }
    }

    fn limits_of_its_own(&self, done: &Done) -> Option<String> {
        let key = printable(&self.key);
        let Override { until, run_time } = self.replaced_by.as_ref()?;
        let until = match until {
            Some(until) => format!("until {}", printable(until)),
            None => "with no end".into(),
        };
        let origin = match run_time {
            true => "set while the server runs",
            false => "from the rules file",
        };
        let still = if *done == Done::OverrideRemoved { "still " } else { "" };
        Some(format!("{key} {still}has limits of its own, {origin}, {until}."))
    }

    fn crowded(&self) -> Option<String> {
        let shared = self.limits.iter().any(|one| one.decided_by == "overflow");
        shared.then(|| {
            "The table is full: what is left is counted for several callers together. Raise \
             --max-keys of the server."
                .into()
        })
    }

    fn has_tiers(&self) -> bool {
        self.limits.iter().any(|one| one.tier != self.limits[0].tier)
    }

    fn table(&self) -> String {
        let tiers = self.limits.iter().any(|one| one.tier.is_some());
        let row = |one: &KeyLimit| {
            let tier = one.tier.as_deref().unwrap_or(if tiers { "-" } else { "" });
            let left = match one.balance {
                // In debt: how far.
                ..0 => one.balance.to_string(),
                _ => one.remaining.to_string(),
            };
            [
                printable(tier),
                printable(&one.limit),
                match (self.blocked_for_ms, one.allowed) {
                    (Some(_), _) => "blocked",
                    (None, true) => "allowed",
                    (None, false) => "refused",
                }
                .into(),
                left,
                one.max.to_string(),
                if one.allowed { "-".into() } else { wait(one.retry_after_ms) },
                wait(one.reset_after_ms),
            ]
        };
        let rows: Vec<_> = self.limits.iter().map(row).collect();
        table(["tier", "limit", "answer", "left", "of", "retry in", "full in"], &rows)
    }
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

    fn report(mode: &str, blocked: &str, replaced_by: &str, limits: &[&str]) -> KeyReport {
        let limits = limits.join(",");
        let text = format!(
            r#"{{"rule":"api","key":"user=42","hash":"1f2e3d4c5b6a7988","mode":"{mode}",
                "blocked_for_ms":{blocked},"override":{replaced_by},"limits":[{limits}]}}"#
        );
        serde_json::from_str(&text).expect(&text)
    }

    #[test]
    fn people_get_sentences_and_a_table() {
        let found = report("enforce", "null", "null", &[USED, FREE]).for_people(&Done::Looked);
        let want = "\
user=42 is refused by api (10/second). Retry in 600 ms.

  limit      answer   left  of  retry in  full in
  10/second  refused  -5    10  600 ms    1.5 s
  99/hour    allowed  98    99  -         36.364 s

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(found, want);
        let found = report("25%", "null", "null", &[FREE, PRO]).for_people(&Done::Looked);
        let want = "\
api depends on the tier of user=42: these are the limits of each.
api is enforced for 25% of callers.
The table is full: what is left is counted for several callers together. Raise --max-keys of the server.

  tier  limit       answer   left  of   retry in  full in
  -     99/hour     allowed  98    99   -         36.364 s
  pro   100/second  allowed  7     100  -         930 ms

In log lines the key is 1f2e3d4c5b6a7988.
";
        assert_eq!(found, want);
    }

    #[test]
    fn nothing_is_allowed_to_a_blocked_caller() {
        let text = report("enforce", "900000", "null", &[USED, FREE]).for_people(&Done::Looked);
        let answers: Vec<_> = text.lines().filter(|line| line.contains(" blocked ")).collect();
        assert_eq!(answers.len(), 3, "a sentence and two limits: {text}");
        assert!(!text.contains("allowed") && !text.contains("refused"), "{text}");
    }

    #[test]
    fn the_first_lines_say_what_matters() {
        const RUN_TIME: &str =
            r#"{"limits":["99/hour"],"until":"2026-12-01T00:00:00Z","run_time":true}"#;
        const OF_FILE: &str = r#"{"limits":["99/hour"],"until":null,"run_time":false}"#;
        let never = USED.replace("600", "null");
        let plain = "user=42 is allowed: 98 of 99 left under api (99/hour).";
        // mode, blocked for, override, limit, what was done, the lines
        type Row<'a> = (&'a str, &'a str, &'a str, &'a str, Done, &'a [&'a str]);
        let rows: [Row<'_>; 9] = [
            (
                "enforce",
                "900000",
                "null",
                FREE,
                Done::Blocked,
                &["user=42 is blocked under api for another 900 s."],
            ),
            (
                "enforce",
                "null",
                "null",
                FREE,
                Done::Unblocked,
                &["user=42 is not blocked under api.", plain],
            ),
            (
                "enforce",
                "null",
                "null",
                &never,
                Done::Looked,
                &["user=42 is refused by api (10/second). Waiting does not help."],
            ),
            (
                "shadow",
                "null",
                "null",
                FREE,
                Done::Reset,
                &[
                    "api has forgotten what user=42 did.",
                    plain,
                    "api is in shadow mode: it counts and refuses nobody.",
                ],
            ),
            ("off", "null", "null", FREE, Done::Looked, &[plain, "api is off: it refuses nobody."]),
            (
                "enforce",
                "null",
                "null",
                FREE,
                Done::Granted(1),
                &["user=42 got 1 unit back under api, as far as they were used.", plain],
            ),
            (
                "enforce",
                "null",
                RUN_TIME,
                FREE,
                Done::OverrideSet,
                &[
                    plain,
                    "user=42 has limits of its own, set while the server runs, until \
                     2026-12-01T00:00:00Z.",
                ],
            ),
            (
                "enforce",
                "null",
                OF_FILE,
                FREE,
                Done::OverrideRemoved,
                &[
                    "user=42 has no limits of its own under api that were set here.",
                    plain,
                    "user=42 still has limits of its own, from the rules file, with no end.",
                ],
            ),
            // One tier alone is the caller's.
            (
                "enforce",
                "null",
                "null",
                &PRO.replace("overflow", "memory"),
                Done::Looked,
                &["user=42 is allowed: 7 of 100 left under api (100/second)."],
            ),
        ];
        for (mode, blocked, replaced_by, limit, done, want) in rows {
            let text = report(mode, blocked, replaced_by, &[limit]).for_people(&done);
            let found: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            assert_eq!(found, want);
        }
        let mut nothing = report("enforce", "null", "null", &[]);
        nothing.reset = Some(false);
        let text = nothing.for_people(&Done::Reset);
        assert!(text.starts_with("api remembered nothing of user=42.\nuser=42 is allowed: api"));
    }
}
