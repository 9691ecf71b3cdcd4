//! `MissingFactsCount`: requests that a replay allows because they lack facts, where a server would answer with an
//! error.

use std::sync::{Mutex, PoisonError};

use tollgate::Micros;
use tollgate_rules::{DecidedRequest, MissingFacts, RulesObserver};

/// Number of requests that are allowed because they lack facts, and a description of the first.
#[derive(Debug, Default)]
pub(crate) struct MissingFactsCount(Mutex<(u64, Option<String>)>);

impl RulesObserver for MissingFactsCount {
    fn decided(&self, _: &DecidedRequest<'_>) {}

    fn missing_facts(&self, missing: &MissingFacts<'_>, _: Micros) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0 += 1;
        seen.1.get_or_insert_with(|| missing.to_string());
    }
}

impl MissingFactsCount {
    /// The count and the first one; `None` if no request lacked facts.
    pub(crate) fn counted(&self) -> Option<(u64, String)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.1.clone().map(|first| (seen.0, first))
    }

    /// A sentence about them.
    pub(super) fn warning(&self) -> Option<String> {
        let (requests, first) = self.counted()?;
        Some(format!(
            "{requests} requests lack facts that the candidate needs and are allowed; the first: {first}."
        ))
    }
}
