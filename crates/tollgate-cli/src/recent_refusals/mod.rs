//! The requests that were refused last, each with its explanation. Callers can cause refusals, so what they cost is
//! bounded: a flood is sampled, and the rest is only counted.
//!
//! ```text
//! observer ─▶ sampling.rs          is this one recorded?
//!          ─▶ recorded_refusal.rs  its explanation, written as JSON at once
//!          ─▶ the ring             the last REFUSALS_MAX
//! ```

mod recorded_refusal;
mod sampling;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_rules::stripes::StripedCounters;
use tollgate_rules::{DecidedRequest, Verdict};

use crate::key_names::KeyNames;
use sampling::RefusalSampling;

pub(crate) use recorded_refusal::RecordedRefusal;

/// Most refusals that are kept.
pub(crate) const REFUSALS_MAX: usize = 500;

/// The last refusals of this server.
pub(crate) struct RecentRefusals {
    /// The oldest first. Bound: [`REFUSALS_MAX`] refusals of at most
    /// [`STORY_BYTES_MAX`](recorded_refusal::STORY_BYTES_MAX) bytes each.
    ring: Mutex<VecDeque<Arc<RecordedRefusal>>>,
    sampling: RefusalSampling,
    not_recorded: StripedCounters<1>,
    /// Names this process, so that an id of an earlier one is unknown and not another refusal.
    process: u64,
    next_number: AtomicU64,
    names: Arc<KeyNames>,
}

impl RecentRefusals {
    /// No refusals; `process` tells this process from those before it.
    pub(crate) fn new(names: Arc<KeyNames>, process: u64) -> RecentRefusals {
        RecentRefusals {
            ring: Mutex::default(),
            sampling: RefusalSampling::default(),
            not_recorded: StripedCounters::default(),
            process,
            next_number: AtomicU64::new(1),
            names,
        }
    }

    /// Records a refusal, unless too many were recorded in this second.
    pub(crate) fn record(&self, decided: &DecidedRequest<'_>) {
        let refuses = |one: &&tollgate_rules::RuleVerdict<'_>| {
            matches!(one.verdict, Verdict::Refused | Verdict::Unavailable)
        };
        let rule = decided.rule_verdicts().find(refuses).map_or(0, |one| one.rule_hash);
        match self.sampling.admits(rule, decided.at()) {
            true => self.push(decided),
            false => self.not_recorded.add(0, 1),
        }
    }

    #[cold]
    fn push(&self, decided: &DecidedRequest<'_>) {
        let Some(explained) = decided.explain_refusal() else { return };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number}", self.process);
        let refusal = Arc::new(RecordedRefusal::new(id, &explained, &self.names));
        let mut ring = self.lock();
        if ring.len() == REFUSALS_MAX {
            ring.pop_front();
        }
        ring.push_back(refusal);
    }

    /// The last refusals, the last first; of one rule, if it is named.
    pub(crate) fn latest(&self, most: usize, rule: Option<&str>) -> Vec<Arc<RecordedRefusal>> {
        let wanted =
            |one: &&Arc<RecordedRefusal>| rule.is_none_or(|rule| one.rule.as_deref() == Some(rule));
        self.lock().iter().rev().filter(wanted).take(most).cloned().collect()
    }

    /// The refusal of this id, if it is still kept.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<RecordedRefusal>> {
        self.lock().iter().find(|one| one.id == id).cloned()
    }

    /// Number of refusals that were not recorded, because there were too many at once.
    pub(crate) fn not_recorded(&self) -> u64 {
        self.not_recorded.sums()[0]
    }

    /// A panic under the lock leaves at worst one refusal less.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<RecordedRefusal>>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Micros;
    use tollgate_rules::{Ask, Facts, Gatekeeper, RulesObserver, Source, compile};

    use super::*;

    struct RecordingObserver(Arc<RecentRefusals>);

    impl RulesObserver for RecordingObserver {
        fn decided(&self, decided: &DecidedRequest<'_>) {
            if decided.refusal().is_some() {
                self.0.record(decided);
            }
        }
    }

    #[test]
    fn the_ring_keeps_the_last_refusals_of_bounded_size() {
        let text = "rules: [{ name: api, key: '{user}:{path}', limits: [1/day], match: { path: '/{*rest}' } }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.unwrap();
        let refusals = Arc::new(RecentRefusals::new(Arc::new(KeyNames::random().unwrap()), 7));
        let observer = Arc::new(RecordingObserver(refusals.clone()));
        let gatekeeper = Gatekeeper::in_memory(rules, 100).observed_by(observer);
        // Long, and of characters that JSON escapes.
        let path = format!("/{}", "\"\u{1}".repeat(1_000));
        let facts = Facts { user: Some(&path), path: Some(&path), ..Facts::default() };
        let ask = Ask { facts, ..Ask::default() };
        let seconds = REFUSALS_MAX as u64 + 20;
        for second in 0..seconds {
            let _ = gatekeeper.decide_at(&ask, Micros::from_secs(1_000_000 + second));
        }
        let kept = refusals.latest(usize::MAX, None);
        assert_eq!((kept.len(), refusals.not_recorded()), (REFUSALS_MAX, 0));
        assert_eq!(kept[0].at, Micros::from_secs(1_000_000 + seconds - 1), "the last first");
        assert!(refusals.find(&kept[0].id).is_some() && refusals.find("7-1").is_none());
        for one in &kept {
            let key = one.key.as_deref().map_or(0, str::len);
            let path = one.path.as_deref().map_or(0, str::len);
            assert!(one.story.len() <= recorded_refusal::STORY_BYTES_MAX, "{}", one.story.len());
            assert!(key <= 1_000 && path <= 1_000, "{key} {path}");
        }
    }
}
