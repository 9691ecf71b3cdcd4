//! `ReloadLog`: the last attempts to replace the rules, for people who ask what has changed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::Micros;
use tollgate_rules::changes::Changes;

use super::{ReloadCause, ReloadOutcome};

/// Most attempts that are kept.
pub(crate) const RELOADS_MAX: usize = 50;

/// Most bytes of the diagnostics of one attempt.
const DIAGNOSTICS_BYTES_MAX: usize = 16 << 10;

/// Most names in each list of changes.
const NAMES_MAX: usize = 100;

/// One attempt. Bound: [`DIAGNOSTICS_BYTES_MAX`], [`DIFF_BYTES_MAX`](super::text_diff::DIFF_BYTES_MAX) and four times
/// [`NAMES_MAX`] names.
#[derive(Debug)]
pub(crate) struct ReloadRecord {
    /// Counts the attempts, from 1.
    pub(crate) number: u64,
    pub(crate) at: Micros,
    pub(crate) cause: ReloadCause,
    pub(crate) outcome: RecordedOutcome,
    /// Version of the rules in force afterwards.
    pub(crate) version: u64,
}

/// The outcome of an attempt, shortened to what is kept.
#[derive(Debug)]
pub(crate) enum RecordedOutcome {
    Loaded {
        changes: Changes,
        /// Number of names that `changes` has no room for.
        names_left_out: usize,
        /// Warnings about the rules as text; may be empty.
        warnings: String,
        /// The difference of the rules as text; empty if only files that they name have changed.
        diff: String,
    },
    Unchanged,
    Refused {
        errors: usize,
        diagnostics: String,
    },
}

/// The last attempts, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ReloadLog {
    records: Mutex<RecordList>,
}

#[derive(Debug, Default)]
struct RecordList {
    last: u64,
    /// Bound: [`RELOADS_MAX`].
    records: VecDeque<Arc<ReloadRecord>>,
}

impl ReloadLog {
    /// Adds an attempt and its difference; the oldest one makes room.
    pub(super) fn add(
        &self,
        at: Micros,
        cause: ReloadCause,
        version: u64,
        outcome: RecordedOutcome,
    ) {
        let mut list = self.lock();
        list.last += 1;
        let number = list.last;
        if list.records.len() == RELOADS_MAX {
            list.records.pop_front();
        }
        list.records.push_back(Arc::new(ReloadRecord { number, at, cause, outcome, version }));
    }

    /// The attempts after the one with this number, the oldest first.
    pub(super) fn after(&self, number: u64) -> Vec<Arc<ReloadRecord>> {
        let list = self.lock();
        list.records.iter().filter(|record| record.number > number).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, RecordList> {
        // Every change is complete before anything that could panic.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordedOutcome {
    /// Shortens an outcome; `None` if nothing was read.
    pub(super) fn of(outcome: &ReloadOutcome, diff: String) -> Option<RecordedOutcome> {
        Some(match outcome {
            ReloadOutcome::Loaded { changes, warnings, .. } => {
                let mut changes = changes.clone();
                let lists = [
                    &mut changes.added,
                    &mut changes.removed,
                    &mut changes.changed,
                    &mut changes.fresh,
                ];
                let mut names_left_out = 0;
                for list in lists {
                    names_left_out += list.len().saturating_sub(NAMES_MAX);
                    list.truncate(NAMES_MAX);
                    list.shrink_to_fit();
                }
                let warnings = shortened(warnings);
                RecordedOutcome::Loaded { changes, names_left_out, warnings, diff }
            }
            ReloadOutcome::Unchanged { .. } => RecordedOutcome::Unchanged,
            ReloadOutcome::Refused { diagnostics, errors } => {
                RecordedOutcome::Refused { errors: *errors, diagnostics: shortened(diagnostics) }
            }
            ReloadOutcome::Unable(_) => return None,
        })
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= DIAGNOSTICS_BYTES_MAX {
        return text.to_string();
    }
    format!("{}\n… and more", &text[..text.floor_char_boundary(DIAGNOSTICS_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempts_are_kept_and_each_is_bounded() {
        let log = ReloadLog::default();
        let names: Vec<Arc<str>> = (0..10_000).map(|number| format!("r{number}").into()).collect();
        let changes = Changes { added: names.clone(), removed: names, ..Changes::default() };
        let warnings = "é".repeat(1 << 20);
        for turn in 1..=2 * RELOADS_MAX as u64 {
            let (changes, warnings) = (changes.clone(), warnings.clone());
            let outcome = ReloadOutcome::Loaded { version: turn, changes, warnings };
            let outcome = RecordedOutcome::of(&outcome, String::new()).unwrap();
            log.add(Micros::new(turn), ReloadCause::Put, turn, outcome);
        }
        let kept = log.after(0);
        assert_eq!((kept.len(), kept[0].number), (RELOADS_MAX, RELOADS_MAX as u64 + 1));
        for record in &kept {
            let RecordedOutcome::Loaded { changes, names_left_out, warnings, .. } = &record.outcome
            else {
                panic!("{record:?}");
            };
            assert_eq!((changes.added.len(), changes.removed.len()), (NAMES_MAX, NAMES_MAX));
            assert_eq!(*names_left_out, 2 * (10_000 - NAMES_MAX));
            assert!(warnings.len() <= DIAGNOSTICS_BYTES_MAX + 20);
        }
        assert_eq!(log.after(2 * RELOADS_MAX as u64 - 1).len(), 1);
        assert!(log.after(2 * RELOADS_MAX as u64).is_empty());
    }
}
