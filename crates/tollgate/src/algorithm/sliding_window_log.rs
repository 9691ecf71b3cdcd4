//! Sliding window log: N in any trailing period, exactly.
//!
//! # The idea
//!
//! Remember when each unit was charged; what is older than a period no longer counts. There is no
//! boundary to burst across and no estimate. The price is memory, so units of one instant are one
//! entry, and a key holds fewer than 1,024 entries: when the last one is filled, the closest
//! neighbours merge onto the later instant, which may refuse a little more and never admits more.
//! (The closest neighbours are those that together cover the shortest stretch of time.) Up to 64
//! pairs merge at once, so that the cost of merging is spread over many charges.
//!
//! ```text
//!   N = 5, period 10 s, now = 15 s
//!        7   9     12  14  15
//!   ─────▮───▮──────▮───▮───▮        all five within (5, 15]: refused until 17 s,
//!     (5 ├──────────────────┤ 15]    when the entry of 7 s is exactly one period old
//! ```
//!
//! # The formula
//!
//! ```text
//!   live     = entries with now − instant < period     exactly one period old has expired
//!   admit    ⇔ Σ live + cost ≤ N
//!   wait     = expiry of the youngest entry that must go first
//! ```
//!
//! Entries keep running sums, so that every check is two binary searches, whatever N is.
//!
//! The same log with coarse instants is the counter in sub-buckets: an instant becomes the number
//! of its sub-bucket, and an entry counts for k + 1 whole sub-buckets.

use std::collections::VecDeque;

use super::{ServedInstant, Strategy, keeps_state, used_after_change};
use crate::decision::Outcome;
use crate::limit::{Limit, Precision};
use crate::time::{MAX_EXACT, Micros, Wait};

/// Cap on the entries of one key.
pub const MAX_ENTRIES: usize = 1_024;
/// Cap on the neighbours that merge at once, so that a full log has room again.
const MERGE_MAX: usize = 64;

/// Units charged at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogEntry {
    /// The instant of the charge, in microseconds or as the number of a sub-bucket.
    pub at: u64,
    /// Units of all entries up to and including this one. It wraps around; only differences count.
    pub sum: u64,
}

/// A container of entries, oldest first.
pub trait SlidingLogEntries {
    /// Number of entries.
    fn len(&self) -> usize;
    /// The entry at `index`.
    fn get(&self, index: usize) -> SlidingLogEntry;
    /// Replaces the entry at `index`.
    fn set(&mut self, index: usize, entry: SlidingLogEntry);
    /// Returns true if one more entry can be appended; a container that can grow grows now.
    fn make_room(&mut self) -> bool;
    /// Appends the youngest entry; call `make_room` first.
    fn push(&mut self, entry: SlidingLogEntry);
    /// Removes one entry.
    fn remove(&mut self, index: usize);
    /// Removes the `count` oldest entries.
    fn remove_oldest(&mut self, count: usize);
    /// Returns true if there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl SlidingLogEntries for VecDeque<SlidingLogEntry> {
    fn len(&self) -> usize {
        VecDeque::len(self)
    }
    fn get(&self, index: usize) -> SlidingLogEntry {
        self[index]
    }
    fn set(&mut self, index: usize, entry: SlidingLogEntry) {
        self[index] = entry;
    }
    fn make_room(&mut self) -> bool {
        self.len() < MAX_ENTRIES
    }
    fn push(&mut self, entry: SlidingLogEntry) {
        self.push_back(entry);
    }
    fn remove(&mut self, index: usize) {
        VecDeque::remove(self, index);
    }
    fn remove_oldest(&mut self, count: usize) {
        self.drain(..count);
    }
}

/// A log as of its last charge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLogState<E = VecDeque<SlidingLogEntry>> {
    /// The instant of the last charge.
    pub mark: u64,
    /// The running sum before the oldest entry.
    pub base: u64,
    /// Units charged, oldest first.
    pub entries: E,
}

/// Conversion between instants and the ticks in which the log of a limit counts.
#[derive(Clone, Copy)]
struct LogTicks {
    period: u64,
    /// Sub-buckets per period; 0 for whole microseconds.
    buckets: u64,
    /// Number of ticks for which an entry counts.
    span: u64,
}

impl LogTicks {
    fn of(limit: &Limit) -> LogTicks {
        let period = limit.period_us();
        match limit.precision() {
            Precision::Estimate => LogTicks { period, buckets: 0, span: period },
            Precision::Buckets(k) => LogTicks { period, buckets: k.into(), span: u64::from(k) + 1 },
        }
    }

    fn at(self, instant: u64) -> u64 {
        match self.buckets {
            0 => instant,
            k => (u128::from(instant) * u128::from(k) / u128::from(self.period)) as u64,
        }
    }

    /// The first microsecond of a tick.
    fn start(self, tick: u64) -> u64 {
        match self.buckets {
            0 => tick,
            k => (u128::from(tick) * u128::from(self.period)).div_ceil(u128::from(k)) as u64,
        }
    }
}

/// Converts an instant to the ticks of this limit's log.
pub(crate) fn tick(limit: &Limit, instant: u64) -> u64 {
    LogTicks::of(limit).at(instant)
}

/// The longest time after its last charge for which a log can differ from an empty one, in
/// microseconds. A sub-bucket counts until the end of the period after its own end.
pub(crate) fn memory_us(limit: &Limit) -> u64 {
    match limit.precision() {
        Precision::Estimate => limit.period_us(),
        Precision::Buckets(_) => 2 * limit.period_us(),
    }
}

/// The last microsecond of a tick of this limit's log.
pub(crate) fn last_instant(limit: &Limit, tick: u64) -> u64 {
    LogTicks::of(limit).start(tick + 1) - 1
}

/// The log at the instant at which a check is answered.
struct SlidingLogView {
    ticks: LogTicks,
    /// The tick of the served instant.
    tick: u64,
    /// Number of ticks by which every entry is moved back because the clock jumped.
    moved: u64,
    /// Index of the oldest entry that still counts.
    first: usize,
    /// The running sum before it.
    before: u64,
    /// Units that still count.
    total: u64,
    served: ServedInstant,
}

impl<E: SlidingLogEntries> SlidingLogState<E> {
    fn view(&self, limit: &Limit, now: Micros) -> SlidingLogView {
        let ticks = LogTicks::of(limit);
        let served = ServedInstant::new(self.mark, now, limit.period_us());
        let tick = ticks.at(served.at);
        let moved = if served.moved > 0 { ticks.at(self.mark) - tick } else { 0 };
        // Entries may be read without a lock and then hold anything; such a reader verifies the
        // slot afterwards.
        let expired = |entry: SlidingLogEntry| {
            entry.at.saturating_sub(moved).saturating_add(ticks.span) <= tick
        };
        let first = partition(&self.entries, 0, expired);
        let before = if first == 0 { self.base } else { self.entries.get(first - 1).sum };
        let total = self.last_sum().wrapping_sub(before);
        SlidingLogView { ticks, tick, moved, first, before, total, served }
    }

    fn last_sum(&self) -> u64 {
        match self.entries.len() {
            0 => self.base,
            len => self.entries.get(len - 1).sum,
        }
    }

    /// The wait from the caller's clock until entries of `units` have expired. The units that are
    /// about to be charged at the served instant expire last.
    fn until_expired(&self, view: &SlidingLogView, units: u64) -> Wait {
        let enough = |entry: SlidingLogEntry| entry.sum.wrapping_sub(view.before) < units;
        let index = partition(&self.entries, view.first, enough);
        let tick = match index < self.entries.len() {
            true => self.entries.get(index).at.saturating_sub(view.moved),
            false => view.tick,
        };
        let expiry = view.ticks.start(tick.saturating_add(view.ticks.span));
        Wait::from_micros(expiry.saturating_sub(view.served.at - view.served.lag))
    }

    /// Drops expired entries and undoes a jump of the clock.
    fn settle(&mut self, view: &SlidingLogView) {
        self.base = view.before;
        self.entries.remove_oldest(view.first);
        if view.moved > 0 {
            for index in 0..self.entries.len() {
                let SlidingLogEntry { at, sum } = self.entries.get(index);
                self.entries.set(index, SlidingLogEntry { at: at.saturating_sub(view.moved), sum });
            }
        }
    }

    /// Appends an entry. If there is no room, two neighbours merge onto the later instant. Because
    /// of the running sums, merging is the removal of the earlier entry.
    pub(crate) fn append(&mut self, entry: SlidingLogEntry) {
        let len = self.entries.len();
        if len > 0 && self.entries.get(len - 1).at == entry.at {
            return self.entries.set(len - 1, entry);
        }
        if !self.entries.make_room() {
            let closest = self.closest(entry);
            if closest + 1 == len {
                return self.entries.set(closest, entry);
            }
            self.entries.remove(closest);
        }
        self.entries.push(entry);
        if self.entries.len() == MAX_ENTRIES {
            self.merge_closest();
        }
    }

    /// Merges the closest neighbours of a full log, many at once, so that the next charges need no
    /// merge. Candidates are the [`MERGE_MAX`] entries with the shortest stretch, the oldest first
    /// among equals. Of adjacent candidates every other one merges, so that at least half of them
    /// do.
    fn merge_closest(&mut self) {
        let len = self.entries.len();
        let mut instants = [0; MAX_ENTRIES];
        for (index, instant) in instants[..len].iter_mut().enumerate() {
            *instant = self.entries.get(index).at;
        }
        let stretch = |index: usize| instants[index + 1] - instants[index - 1];
        let mut stretches = [0; MAX_ENTRIES];
        for index in 1..len - 1 {
            stretches[index - 1] = stretch(index);
        }
        let (_, &mut longest, _) = stretches[..len - 2].select_nth_unstable(MERGE_MAX - 1);
        let shorter = stretches[..MERGE_MAX - 1].iter().filter(|one| **one < longest).count();
        let mut as_long_left = MERGE_MAX - shorter;
        let (mut kept, mut merged_last) = (1, false);
        for index in 1..len {
            let inner = index + 1 < len && !merged_last;
            let as_long = inner && as_long_left > 0 && stretch(index) == longest;
            as_long_left -= usize::from(as_long);
            merged_last = as_long || inner && stretch(index) < longest;
            if !merged_last {
                self.entries.set(kept, self.entries.get(index));
                kept += 1;
            }
        }
        for last in (kept..len).rev() {
            self.entries.remove(last);
        }
    }

    /// Index of the earlier of the two closest neighbours, where `next` is the entry to be
    /// appended; the oldest pair among equals.
    ///
    /// The closest pair is the one that would cover the shortest stretch of time, counted from the
    /// entry before it. If only the distance between the two counted, the youngest entries would
    /// merge again and again into one entry that holds back most of a period. The oldest entry
    /// never merges; it expires.
    fn closest(&self, next: SlidingLogEntry) -> usize {
        let len = self.entries.len();
        if len < 2 {
            return 0;
        }
        let instant = |index: usize| if index < len { self.entries.get(index).at } else { next.at };
        let stretch = |index: usize| instant(index + 1) - instant(index - 1);
        (1..len).min_by_key(|index| stretch(*index)).expect("the log has at least two entries")
    }

    /// Takes up to `units` out of the entry at `index`; returns how many.
    fn take_back(&mut self, index: usize, units: u64) -> u64 {
        let before = if index == 0 { self.base } else { self.entries.get(index - 1).sum };
        let held = self.entries.get(index).sum.wrapping_sub(before);
        let taken = held.min(units);
        for later in index..self.entries.len() {
            let SlidingLogEntry { at, sum } = self.entries.get(later);
            self.entries.set(later, SlidingLogEntry { at, sum: sum.wrapping_sub(taken) });
        }
        if taken == held {
            self.entries.remove(index);
        }
        taken
    }
}

/// The first index from `from` on for which `before` is false.
fn partition<E: SlidingLogEntries>(
    entries: &E,
    from: usize,
    before: impl Fn(SlidingLogEntry) -> bool,
) -> usize {
    let (mut low, mut high) = (from, entries.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if before(entries.get(middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl SlidingLogState {
    /// The state of a key without any charge.
    pub fn fresh(now: Micros) -> SlidingLogState {
        SlidingLogState { mark: now.as_u64(), base: 0, entries: VecDeque::new() }
    }
}

impl<E: SlidingLogEntries> Strategy for SlidingLogState<E> {
    fn mark(&self) -> u64 {
        self.mark
    }

    // Entries are in order, none is later than the mark, and there are no more units than can be counted.
    fn is_possible(&self, limit: &Limit) -> bool {
        let (mut at, mut sum) = (0, 0);
        let mut ordered = |entry: SlidingLogEntry| {
            let next = entry.sum.wrapping_sub(self.base);
            let is_next = at <= entry.at && sum <= next;
            (at, sum) = (entry.at, next);
            is_next
        };
        let len = self.entries.len();
        self.mark <= MAX_EXACT
            && len <= MAX_ENTRIES
            && (0..len).all(|index| ordered(self.entries.get(index)))
            && sum <= MAX_EXACT
            && at <= tick(limit, self.mark)
    }

    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        let view = self.view(limit, now);
        let asked = view.total.saturating_add(cost);
        let allowed = asked <= limit.capacity() || cost == 0;
        let total = if allowed { asked } else { view.total };
        let remaining = limit.capacity().saturating_sub(total);
        let unless_empty = |units: u64| match total {
            0 => Wait::ZERO,
            _ => self.until_expired(&view, units),
        };
        Outcome {
            allowed,
            remaining,
            retry_after: match allowed {
                true => Wait::ZERO,
                false if cost > limit.capacity() => Wait::NEVER,
                false => self.until_expired(&view, asked - limit.capacity()),
            },
            reset_after: unless_empty(total),
            more_after: unless_empty(
                total.saturating_add(1).saturating_sub(limit.capacity()).max(1),
            ),
            debt_for: match total.saturating_sub(limit.capacity()) {
                0 => Wait::ZERO,
                beyond => self.until_expired(&view, beyond),
            },
            delay: Wait::ZERO,
            served_at: Micros::new(view.served.at),
            jumped: view.served.moved > 0,
            ..Outcome::default()
        }
    }

    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        self.view(limit, now).total
    }

    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        let view = self.view(limit, now);
        self.settle(&view);
        let units = cost.min(MAX_EXACT - view.total.min(MAX_EXACT));
        if units > 0 || view.moved > 0 {
            self.mark = view.served.at;
        }
        if units == 0 {
            return;
        }
        self.append(SlidingLogEntry { at: view.tick, sum: self.last_sum().wrapping_add(units) });
    }

    /// Takes the units out of the entry they were charged in, or of the one it was merged into;
    /// without an instant, out of the youngest.
    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        let view = self.view(limit, now);
        if let Some(at) = charged_at {
            let tick = view.ticks.at(at.as_u64());
            let index = partition(&self.entries, view.first, |entry| entry.at < tick);
            let served_tick = view.ticks.at(self.mark.max(now.as_u64()));
            if tick + view.ticks.span > served_tick && index < self.entries.len() {
                self.take_back(index, units);
            }
            return;
        }
        let mut left = units;
        while left > 0 && self.entries.len() > view.first {
            left -= self.take_back(self.entries.len() - 1, left);
        }
    }

    /// Drops the oldest units if the use shrinks with the limit; counts additional units as charged
    /// last.
    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        if keeps_state(new) {
            return;
        }
        let view = self.view(old, now);
        self.settle(&view);
        if view.moved > 0 {
            self.mark = view.served.at;
        }
        let total = self.last_sum().wrapping_sub(self.base);
        let used = used_after_change(total, old, new);
        let (base, excess) = (self.base, total.saturating_sub(used));
        let gone = partition(&self.entries, 0, |entry| entry.sum.wrapping_sub(base) <= excess);
        self.entries.remove_oldest(gone);
        self.base = base.wrapping_add(excess);
        if let Some(last) = self.entries.len().checked_sub(1) {
            let SlidingLogEntry { at, sum } = self.entries.get(last);
            self.entries.set(
                last,
                SlidingLogEntry { at, sum: sum.wrapping_add(used.saturating_sub(total)) },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Algorithm;
    use super::super::tests::{check, limit_with};
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn exactly_one_period_old_has_expired() {
        check(
            limit_with("5/10s", Algorithm::SlidingWindowLog),
            &[
                (7 * S, 1, true, 4, 0),
                (9 * S, 1, true, 3, 0),
                (12 * S, 1, true, 2, 0),
                (14 * S, 1, true, 1, 0),
                (15 * S, 1, true, 0, 0),
                (15 * S, 1, false, 0, 2 * S as i64),
                (15 * S, 2, false, 0, 4 * S as i64),
                (16_999_999, 1, false, 0, 1),
                (17 * S, 1, true, 0, 0),
                (17 * S, 6, false, 0, -1),
            ],
        );
    }

    #[test]
    fn entries_are_pairs_not_units() {
        check(
            limit_with("1000000/2s", Algorithm::SlidingWindowLog),
            &[
                (0, 1, true, 999_999, 0),
                (S, 999_999, true, 0, 0),
                (S, 1, false, 0, S as i64),
                (2 * S, 1, true, 0, 0),
                (2 * S, 1, false, 0, S as i64),
            ],
        );
    }

    #[test]
    fn sub_buckets_count_whole() {
        let limit = Limit::per(4, std::time::Duration::from_secs(4)).buckets(4).build().unwrap();
        check(
            limit,
            &[
                (900_000, 4, true, 0, 0),
                // The sub-bucket [0 s, 1 s) counts until it has left the trailing period whole.
                (4_900_000, 1, false, 0, 100_000),
                (5 * S, 4, true, 0, 0),
            ],
        );
    }

    #[test]
    fn beyond_the_cap_neighbours_merge_onto_the_later() {
        let limit = limit_with("1000000/1h", Algorithm::SlidingWindowLog);
        let mut state = SlidingLogState::fresh(Micros::ZERO);
        for second in 0..MAX_ENTRIES as u64 {
            // The two closest entries are those at 500 s and at 500.5 s.
            let at = if second == 501 { 500 * S + S / 2 } else { second * S };
            state.charge(&limit, 1, Micros::new(at));
        }
        // The last entry made the log full. All others are equally close: every other one of the
        // oldest merged.
        assert_eq!(state.entries.len(), MAX_ENTRIES - MERGE_MAX);
        let before = SlidingLogEntry { at: 499 * S, sum: 500 };
        let merged = SlidingLogEntry { at: 500 * S + S / 2, sum: 502 };
        let place = state.entries.iter().position(|entry| *entry == before).unwrap();
        assert_eq!(state.entries[place + 1], merged);
        assert_eq!(state.entries[1], SlidingLogEntry { at: 2 * S, sum: 3 });
        assert_eq!(state.used(&limit, Micros::new(1_023 * S)), MAX_ENTRIES as u64);
    }

    /// Would catch: neighbours that merge again and again into one entry that expires late.
    #[test]
    fn however_many_instants_little_is_held_back_for_long() {
        let limit = limit_with("1000000/1000s", Algorithm::SlidingWindowLog);
        let mut state = SlidingLogState::fresh(Micros::ZERO);
        // Ten times as many instants per period as a log may have entries.
        for instant in 0..50_000_u64 {
            let now = Micros::new(instant * S / 10);
            state.charge(&limit, 1, now);
            assert!(state.entries.len() < MAX_ENTRIES);
            let used = state.used(&limit, now);
            let exact = (instant + 1).min(10_000);
            assert!((exact..=exact + exact / 100).contains(&used), "{used} of {exact}");
        }
    }

    #[test]
    fn a_jumped_clock_moves_the_whole_log() {
        let limit = limit_with("3/10s", Algorithm::SlidingWindowLog);
        let mut state = SlidingLogState::fresh(Micros::ZERO);
        for at in [100, 103, 105] {
            state.charge(&limit, 1, Micros::from_secs(at));
        }
        // 105 s is more than a period ahead of 50 s: the log reads as 45, 48, 50 s.
        let refused = state.judge(&limit, 1, Micros::from_secs(50));
        assert_eq!((refused.retry_after, refused.jumped), (Wait::from_micros(5 * S), true));
        state.charge(&limit, 0, Micros::from_secs(50));
        let instants: Vec<_> = state.entries.iter().map(|entry| entry.at / S).collect();
        assert_eq!(instants, [45, 48, 50]);
    }
}
