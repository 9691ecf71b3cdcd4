//! Replays recorded traffic through the rules in force and through a candidate.

use std::sync::Arc;

use tollgate::{Clock, ManualClock, MemoryStore, Micros, SystemClock};
use tollgate_rules::{Ask, Gatekeeper, RuleSet, RulesObserver};

use super::missing_facts::MissingFactsCount;
use super::warnings::{self, RecordingLimits};
use super::{ReplayComparison, ReplayedCaller, ReplayedRequest};
use crate::recording::{MissingRequests, RecordedRequest, RecordedTraffic};

/// Longest time that a replay may take.
const REPLAY_MAX_US: u64 = 10_000_000;

/// Requests between two looks at the clock.
const REQUESTS_PER_LOOK: usize = 256;

/// Fewest and most keys in the table of a replay, about 40 bytes each.
const KEYS_MIN: usize = 10_000;
const KEYS_MAX: usize = 1_000_000;

/// The outcome of a replay of recorded traffic.
pub(crate) struct RecordedReplay {
    pub(crate) comparison: ReplayComparison,
    pub(crate) requests: usize,
    /// The times of the first and the last request.
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    /// Reasons why the answers may differ from those that the server would give, as sentences.
    pub(crate) warnings: Vec<String>,
}

/// The reason why a replay has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayFailure {
    NothingRecorded,
    TookTooLong,
}

/// Replays what is recorded; `now` are the rules in force and `then` the candidate, each with counts of its own.
pub(crate) fn replay_recorded(
    recorded: &RecordedTraffic,
    missing: MissingRequests,
    [now, then]: [RuleSet; 2],
) -> Result<RecordedReplay, ReplayFailure> {
    let requests = recorded.requests();
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
        return Err(ReplayFailure::NothingRecorded);
    };
    let (from, to) = (first.at, last.at);
    let limits = RecordingLimits { share: recorded.share, missing };
    let mut warnings = warnings::of_recording(&limits, [&now, &then]);
    let keys = (4 * requests.len()).clamp(KEYS_MIN, KEYS_MAX);
    let [now, then] = [now, then].map(|rules| ReplayedRules::new(rules, keys));
    let mut comparison = ReplayComparison::default();
    let mut unlike_server = 0_u64;
    let started = SystemClock.now();
    for (number, request) in requests.iter().enumerate() {
        if number % REQUESTS_PER_LOOK == 0 {
            let took_us = SystemClock.now().as_u64().saturating_sub(started.as_u64());
            if took_us > REPLAY_MAX_US {
                return Err(ReplayFailure::TookTooLong);
            }
        }
        let answers = [&now, &then].map(|rules| rules.decide(request));
        unlike_server += u64::from(answers[0].allowed() != request.was_allowed);
        comparison.add(&replayed(request), [&answers[0], &answers[1]]);
    }
    warnings.extend(warnings::of_server(unlike_server, requests.len()));
    warnings.extend(then.missing.warning());
    warnings.extend([&now, &then].iter().find_map(|rules| rules.crowded_warning()));
    Ok(RecordedReplay { comparison, requests: requests.len(), from, to, warnings })
}

fn replayed<'a>(request: &'a RecordedRequest<'_>) -> ReplayedRequest<'a> {
    ReplayedRequest {
        at: request.at,
        method: request.method,
        path: request.path,
        caller: ReplayedCaller::new(
            request.user.filter(|user| !user.is_empty()),
            request.api_key,
            request.ip,
        ),
        position: None,
    }
}

/// A rule set with a table of its own.
struct ReplayedRules {
    gatekeeper: Gatekeeper<Arc<MemoryStore>, Arc<ManualClock>>,
    store: Arc<MemoryStore>,
    missing: Arc<MissingFactsCount>,
}

impl ReplayedRules {
    fn new(rules: RuleSet, keys: usize) -> ReplayedRules {
        let (store, missing) =
            (Arc::new(MemoryStore::new(keys)), Arc::<MissingFactsCount>::default());
        let clock = Arc::new(ManualClock::new(Micros::ZERO));
        let gatekeeper = Gatekeeper::new(rules, store.clone(), clock);
        let gatekeeper = gatekeeper.observed_by(missing.clone() as Arc<dyn RulesObserver>);
        ReplayedRules { gatekeeper, store, missing }
    }

    fn decide(&self, request: &RecordedRequest<'_>) -> tollgate_rules::Answer {
        let ask = Ask {
            facts: request.facts(),
            cost: request.cost,
            cannot_wait: request.cannot_wait,
            ..Ask::default()
        };
        self.gatekeeper.decide_at(&ask, request.at)
    }

    fn crowded_warning(&self) -> Option<String> {
        let stats = self.store.stats();
        (stats.overflowed > 0 || stats.evicted > 0).then(|| {
            "The replay had more keys than room: some answers come from states that keys share."
                .into()
        })
    }
}
