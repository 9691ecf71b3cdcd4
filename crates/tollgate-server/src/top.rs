//! `Top`: who asks most, and who is refused most, in the last minute or two.
//!
//! Kept in sketches ([`space_saving`]) of 1,024 callers each: one for each list, stripe of threads and
//! window of a minute. So a caller with more than a 1,024th of all requests is always listed, and how
//! far a count may be off is told beside it. Callers are listed under their rules: a request that two
//! rules apply to counts under both.

mod space_saving;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{KeyBuf, Micros};
use tollgate_rules::key_text;

use crate::key_names::KeyNames;
use crate::metrics::stripes::Stripes;
use space_saving::{Hashes, Held, Sketch};

/// Callers in one sketch.
const HELD_MAX: u16 = 1_024;

/// The most bytes of a key that is kept whole.
const KEY_BYTES_MAX: usize = 256;

/// A window. The one under way and the one before count.
const WINDOW_US: u64 = 60_000_000;

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
    fn sketch(&self, by: By) -> &Sketch<Name> {
        match by {
            By::Requests => &self.requests,
            By::Refusals => &self.refusals,
        }
    }

    fn begin(&mut self, minute: u64) {
        self.minute = minute;
        self.requests.clear();
        self.refusals.clear();
    }
}

impl Windows {
    fn now(&self) -> &Window {
        &self.now
    }

    fn before(&self) -> &Window {
        &self.before
    }

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

    /// Counts a request of a caller under a rule.
    pub(crate) fn count(&self, rule: &Arc<str>, key: &KeyBuf, refused: bool, now: Micros) {
        let hash = self.hashes.hash(rule, key.as_bytes());
        let mut windows = lock(self.stripes.mine());
        let window = windows.at(now);
        let name = |name: &mut Name| self.write_name(name, rule, key);
        window.requests.count(hash, name);
        if refused {
            window.refusals.count(hash, name);
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
        let mut found: Vec<u64> = listed.of.keys().copied().collect();
        // By what is sure; of equals by what is possible. The hash only makes the order the same
        // each time.
        found.sort_unstable_by_key(|hash| {
            let Estimate { count, error } = listed.estimate(*hash);
            std::cmp::Reverse((count - error, count, *hash))
        });
        found.truncate(most);
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

    /// Both lists, as all recent windows have them. Locks are held only as long as copying numbers
    /// takes, because requests wait for them.
    fn gather(&self, now: Micros) -> [Gathered; 2] {
        let minute = now.as_u64() / WINDOW_US;
        let mut gathered = [Gathered::default(), Gathered::default()];
        let mut copied = Vec::with_capacity(HELD_MAX.into());
        for stripe in self.stripes.all() {
            for (list, by) in gathered.iter_mut().zip([By::Requests, By::Refusals]) {
                for which in [Windows::now, Windows::before] {
                    let windows = lock(stripe);
                    let window = which(&windows);
                    if minute.abs_diff(window.minute) > 1 {
                        continue;
                    }
                    let (sketch, floor) = (window.sketch(by), window.sketch(by).floor());
                    let numbers = |held: Held<'_, Name>| (held.hash, held.count, held.error);
                    copied.clear();
                    copied.extend(sketch.held().map(numbers));
                    drop(windows);
                    list.add(&copied, floor);
                }
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

/// One list, put together from several sketches.
#[derive(Debug, Default)]
struct Gathered {
    /// Bound: all that the sketches hold.
    of: HashMap<u64, Sum>,
    /// The most that somebody can have come whom no sketch holds.
    floor: u64,
}

#[derive(Debug, Default)]
struct Sum {
    count: u64,
    error: u64,
    /// Of those sketches that hold it.
    floor: u64,
}

impl Gathered {
    fn add(&mut self, held: &[(u64, u64, u64)], floor: u64) {
        self.floor += floor;
        for (hash, count, error) in held {
            let sum = self.of.entry(*hash).or_default();
            sum.count += count;
            sum.error += error;
            sum.floor += floor;
        }
    }

    /// What all sketches together say: by one that does not hold somebody, it came at most as often
    /// as the least of those that are held.
    fn estimate(&self, hash: u64) -> Estimate {
        let none = Sum::default();
        let Sum { count, error, floor } = self.of.get(&hash).unwrap_or(&none);
        let elsewhere = self.floor - floor;
        Estimate { count: count + elsewhere, error: error + elsewhere }
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
mod tests {
    use std::thread;

    use super::*;

    fn top() -> Top {
        Top::new(Arc::new(KeyNames::random().unwrap()))
    }

    fn user(name: impl ToString) -> KeyBuf {
        KeyBuf::new().with("user", &name.to_string())
    }

    /// Key, requests, refusals.
    fn listed(top: &Top, by: By, at_s: u64) -> Vec<(String, u64, u64)> {
        let entries = top.hottest(10, by, Micros::new(at_s * 1_000_000));
        entries.into_iter().map(|one| (one.key, one.requests.count, one.refusals.count)).collect()
    }

    #[test]
    fn one_request_shows_up_and_is_forgotten_after_its_minutes() {
        let (top, rule): (_, Arc<str>) = (top(), "api".into());
        top.count(&rule, &user(1), true, Micros::new(70_000_000));
        top.count(&rule, &user(2), false, Micros::new(121_000_000));
        top.count(&rule, &user(2), false, Micros::new(119_999_999));
        let both = vec![("user=2".to_string(), 2, 0), ("user=1".to_string(), 1, 1)];
        assert_eq!(listed(&top, By::Requests, 121), both);
        assert_eq!(listed(&top, By::Refusals, 121), both[1..]);
        assert_eq!(listed(&top, By::Requests, 180), both[..1], "the first minute is over");
        assert_eq!(listed(&top, By::Requests, 240), []);
        // A clock that was set back.
        top.count(&rule, &user(3), false, Micros::new(5_000_000));
        assert_eq!(listed(&top, By::Requests, 5), [("user=3".to_string(), 1, 0)]);
    }

    #[test]
    fn callers_of_two_rules_are_two() {
        let (top, now) = (top(), Micros::new(1));
        for rule in ["a", "b", "b"] {
            top.count(&rule.into(), &user(1), false, now);
        }
        let entries = top.hottest(10, By::Requests, now);
        let told: Vec<_> = entries.iter().map(|one| (&*one.rule, one.requests.count)).collect();
        assert_eq!(told, [("b", 2), ("a", 1)]);
        assert_eq!(entries[0].hash, top.names.hash(&user(1)));
    }

    #[test]
    fn long_keys_are_cut_and_stay_apart() {
        let (top, rule, now): (_, Arc<str>, _) = (top(), "api".into(), Micros::new(1));
        let long = "ü".repeat(5_000);
        for end in ["a", "b", "b"] {
            top.count(&rule, &user(format!("{long}{end}")), false, now);
        }
        let entries = top.hottest(10, By::Requests, now);
        assert_eq!(entries.iter().map(|one| one.requests.count).collect::<Vec<_>>(), [2, 1]);
        for entry in &entries {
            assert!(entry.key.len() <= KEY_BYTES_MAX, "{}", entry.key.len());
            assert!(entry.key.starts_with("user=ü") && entry.key.ends_with(&entry.hash));
        }
        assert_ne!(entries[0].key, entries[1].key);
    }

    #[test]
    fn the_heavy_ones_are_found_over_threads_and_windows() {
        const THREADS: u64 = 5;
        let (top, rule): (_, Arc<str>) = (top(), "api".into());
        // Each thread: 40 heavy callers among 5,000 who come once, in each of two minutes.
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (top, rule) = (&top, &rule);
                scope.spawn(move || {
                    for turn in 0..20_000_u64 {
                        let now = Micros::new(turn / 10_000 * WINDOW_US);
                        let key = match turn % 2 {
                            0 => user(turn / 2 % 40),
                            _ => user(1_000 + thread * 20_000 + turn),
                        };
                        top.count(rule, &key, turn.is_multiple_of(4), now);
                    }
                });
            }
        });
        // The others share windows that they have come to after their minute; nothing is lost.
        let entries = top.hottest(40, By::Requests, Micros::new(WINDOW_US));
        assert_eq!(entries.len(), 40);
        for entry in entries {
            let name: u64 = entry.key.strip_prefix("user=").unwrap().parse().unwrap();
            assert!(name < 40, "{entry:?}");
            let (requests, refusals) =
                (250 * THREADS, if name.is_multiple_of(2) { 250 * THREADS } else { 0 });
            for (told, truly) in [(entry.requests, requests), (entry.refusals, refusals)] {
                assert!(told.count - told.error <= truly && truly <= told.count, "{entry:?}");
            }
        }
    }

    /// What a decision pays: `cargo test --release -p tollgate-server -- --ignored --nocapture top`.
    #[test]
    #[ignore = "measures"]
    #[expect(clippy::disallowed_methods, reason = "it measures")]
    fn what_counting_costs() {
        let (top, rule): (_, Arc<str>) = (top(), "api".into());
        let keys: Vec<KeyBuf> = (0..1_000_000).map(user).collect();
        for (name, callers) in [("one", 1), ("100", 100), ("10,000", 10_000), ("10^6", 1_000_000)] {
            for refused in [false, true] {
                let began = std::time::Instant::now();
                for turn in 0..2_000_000_usize {
                    let key = &keys[turn % callers];
                    top.count(&rule, key, refused, Micros::new(1));
                }
                let ns = began.elapsed().as_nanos() / 2_000_000;
                println!("{name} callers, refused {refused}: {ns} ns");
            }
        }
    }
}
