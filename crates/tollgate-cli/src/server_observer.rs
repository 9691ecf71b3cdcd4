//! `ServerObserver`: counts every decision on the thread that makes it, for metrics, the list of heavy
//! callers and the log.

use std::sync::Arc;

use tollgate::{KeyBuf, Micros, Refusal};
use tollgate_rules::stripes::StripedCounters;
use tollgate_rules::{
    BanNotice, DecidedRequest, Identify, MissingFacts, RuleSet, RulesObserver, Verdict,
};

use crate::key_names::KeyNames;
use crate::recent_refusals::RecentRefusals;
use crate::recording::TrafficRecorder;
use crate::refusal_log::{MissingFactsLog, RefusalLog};
use crate::telemetry::Logs;
use crate::top::{CountedRequest, TopCallers, TopEntry, TopOrder};

/// Reasons for refusals, in the order of the counters.
pub(crate) const REASONS: [Refusal; Refusal::ALL.len()] = Refusal::ALL;

/// Index of the counter of allowed requests.
const ALLOWED: usize = REASONS.len();

/// Observer of every decision.
pub(crate) struct ServerObserver {
    outcomes: StripedCounters<{ ALLOWED + 1 }>,
    top: TopCallers,
    /// `None` if traffic is not recorded.
    recorder: Option<Arc<TrafficRecorder>>,
    refusals: RecentRefusals,
    refusal_log: RefusalLog,
    missing_facts_log: MissingFactsLog,
}

/// Requests by outcome.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutcomeCounts {
    pub(crate) allowed: u64,
    /// Refused requests, in the order of [`REASONS`].
    pub(crate) refused: [u64; REASONS.len()],
}

impl ServerObserver {
    pub(crate) fn new(
        logs: &Logs,
        names: Arc<KeyNames>,
        started: Micros,
        recorder: Option<Arc<TrafficRecorder>>,
    ) -> ServerObserver {
        ServerObserver {
            outcomes: StripedCounters::default(),
            top: TopCallers::new(names.clone()),
            recorder,
            refusals: RecentRefusals::new(names.clone(), started.as_u64()),
            refusal_log: RefusalLog::new(logs, names),
            missing_facts_log: MissingFactsLog::new(logs),
        }
    }

    pub(crate) fn outcomes(&self) -> OutcomeCounts {
        let sums = self.outcomes.sums();
        let mut refused = [0; REASONS.len()];
        refused.copy_from_slice(&sums[..ALLOWED]);
        OutcomeCounts { allowed: sums[ALLOWED], refused }
    }

    /// The requests that were refused last.
    pub(crate) fn refusals(&self) -> &RecentRefusals {
        &self.refusals
    }

    /// The heaviest callers of the last minute or two, the heaviest first.
    pub(crate) fn hottest(
        &self,
        most: usize,
        by: TopOrder,
        identify: &Identify,
        now: Micros,
    ) -> Vec<TopEntry> {
        self.top.hottest(most, by, identify, now)
    }

    /// Returns true if this caller is among the heaviest of the last minute or two.
    pub(crate) fn has_recent(&self, rule_hash: u64, key: &KeyBuf, now: Micros) -> bool {
        self.top.has(rule_hash, key, now)
    }
}

/// Returns true if the log says so: the rule had no room.
fn is_logged(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::Allowed | Verdict::RefusedByOther)
}

impl RulesObserver for ServerObserver {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        let place = decided.refusal().map_or(ALLOWED, |refusal| {
            let place = REASONS.iter().position(|reason| *reason == refusal);
            place.expect("every refusal has its name")
        });
        self.outcomes.add(place, 1);
        let mut by_a_rule = false;
        let mut has_line = false;
        let each = decided.rule_verdicts().map(|one| {
            // An unavailable store is not the caller's fault.
            let refused = one.verdict == Verdict::Refused;
            by_a_rule |= refused || one.verdict == Verdict::Unavailable;
            has_line |= is_logged(one.verdict);
            CountedRequest { rule: &one.rule.name, rule_hash: one.rule_hash, key: one.key, refused }
        });
        self.top.count(decided.at(), &decided.rules().settings().identify, each);
        if let Some(recorder) = &self.recorder {
            recorder.record(decided);
        }
        let reason = decided.refusal().map(Refusal::name);
        if has_line {
            for one in decided.rule_verdicts().filter(|one| is_logged(one.verdict)) {
                self.refusal_log.log_refusal(decided, one, reason.unwrap_or_default());
            }
        }
        if let Some(reason) = reason {
            self.refusals.record(decided);
            if !by_a_rule {
                self.refusal_log.log_without_rule(decided, reason);
            }
        }
    }

    fn banned(&self, rules: &RuleSet, ban: &BanNotice<'_>) {
        self.refusal_log.log_ban(rules, ban);
    }

    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        self.missing_facts_log.log_missing_facts(missing, now);
    }
}
