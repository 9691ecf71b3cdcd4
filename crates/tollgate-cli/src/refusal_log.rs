//! Refusals in the log: at most one line a second for each rule and [`LINES_MAX`] for all rules together,
//! because callers can cause them. A line says how many refusals there were since the last one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Micros, Wait};
use tollgate_rules::stripes::Stripes;
use tollgate_rules::{
    BanNotice, BanOutcome, DecidedRequest, MissingFacts, RuleSet, RuleVerdict, Verdict,
};

use crate::key_names::KeyNames;
use crate::telemetry::{LogField, Logs, timestamp};

/// Shortest time between two lines of one rule and verdict.
const SILENCE_US: u64 = 1_000_000;

/// Shortest time between two lines about missing facts of one rule.
const MISSING_SILENCE_US: u64 = 60_000_000;

const SECOND_US: u64 = 1_000_000;

/// Most lines of all rules together in a second.
const LINES_MAX: u32 = 50;

/// Most rules with a pause in one stripe.
const PAUSES_MAX: usize = 1_024;

/// Writes refusals into the log.
pub(crate) struct RefusalLog {
    logs: Logs,
    names: Arc<KeyNames>,
    sampling: LineSampling,
    /// Bans have a line each, as long as there are few.
    bans: LineSampling,
}

impl RefusalLog {
    pub(crate) fn new(logs: &Logs, names: Arc<KeyNames>) -> RefusalLog {
        let [sampling, bans] = [SILENCE_US, 0].map(LineSampling::new);
        RefusalLog { logs: logs.clone(), names, sampling, bans }
    }

    /// Logs a rule that did not allow a request, if a line is due. `reason` is the reason for refusing the
    /// whole request, or empty.
    pub(crate) fn log_refusal(
        &self,
        decided: &DecidedRequest<'_>,
        one: &RuleVerdict<'_>,
        reason: &str,
    ) {
        if let Some(since) = self.sampling.due(&one.rule.name, one.verdict, decided.at()) {
            self.write(decided, one, reason, since);
        }
    }

    /// Logs a request that was refused by no rule, such as one to which too many limits apply.
    pub(crate) fn log_without_rule(&self, decided: &DecidedRequest<'_>, reason: &str) {
        let rule = format!("({reason})");
        if let Some(since) = self.sampling.due(&rule, Verdict::Refused, decided.at()) {
            let fields: [LogField<'_>; 2] = [("reason", &reason), ("refused_since", &since)];
            self.logs.warn("a request was refused", &fields);
        }
    }

    /// Logs a ban, if a line is due.
    #[cold]
    pub(crate) fn log_ban(&self, rules: &RuleSet, ban: &BanNotice<'_>) {
        let (kind, event) = match ban.outcome {
            BanOutcome::Blocked => (Verdict::Refused, "a caller was banned"),
            BanOutcome::Shadow => (Verdict::Shadow, "a shadow rule would have banned a caller"),
            BanOutcome::NoRoom => (
                Verdict::Unavailable,
                "a caller was not banned, because the table of blocks is full",
            ),
        };
        let Some(since) = self.bans.due(&ban.rule.name, kind, ban.at) else { return };
        let key = self.names.log_name(rules, ban.key);
        let length = Wait::from_micros(ban.until.as_u64().saturating_sub(ban.at.as_u64()));
        let length_ms = length.millis().unwrap_or(u64::MAX);
        let until = timestamp(ban.until).to_string();
        let fields: [LogField<'_>; 6] = [
            ("rule", &ban.rule.name),
            ("key", &key),
            ("for", &length),
            ("for_ms", &length_ms),
            ("until", &until),
            ("bans_since", &since),
        ];
        match ban.outcome {
            BanOutcome::Shadow => self.logs.info(event, &fields),
            BanOutcome::Blocked | BanOutcome::NoRoom => self.logs.warn(event, &fields),
        }
    }

    #[cold]
    fn write(&self, decided: &DecidedRequest<'_>, one: &RuleVerdict<'_>, reason: &str, since: u64) {
        let key = self.names.log_name(decided.rules(), one.key);
        let wait = wait_text(one.retry_after);
        let (rule, verdict) = (&*one.rule.name, one.verdict.name());
        let wait_ms = one.retry_after.millis();
        let mut fields: Vec<LogField<'_>> = vec![
            ("rule", &rule),
            ("limit", &one.limit),
            ("verdict", &verdict),
            ("retry_after", &wait),
        ];
        fields.extend(wait_ms.as_ref().map(|millis| ("retry_after_ms", millis as _)));
        fields.extend([("key", &key as _), ("refused_since", &since as _)]);
        let with_reason = [&fields[..], &[("reason", &reason as _)]].concat();
        match one.verdict {
            Verdict::Refused => self.logs.warn("a request was refused", &with_reason),
            // Without the reason: another rule refused the request.
            Verdict::Shadow => self.logs.info("a shadow rule would have refused", &fields),
            Verdict::Soft => self.logs.info("a soft limit is exceeded", &fields),
            Verdict::Unavailable if decided.refusal().is_some() => {
                self.logs.warn("a request was refused", &with_reason);
            }
            // A shadow rule whose store is unavailable: its verdict is unknown.
            Verdict::Unavailable | Verdict::Allowed | Verdict::RefusedByOther => {}
        }
    }
}

/// Logs rules that do not apply because requests lack facts.
pub(crate) struct MissingFactsLog {
    logs: Logs,
    sampling: LineSampling,
}

impl MissingFactsLog {
    pub(crate) fn new(logs: &Logs) -> MissingFactsLog {
        MissingFactsLog { logs: logs.clone(), sampling: LineSampling::new(MISSING_SILENCE_US) }
    }

    /// Logs a rule that was skipped, if a line is due.
    #[cold]
    pub(crate) fn log_missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        let rule = &*missing.rule().name;
        if let Some(since) = self.sampling.due(rule, Verdict::Allowed, now) {
            let needs = missing.facts().map(|facts| facts.join("|")).collect::<Vec<_>>().join(",");
            let fields: [LogField<'_>; 3] =
                [("rule", &rule), ("missing", &needs), ("questions_since", &since)];
            self.logs.warn(
                "no rule applies to a request, because it lacks facts that the keys of the rules need",
                &fields,
            );
        }
    }
}

fn wait_text(wait: Wait) -> String {
    wait.millis().map_or_else(|| "never".into(), |millis| format!("{millis}ms"))
}

/// Decides when a line is due.
struct LineSampling {
    /// Shortest time between two lines of one rule and verdict.
    silence_us: u64,
    /// Pauses by thread and rule. Bound: [`PAUSES_MAX`] rules for each stripe; when it is full, all are
    /// dropped.
    pauses: Stripes<Mutex<HashMap<Box<str>, PerVerdict<LinePause>>>>,
    written: Mutex<WrittenLines>,
}

/// One for each verdict.
type PerVerdict<T> = [T; Verdict::ALL.len()];

/// Time without lines, between two instants: until it ends a thread need not look at the shared state. It
/// has a start because the clock can be set back.
#[derive(Clone, Copy, Debug, Default)]
struct LinePause {
    from_us: u64,
    until_us: u64,
    /// Number of events since the last line.
    hidden: u64,
}

/// Lines written by all threads.
#[derive(Default)]
struct WrittenLines {
    /// Time of each rule's last line. Bound: [`RuleSet::RULES_MAX`]; when it is full, all are dropped.
    lines_us: HashMap<Box<str>, PerVerdict<Option<u64>>>,
    /// The current second, and the number of lines in it.
    second: u64,
    lines_in_second: u32,
}

impl LineSampling {
    fn new(silence_us: u64) -> LineSampling {
        LineSampling { silence_us, pauses: Stripes::default(), written: Mutex::default() }
    }

    /// Counts an event. Returns the number of events since the last line if a line may be written now.
    fn due(&self, rule: &str, verdict: Verdict, now: Micros) -> Option<u64> {
        let now_us = now.as_u64();
        let is_due = self.with_pause(rule, verdict, |pause| {
            pause.hidden += 1;
            !(pause.from_us..pause.until_us).contains(&now_us)
        });
        if !is_due {
            return None;
        }
        let (is_due, until_us) = lock(&self.written).due(rule, verdict, now_us, self.silence_us);
        self.with_pause(rule, verdict, |pause| {
            (pause.from_us, pause.until_us) = (now_us, until_us)
        });
        is_due.then(|| self.take_hidden(rule, verdict).max(1))
    }

    fn with_pause<T>(
        &self,
        rule: &str,
        verdict: Verdict,
        act: impl FnOnce(&mut LinePause) -> T,
    ) -> T {
        let mut pauses = lock(self.pauses.mine());
        if let Some(of_rule) = pauses.get_mut(rule) {
            return act(&mut of_rule[verdict as usize]);
        }
        if pauses.len() >= PAUSES_MAX {
            pauses.clear();
        }
        act(&mut pauses.entry(rule.into()).or_default()[verdict as usize])
    }

    /// Takes the number of events without a line from all threads.
    fn take_hidden(&self, rule: &str, verdict: Verdict) -> u64 {
        let take = |stripe| {
            let mut pauses = lock::<HashMap<_, PerVerdict<LinePause>>>(stripe);
            let of_rule = pauses.get_mut(rule);
            of_rule.map_or(0, |of_rule| std::mem::take(&mut of_rule[verdict as usize].hidden))
        };
        self.pauses.all().map(take).sum()
    }
}

impl WrittenLines {
    /// Returns true if a line may be written, and the end of the pause.
    fn due(&mut self, rule: &str, verdict: Verdict, now_us: u64, silence_us: u64) -> (bool, u64) {
        let last_us = self.lines_us.get(rule).and_then(|lines| lines[verdict as usize]);
        if let Some(last_us) = last_us
            && last_us.abs_diff(now_us) < silence_us
        {
            return (false, last_us + silence_us);
        }
        let second = now_us / SECOND_US;
        if self.second != second {
            (self.second, self.lines_in_second) = (second, 0);
        }
        if self.lines_in_second >= LINES_MAX {
            return (false, (second + 1) * SECOND_US);
        }
        self.lines_in_second += 1;
        if self.lines_us.len() >= RuleSet::RULES_MAX && !self.lines_us.contains_key(rule) {
            self.lines_us.clear();
        }
        self.lines_us.entry(rule.into()).or_default()[verdict as usize] = Some(now_us);
        (true, now_us + silence_us)
    }
}

/// Locks a mutex. A poisoned lock is no problem: the data is valid after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_a_line_a_second_and_says_how_many_there_were() {
        let sampling = LineSampling::new(SILENCE_US);
        // at_us, verdict, how many come | since the last line, if the last one is due
        let rows = [
            (0, Verdict::Refused, 1, Some(1)),
            (1, Verdict::Refused, 2, None),
            (1, Verdict::Shadow, 1, Some(1)),
            (999_999, Verdict::Refused, 37, None),
            (1_000_000, Verdict::Refused, 1, Some(40)),
            (1_500_000, Verdict::Shadow, 1, Some(1)),
            (9_000_000, Verdict::Refused, 1, Some(1)),
            // The clock was set back.
            (8_500_000, Verdict::Refused, 1, None),
            (2_000_000, Verdict::Refused, 1, Some(2)),
        ];
        for (at_us, verdict, count, due) in rows {
            let due_now = || sampling.due("api", verdict, Micros::new(at_us));
            let told = (0..count).fold(None, |_, _| due_now());
            assert_eq!(told, due, "{at_us} {verdict:?}");
        }
    }

    #[test]
    fn all_rules_together_have_fifty_lines_a_second() {
        let sampling = LineSampling::new(SILENCE_US);
        for second in 0..3 {
            let mut lines = 0;
            for turn in 0..6_000 {
                let now = Micros::new(second * 1_000_000 + turn * 100);
                let rule = format!("r{}", turn % 3_000);
                lines += u32::from(sampling.due(&rule, Verdict::Refused, now).is_some());
            }
            assert_eq!(lines, LINES_MAX, "{second}");
            assert!(lock(sampling.pauses.mine()).len() <= PAUSES_MAX);
        }
    }

    #[test]
    fn rules_that_come_and_go_leave_nothing_behind() {
        let sampling = LineSampling::new(SILENCE_US);
        for turn in 0..RuleSet::RULES_MAX as u64 + 10 {
            let now = Micros::new(turn * 100_000);
            assert!(sampling.due(&format!("r{turn}"), Verdict::Soft, now).is_some());
        }
        assert_eq!(lock(&sampling.written).lines_us.len(), 10);
    }

    #[test]
    fn threads_share_the_silence_and_the_count() {
        let sampling = LineSampling::new(SILENCE_US);
        let due = |at_us| sampling.due("api", Verdict::Refused, Micros::new(at_us));
        let lines = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| due(5))).collect();
            let due = threads.into_iter().filter_map(|thread| thread.join().unwrap());
            due.collect::<Vec<_>>()
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(due(1_000_005), Some(8 - lines[0] + 1), "each is told of once");
    }
}
