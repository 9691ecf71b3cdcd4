//! `TopCallers`: the callers with the most requests, and with the most refusals, in the last minute or two.
//!
//! They are kept in sketches ([`heavy_hitters`]) of 1,024 callers each: one for each list, stripe of threads
//! and window of a minute. Up to 1,024 callers are counted exactly. Beyond that newcomers are admitted by
//! chance, because replacing an entry at every newcomer costs more than the decision: a caller is at least
//! as heavy as its count less its error says, and a caller with much more than a 1,024th of all requests is
//! missing only by an unlikely chance, which [`heavy_hitters`] puts in numbers. Callers are listed by rule:
//! a request that two rules apply to counts under both.

mod heavy_hitters;
mod merged_sketches;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{KeyBuf, Micros};
use tollgate_rules::credentials::shown_typed_key;
use tollgate_rules::stripes::Stripes;
use tollgate_rules::{Identify, key_text};

use crate::key_names::KeyNames;
use heavy_hitters::{CallerHasher, HeavyHitterSketch};
use merged_sketches::{MergedSketches, SketchCopy};

/// Callers in one sketch.
const SKETCH_CALLERS_MAX: u16 = 1_024;

/// Longest key that is kept whole, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// Length of a window. The current window and the one before it count.
pub(crate) const WINDOW_US: u64 = 60_000_000;

/// Order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopOrder {
    /// Order by number of requests.
    Requests,
    /// Order by number of refusals.
    Refusals,
}

/// A request under one of its rules.
#[derive(Clone, Copy)]
pub(crate) struct CountedRequest<'a> {
    pub(crate) rule: &'a Arc<str>,
    /// The hash of the rule's name.
    pub(crate) rule_hash: u64,
    pub(crate) key: &'a KeyBuf,
    /// True if this rule refused it.
    pub(crate) refused: bool,
}

/// A caller under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopEntry {
    pub(crate) rule: Arc<str>,
    /// The key as text, such as `user=42`, without credentials; shortened if it is long.
    pub(crate) key: String,
    /// The caller's hash, as in logs.
    pub(crate) hash: String,
    pub(crate) requests: Estimate,
    pub(crate) refusals: Estimate,
}

/// A count with its error: the true count is at least `count - error`. It is exactly `count` if the error
/// is 0; otherwise it may be higher by chance, by more than x times the error once in e^x cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub(crate) count: u64,
    pub(crate) error: u64,
}

/// Finds the heaviest callers. Bound: [`SKETCH_CALLERS_MAX`] callers for each of two lists, two windows and
/// every stripe, with keys of at most [`KEY_BYTES_MAX`] bytes.
pub(crate) struct TopCallers {
    hashes: CallerHasher,
    names: Arc<KeyNames>,
    /// Windows by stripe. The locks are hardly contended: each thread has its own stripe.
    stripes: Stripes<Mutex<TopWindows>>,
}

/// The name of a caller in a sketch.
#[derive(Clone, Debug, Default)]
struct TopCallerName {
    rule: Option<Arc<str>>,
    /// The whole key, or nothing if it is too long.
    key: KeyBuf,
    /// A key that is too long, as text, with its hash.
    cut: Option<Box<(String, String)>>,
}

/// The windows of one stripe.
#[derive(Debug, Default)]
struct TopWindows {
    current: TopWindow,
    previous: TopWindow,
}

/// Requests and refusals of one minute.
#[derive(Debug)]
struct TopWindow {
    /// Minutes since the epoch.
    minute: u64,
    requests: HeavyHitterSketch<TopCallerName>,
    refusals: HeavyHitterSketch<TopCallerName>,
}

impl Default for TopWindow {
    fn default() -> TopWindow {
        TopWindow {
            minute: 0,
            requests: HeavyHitterSketch::new(SKETCH_CALLERS_MAX),
            refusals: HeavyHitterSketch::new(SKETCH_CALLERS_MAX),
        }
    }
}

impl TopWindow {
    fn begin(&mut self, minute: u64) {
        self.minute = minute;
        self.requests.clear();
        self.refusals.clear();
    }
}

impl TopWindows {
    /// The window of an instant.
    fn at(&mut self, now: Micros) -> &mut TopWindow {
        let minute = minute_of(now);
        // A thread that read the clock just before the minute ended may get here just after it.
        if minute != self.current.minute && minute + 1 != self.current.minute {
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.begin(minute);
        }
        &mut self.current
    }

    /// The windows that count at a minute.
    fn recent(&self, minute: u64) -> impl Iterator<Item = &TopWindow> {
        let windows = [&self.current, &self.previous].into_iter();
        windows.filter(move |window| minute.abs_diff(window.minute) <= 1)
    }
}

impl TopCallers {
    pub(crate) fn new(names: Arc<KeyNames>) -> TopCallers {
        TopCallers { hashes: CallerHasher::default(), names, stripes: Stripes::default() }
    }

    /// Counts a request under each of its rules, which identify callers in this way.
    pub(crate) fn count<'a>(
        &self,
        now: Micros,
        identify: &Identify,
        by_rule: impl Iterator<Item = CountedRequest<'a>>,
    ) {
        let mut windows = lock(self.stripes.mine());
        let window = windows.at(now);
        // Rules that count the same key share it, and its hash.
        let mut hashed: Option<(&KeyBuf, u64)> = None;
        for CountedRequest { rule, rule_hash, key, refused } in by_rule {
            let key_hash = match hashed {
                Some((same, hash)) if std::ptr::eq(same, key) => hash,
                _ => self.hashes.hash(key.as_bytes()),
            };
            hashed = Some((key, key_hash));
            let hash = key_hash ^ rule_hash;
            let name = |name: &mut TopCallerName| self.replace_name(name, rule, key, identify);
            window.requests.count(hash, name);
            if refused {
                window.refusals.count(hash, name);
            }
        }
    }

    /// Overwrites a name, reusing its memory.
    fn replace_name(
        &self,
        name: &mut TopCallerName,
        rule: &Arc<str>,
        key: &KeyBuf,
        identify: &Identify,
    ) {
        if name.rule.as_ref().is_none_or(|old| !Arc::ptr_eq(old, rule)) {
            name.rule = Some(rule.clone());
        }
        name.key.clear();
        name.cut = None;
        match key.as_bytes().len() <= KEY_BYTES_MAX {
            true => name.key.append(key),
            false => {
                let hash = self.names.hash(key);
                let text = shorten_key(&shown_text(key, identify), &hash);
                name.cut = Some(Box::new((text, hash)));
            }
        }
    }

    /// The heaviest callers of the last minute or two, the heaviest first. Credentials in their keys are not
    /// shown; `identify` says which headers are such.
    pub(crate) fn hottest(
        &self,
        most: usize,
        by: TopOrder,
        identify: &Identify,
        now: Micros,
    ) -> Vec<TopEntry> {
        let [requests, refusals] = self.gather(now);
        let listed = match by {
            TopOrder::Requests => &requests,
            TopOrder::Refusals => &refusals,
        };
        let found = listed.heaviest(most);
        let mut names = self.names_of(&found);
        let entry = |hash: u64| {
            // A caller that has lost its slot since was not that heavy.
            let name = names.remove(&hash)?;
            let (key, key_hash) = self.key_and_hash(&name, identify);
            Some(TopEntry {
                rule: name.rule?,
                key,
                hash: key_hash,
                requests: requests.estimate(hash),
                refusals: refusals.estimate(hash),
            })
        };
        found.into_iter().filter_map(entry).collect()
    }

    /// Returns true if this caller is in a sketch of the last minute or two. It takes two lookups for each stripe,
    /// however many callers are kept.
    pub(crate) fn has(&self, rule_hash: u64, key: &KeyBuf, now: Micros) -> bool {
        let (minute, hash) = (minute_of(now), self.hashes.hash(key.as_bytes()) ^ rule_hash);
        self.stripes.all().any(|stripe| {
            let windows = lock(stripe);
            let mut recent = windows.recent(minute);
            recent.any(|window| {
                window.requests.get(hash).is_some() || window.refusals.get(hash).is_some()
            })
        })
    }

    /// Both lists, merged from all recent windows. Each lock is held only to copy numbers, because requests
    /// wait for it.
    fn gather(&self, now: Micros) -> [MergedSketches; 2] {
        let minute = minute_of(now);
        let mut gathered = [MergedSketches::default(), MergedSketches::default()];
        for stripe in self.stripes.all() {
            let copied: Vec<[SketchCopy; 2]> = {
                let windows = lock(stripe);
                let recent = windows.recent(minute);
                recent
                    .map(|one| [SketchCopy::of(&one.requests), SketchCopy::of(&one.refusals)])
                    .collect()
            };
            for lists in &copied {
                gathered.iter_mut().zip(lists).for_each(|(list, copied)| list.add(copied));
            }
        }
        gathered
    }

    /// The names for these hashes, if they are still in a sketch.
    fn names_of(&self, hashes: &[u64]) -> HashMap<u64, TopCallerName> {
        let mut names = HashMap::with_capacity(hashes.len());
        for stripe in self.stripes.all() {
            for hash in hashes {
                if names.contains_key(hash) {
                    continue;
                }
                let windows = lock(stripe);
                let sketches = [&windows.current, &windows.previous]
                    .into_iter()
                    .flat_map(|window| [&window.requests, &window.refusals]);
                let held = sketches.filter_map(|sketch| sketch.get(*hash)).next();
                names.extend(held.map(|held| (*hash, held.name.clone())));
            }
        }
        names
    }

    /// A key as text, and its hash.
    fn key_and_hash(&self, name: &TopCallerName, identify: &Identify) -> (String, String) {
        match &name.cut {
            Some(cut) => (**cut).clone(),
            None => (shown_text(&name.key, identify), self.names.hash(&name.key)),
        }
    }
}

/// A key as text, without credentials: a user that a check stated may be an API key that was sent in its place.
fn shown_text(key: &KeyBuf, identify: &Identify) -> String {
    key_text(&shown_typed_key(key, identify))
}

/// The minutes since the epoch.
fn minute_of(now: Micros) -> u64 {
    now.as_u64() / WINDOW_US
}

/// Locks the windows. A poisoned lock is no problem: a half-changed sketch only counts wrong.
fn lock(windows: &Mutex<TopWindows>) -> MutexGuard<'_, TopWindows> {
    windows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The beginning of a long key, and the hash that distinguishes it from others with the same beginning.
fn shorten_key(text: &str, hash: &str) -> String {
    let end = text.floor_char_boundary(KEY_BYTES_MAX - hash.len() - "…#".len());
    format!("{}…#{hash}", &text[..end])
}

#[cfg(test)]
mod tests;
