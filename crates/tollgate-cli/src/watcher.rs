//! `Watcher`: sees every decision, on the thread that makes it, and counts it: for metrics, for the
//! list of heavy callers and for the log.

use std::sync::Arc;

use tollgate::{Micros, Refusal};
use tollgate_rules::stripes::Counters;
use tollgate_rules::{Decided, MissingFacts, Observer, Verdict};

use crate::key_names::KeyNames;
use crate::refusal_log::{MissingLog, RefusalLog};
use crate::telemetry::Logs;
use crate::top::{By, Top, TopEntry};

/// Why requests are refused.
pub(crate) const REASONS: [Refusal; 7] = Refusal::ALL;

/// Where the allowed ones are counted.
const ALLOWED: usize = REASONS.len();

/// Sees every decision.
pub(crate) struct Watcher {
    outcomes: Counters<{ ALLOWED + 1 }>,
    top: Top,
    refusals: RefusalLog,
    missing: MissingLog,
}

/// Requests by what became of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) allowed: u64,
    /// In the order of [`REASONS`].
    pub(crate) refused: [u64; REASONS.len()],
}

impl Watcher {
    pub(crate) fn new(logs: &Logs, names: Arc<KeyNames>) -> Watcher {
        Watcher {
            outcomes: Counters::default(),
            top: Top::new(names.clone()),
            refusals: RefusalLog::new(logs, names),
            missing: MissingLog::new(logs),
        }
    }

    pub(crate) fn outcomes(&self) -> Outcomes {
        let sums = self.outcomes.sums();
        let mut refused = [0; REASONS.len()];
        refused.copy_from_slice(&sums[..ALLOWED]);
        Outcomes { allowed: sums[ALLOWED], refused }
    }

    /// The heaviest callers of the last minute or two, the heaviest first.
    pub(crate) fn hottest(&self, most: usize, by: By, now: Micros) -> Vec<TopEntry> {
        self.top.hottest(most, by, now)
    }
}

impl Observer for Watcher {
    fn decided(&self, decided: &Decided<'_>) {
        let place = decided.refusal().map_or(ALLOWED, |refusal| {
            let place = REASONS.iter().position(|reason| *reason == refusal);
            place.expect("every refusal has its name")
        });
        self.outcomes.add(place, 1);
        let mut by_a_rule = false;
        let mut all_allow = true;
        let each = decided.by_rule().map(|one| {
            // That the store does not answer is no caller's doing.
            let refused = one.verdict == Verdict::Refused;
            by_a_rule |= refused || one.verdict == Verdict::Unavailable;
            all_allow &= one.verdict == Verdict::Allowed;
            (&one.rule.name, one.key, refused)
        });
        self.top.count(decided.at(), each);
        let reason = decided.refusal().map(Refusal::name);
        if !all_allow {
            for one in decided.by_rule().filter(|one| one.verdict != Verdict::Allowed) {
                self.refusals.tell(decided, one, reason.unwrap_or_default());
            }
        }
        if let Some(reason) = reason
            && !by_a_rule
        {
            self.refusals.tell_of_none(decided, reason);
        }
    }

    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        self.missing.tell(missing, now);
    }
}
