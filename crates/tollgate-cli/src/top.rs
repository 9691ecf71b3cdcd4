//! `Top`: who asks most, and who is refused most, in the last minute or two.
//!
//! Kept in sketches ([`space_saving`]) of 1,024 callers each: one for each list, stripe of threads and
//! window of a minute. So a caller with more than a 1,024th of all requests is always listed, and how
//! far a count may be off is told beside it. Callers are listed under their rules: a request that two
//! rules apply to counts under both.

mod gathered;
mod space_saving;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{KeyBuf, Micros};
use tollgate_rules::key_text;
use tollgate_rules::stripes::Stripes;

use crate::key_names::KeyNames;
use gathered::{Copied, Gathered};
use space_saving::{Hashes, Sketch};

/// Callers in one sketch.
const HELD_MAX: u16 = 1_024;

/// The most bytes of a key that is kept whole.
const KEY_BYTES_MAX: usize = 256;

/// A window. The one under way and the one before count.
pub(crate) const WINDOW_US: u64 = 60_000_000;

/// What callers are listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// How much they ask.
    Requests,
    /// How often they are refused.
    Refusals,
}

/// A caller under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopEntry {
    pub(crate) rule: Arc<str>,
    /// As people write it, such as `user=42`; cut if it is long.
    pub(crate) key: String,
    /// What logs call the caller, unless they may show keys.
    pub(crate) hash: String,
    pub(crate) requests: Estimate,
    pub(crate) refusals: Estimate,
}

/// A count that may be off: the truth is at least `count - error` and at most `count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub(crate) count: u64,
    pub(crate) error: u64,
}

/// Finds the heaviest callers. Bound: [`HELD_MAX`] callers for each of two lists, two windows and
/// every stripe, with keys of at most [`KEY_BYTES_MAX`] bytes.
pub(crate) struct Top {
    hashes: Hashes,
    names: Arc<KeyNames>,
    /// A lock that hardly anybody else wants: threads have stripes of their own.
    stripes: Stripes<Mutex<Windows>>,
}

/// Who is held.
#[derive(Clone, Debug, Default)]
struct Name {
    rule: Option<Arc<str>>,
    /// The whole key, or nothing if it is too long.
    key: KeyBuf,
    /// A key that is too long, as text, with its hash.
    cut: Option<Box<(String, String)>>,
}

/// The windows of one stripe.
#[derive(Debug, Default)]
struct Windows {
    now: Window,
    before: Window,
}

/// What came in one minute.
#[derive(Debug)]
struct Window {
    /// Which minute since the epoch.
    minute: u64,
    requests: Sketch<Name>,
    refusals: Sketch<Name>,
}

impl Default for Window {
    fn default() -> Window {
        Window { minute: 0, requests: Sketch::new(HELD_MAX), refusals: Sketch::new(HELD_MAX) }
    }
}

impl Window {
    fn begin(&mut self, minute: u64) {
        self.minute = minute;
        self.requests.clear();
        self.refusals.clear();
    }
}

impl Windows {
    /// The window of an instant.
    fn at(&mut self, now: Micros) -> &mut Window {
        let minute = now.as_u64() / WINDOW_US;
        // Who read the clock a moment before the minute ended may come a moment after it.
        if minute != self.now.minute && minute + 1 != self.now.minute {
            std::mem::swap(&mut self.now, &mut self.before);
            self.now.begin(minute);
        }
        &mut self.now
    }
}

impl Top {
    pub(crate) fn new(names: Arc<KeyNames>) -> Top {
        Top { hashes: Hashes::default(), names, stripes: Stripes::default() }
    }

    /// Counts a request under all its rules: whose it is, and whether that rule refused it.
    pub(crate) fn count<'a>(
        &self,
        now: Micros,
        by_rule: impl Iterator<Item = (&'a Arc<str>, &'a KeyBuf, bool)>,
    ) {
        let mut windows = lock(self.stripes.mine());
        let window = windows.at(now);
        for (rule, key, refused) in by_rule {
            let hash = self.hashes.hash(rule, key.as_bytes());
            let name = |name: &mut Name| self.write_name(name, rule, key);
            window.requests.count(hash, name);
            if refused {
                window.refusals.count(hash, name);
            }
        }
    }

    /// Writes who it is, into the room of whoever was there.
    fn write_name(&self, name: &mut Name, rule: &Arc<str>, key: &KeyBuf) {
        if name.rule.as_ref().is_none_or(|old| !Arc::ptr_eq(old, rule)) {
            name.rule = Some(rule.clone());
        }
        name.key.clear();
        name.cut = None;
        match key.as_bytes().len() <= KEY_BYTES_MAX {
            true => name.key.append(key),
            false => {
                let hash = self.names.hash(key);
                name.cut = Some(Box::new((cut(&key_text(key), &hash), hash)));
            }
        }
    }

    /// The heaviest callers of the last minute or two, the heaviest first.
    pub(crate) fn hottest(&self, most: usize, by: By, now: Micros) -> Vec<TopEntry> {
        let [requests, refusals] = self.gather(now);
        let listed = match by {
            By::Requests => &requests,
            By::Refusals => &refusals,
        };
        let found = listed.heaviest(most);
        let mut names = self.names_of(&found);
        let entry = |hash: u64| {
            // Whoever has lost its place since was not that heavy.
            let name = names.remove(&hash)?;
            let (key, key_hash) = self.told(&name);
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

    /// Both lists, as all recent windows have them. A lock is held only as long as copying numbers
    /// takes, because requests wait for it.
    fn gather(&self, now: Micros) -> [Gathered; 2] {
        let minute = now.as_u64() / WINDOW_US;
        let recent = |window: &&Window| minute.abs_diff(window.minute) <= 1;
        let mut gathered = [Gathered::default(), Gathered::default()];
        for stripe in self.stripes.all() {
            let copied: Vec<[Copied; 2]> = {
                let windows = lock(stripe);
                let recent = [&windows.now, &windows.before].into_iter().filter(recent);
                recent.map(|one| [Copied::of(&one.requests), Copied::of(&one.refusals)]).collect()
            };
            for lists in &copied {
                gathered.iter_mut().zip(lists).for_each(|(list, copied)| list.add(copied));
            }
        }
        gathered
    }

    /// The names that belong to hashes, as far as they are still held.
    fn names_of(&self, hashes: &[u64]) -> HashMap<u64, Name> {
        let mut names = HashMap::with_capacity(hashes.len());
        for stripe in self.stripes.all() {
            for hash in hashes {
                if names.contains_key(hash) {
                    continue;
                }
                let windows = lock(stripe);
                let sketches = [&windows.now, &windows.before]
                    .into_iter()
                    .flat_map(|window| [&window.requests, &window.refusals]);
                let held = sketches.filter_map(|sketch| sketch.get(*hash)).next();
                names.extend(held.map(|held| (*hash, held.name.clone())));
            }
        }
        names
    }

    /// A key as text, and its hash.
    fn told(&self, name: &Name) -> (String, String) {
        match &name.cut {
            Some(cut) => (**cut).clone(),
            None => (key_text(&name.key), self.names.hash(&name.key)),
        }
    }
}

/// Nothing panics while it is held, and a sketch that is half changed only counts wrong.
fn lock(windows: &Mutex<Windows>) -> MutexGuard<'_, Windows> {
    windows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The beginning of a long key, and what tells it from others that begin so.
fn cut(text: &str, hash: &str) -> String {
    let end = text.floor_char_boundary(KEY_BYTES_MAX - hash.len() - "…#".len());
    format!("{}…#{hash}", &text[..end])
}

#[cfg(test)]
mod tests;
