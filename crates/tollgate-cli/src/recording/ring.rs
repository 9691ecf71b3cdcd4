//! `TrafficRing`: the requests of the last hour, of as many callers as there is room for.
//!
//! When it is full, the share of callers is halved and the callers outside the new share are dropped. If a few
//! callers make most of the traffic, so that halving would leave next to nothing, the oldest requests of all
//! are dropped instead. Either way every request of a kept caller since [`RecordedTraffic::from`] is there.

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate::Micros;

use super::entry::{PackedEntry, RecordedRequest, entries};
use super::sampling::SampleShare;

/// Longest time that a request is kept.
pub(super) const KEPT_US: u64 = 3_600_000_000;

/// Longest time between the first and the last request of a chunk, which is dropped as a whole.
const CHUNK_US: u64 = 60_000_000;

/// Bytes of one chunk.
pub(super) const CHUNK_BYTES: usize = 32 << 10;

/// Mean bytes of a request that the ring has room for.
const BYTES_PER_ENTRY: usize = 256;

/// Packed requests of some time, roughly in order.
#[derive(Clone, Debug, Default)]
pub(super) struct TrafficChunk {
    pub(super) packed: Vec<u8>,
    pub(super) entries: usize,
    pub(super) first_at: Micros,
    pub(super) last_at: Micros,
}

impl TrafficChunk {
    /// Notes an entry of this instant, which was just packed.
    pub(super) fn note(&mut self, at: Micros) {
        self.first_at = if self.entries == 0 { at } else { self.first_at.min(at) };
        self.last_at = self.last_at.max(at);
        self.entries += 1;
    }

    pub(super) fn append(&mut self, other: &TrafficChunk) {
        self.first_at = if self.entries == 0 { other.first_at } else { self.first_at };
        self.first_at = self.first_at.min(other.first_at);
        self.last_at = self.last_at.max(other.last_at);
        self.entries += other.entries;
        self.packed.extend_from_slice(&other.packed);
    }

    /// The entries that pass a test, as a chunk of their own.
    pub(super) fn filtered(&self, keeps: impl Fn(&PackedEntry<'_>) -> bool) -> TrafficChunk {
        let mut kept = TrafficChunk::default();
        for entry in entries(&self.packed).filter(keeps) {
            kept.packed.extend_from_slice(entry.bytes());
            kept.note(entry.at());
        }
        kept.packed.shrink_to_fit();
        kept
    }
}

/// The ring. Bounds: `entries_max` requests, and [`BYTES_PER_ENTRY`] times as many bytes.
#[derive(Debug)]
pub(super) struct TrafficRing {
    chunks: VecDeque<Arc<TrafficChunk>>,
    entries: usize,
    bytes: usize,
    entries_max: usize,
    /// The share that is recorded.
    share: SampleShare,
    /// The share that is complete since `complete_from`. It is smaller than the share that is recorded for an
    /// hour after that was doubled.
    complete: SampleShare,
    complete_from: Micros,
    /// The last change of the share.
    changed_at: Micros,
}

/// The contents of a ring at an instant.
#[derive(Clone, Debug)]
pub(crate) struct RecordedTraffic {
    /// Bound: the chunks of the ring.
    chunks: Vec<Arc<TrafficChunk>>,
    /// The share of callers whose requests are all there.
    pub(crate) share: SampleShare,
    /// The instant since which they are all there.
    pub(crate) from: Micros,
}

impl TrafficRing {
    pub(super) fn new(entries_max: usize, now: Micros) -> TrafficRing {
        TrafficRing {
            chunks: VecDeque::new(),
            entries: 0,
            bytes: 0,
            entries_max,
            share: SampleShare::ALL,
            complete: SampleShare::ALL,
            complete_from: now,
            changed_at: now,
        }
    }

    /// The share whose requests the ring wants.
    pub(super) fn share(&self) -> SampleShare {
        self.share
    }

    fn bytes_max(&self) -> usize {
        self.entries_max.saturating_mul(BYTES_PER_ENTRY).max(4 * CHUNK_BYTES)
    }

    /// Adds requests that were just recorded.
    pub(super) fn add(&mut self, chunk: TrafficChunk, now: Micros) {
        // Packed before the share was halved, or wanted by the file alone.
        let share = self.share;
        let outside = share != SampleShare::ALL
            && entries(&chunk.packed).any(|entry| !share.includes(entry.caller()));
        let mut chunk =
            if outside { chunk.filtered(|entry| share.includes(entry.caller())) } else { chunk };
        self.drop_old(now);
        if chunk.entries == 0 {
            return;
        }
        (self.entries, self.bytes) =
            (self.entries + chunk.entries, self.bytes + chunk.packed.len());
        let last = self.chunks.back_mut().and_then(Arc::get_mut);
        let has_room = |last: &&mut TrafficChunk| {
            let span_us = chunk.last_at.as_u64().saturating_sub(last.first_at.as_u64());
            span_us <= CHUNK_US && last.packed.len() + chunk.packed.len() <= CHUNK_BYTES
        };
        match last.filter(has_room) {
            Some(last) => last.append(&chunk),
            None => {
                chunk.packed.shrink_to_fit();
                self.chunks.push_back(Arc::new(chunk));
            }
        }
        while self.is_full() {
            self.make_room(now);
        }
        self.widen(now);
    }

    fn is_full(&self) -> bool {
        self.entries > self.entries_max || self.bytes > self.bytes_max()
    }

    /// Drops requests that are older than an hour, a chunk at a time.
    fn drop_old(&mut self, now: Micros) {
        let oldest = now.as_u64().saturating_sub(KEPT_US);
        while self.chunks.front().is_some_and(|chunk| chunk.last_at.as_u64() < oldest) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.chunks.pop_front() {
            self.entries -= first.entries;
            self.bytes -= first.packed.len();
        }
    }

    /// Halves the share, or drops the oldest requests if a few callers make most of the traffic.
    fn make_room(&mut self, now: Micros) {
        let half = self.share.halved();
        let all = self.chunks.iter().flat_map(|chunk| entries(&chunk.packed));
        let kept = all.filter(|entry| half.includes(entry.caller())).count();
        if kept >= self.entries / 8 && kept < self.entries && !self.share.is_smallest() {
            self.share = half;
            self.changed_at = now;
            self.complete = self.complete.max(half);
            self.keep_only(|entry| half.includes(entry.caller()));
        } else {
            self.drop_oldest_quarter();
        }
    }

    fn drop_oldest_quarter(&mut self) {
        let target = self.entries_max - self.entries_max / 4;
        let bytes_target = self.bytes_max() - self.bytes_max() / 4;
        while self.entries > target || self.bytes > bytes_target {
            let Some(first) = self.chunks.front() else { return };
            // Chunks of several threads overlap, so later ones may have entries of the same time.
            let after = Micros::new(first.last_at.as_u64() + 1);
            self.complete_from = self.complete_from.max(after);
            self.drop_first();
        }
    }

    fn keep_only(&mut self, keeps: impl Fn(&PackedEntry<'_>) -> bool) {
        let kept = self.chunks.iter().map(|chunk| chunk.filtered(&keeps));
        let kept: VecDeque<_> = kept.filter(|chunk| chunk.entries > 0).map(Arc::new).collect();
        self.entries = kept.iter().map(|chunk| chunk.entries).sum();
        self.bytes = kept.iter().map(|chunk| chunk.packed.len()).sum();
        self.chunks = kept;
    }

    /// Doubles the share if an hour of it leaves most of the room unused. Callers who join are shown after
    /// another hour, when all their requests are there.
    fn widen(&mut self, now: Micros) {
        if now.as_u64() < self.changed_at.as_u64().saturating_add(KEPT_US) {
            return;
        }
        let share = self.share;
        self.complete = share;
        if self.entries < self.entries_max / 4 && self.bytes < self.bytes_max() / 4 {
            self.share = share.doubled();
            self.changed_at = now;
        }
    }

    /// The contents of the ring.
    pub(super) fn recorded(&self, now: Micros) -> RecordedTraffic {
        let oldest = Micros::new(now.as_u64().saturating_sub(KEPT_US));
        RecordedTraffic {
            chunks: self.chunks.iter().cloned().collect(),
            share: self.complete,
            from: self.complete_from.max(oldest),
        }
    }
}

impl RecordedTraffic {
    /// The requests of the kept callers in order of time.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest<'_>> {
        let all = self.chunks.iter().flat_map(|chunk| entries(&chunk.packed));
        let kept =
            all.filter(|entry| self.share.includes(entry.caller()) && entry.at() >= self.from);
        let mut requests: Vec<_> = kept.filter_map(PackedEntry::read).collect();
        requests.sort_by_key(|request| request.at);
        requests
    }

    /// Returns true if these bytes are somewhere in it.
    #[cfg(test)]
    pub(super) fn contains_bytes(&self, bytes: &[u8]) -> bool {
        let mut windows = self.chunks.iter().flat_map(|chunk| chunk.packed.windows(bytes.len()));
        windows.any(|window| window == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::pack;
    use super::*;

    const START: Micros = Micros::new(1_700_000_000_000_000);

    fn after(us: u64) -> Micros {
        Micros::new(START.as_u64() + us)
    }

    fn ring(entries_max: usize) -> TrafficRing {
        TrafficRing::new(entries_max, START)
    }

    /// A caller's hash from its number, as even as a real one.
    fn hash(caller: u64) -> u64 {
        let mixed = (caller + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    /// Adds requests, of a caller at an instant each, as a thread would that decides them. Returns those that
    /// were in the share.
    fn add(ring: &mut TrafficRing, requests: impl Iterator<Item = (u64, Micros)>) {
        for (caller, at) in requests {
            if !ring.share.includes(hash(caller)) {
                continue;
            }
            let user = caller.to_string();
            let mut chunk = TrafficChunk::default();
            let request = RecordedRequest {
                at,
                caller: hash(caller),
                user: Some(&user),
                path: Some("/api/search"),
                ..RecordedRequest::default()
            };
            assert!(pack(&request, &mut chunk.packed));
            chunk.note(at);
            ring.add(chunk, at);
            assert!(ring.entries <= ring.entries_max && ring.bytes <= ring.bytes_max());
            assert_eq!(ring.entries, ring.chunks.iter().map(|chunk| chunk.entries).sum::<usize>());
        }
    }

    /// Checks that each kept caller has all the requests that it sent since `from`. Returns the callers.
    fn complete_callers(ring: &TrafficRing, sent: &[(u64, Micros)], now: Micros) -> usize {
        let recorded = ring.recorded(now);
        let mut got: Vec<(u64, Micros)> = recorded
            .requests()
            .iter()
            .map(|request| (request.user.unwrap().parse().unwrap(), request.at))
            .collect();
        let is_kept = |(caller, at): &&(u64, Micros)| {
            recorded.share.includes(hash(*caller)) && *at >= recorded.from && *at <= now
        };
        let mut want: Vec<_> = sent.iter().filter(is_kept).copied().collect();
        assert!(got.is_sorted_by_key(|(_, at)| *at));
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want);
        got.dedup_by_key(|(caller, _)| *caller);
        got.len()
    }

    #[test]
    fn a_kept_caller_is_complete_however_often_the_share_is_halved() {
        for (callers, entries_max) in [(300, 1_000), (5_000, 1_000), (40, 200)] {
            let (mut ring, mut state) = (ring(entries_max), 7_u64);
            let mut sent = Vec::new();
            for number in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                sent.push(((state >> 33) % callers, after(number * 1_000)));
            }
            for part in sent.chunks(4_000) {
                add(&mut ring, part.iter().copied());
                let kept = complete_callers(&ring, &sent, part.last().unwrap().1);
                assert!(kept > 0, "{callers} callers");
            }
            let share = ring.share.one_in();
            assert!(share >= 8, "20,000 requests fit into {entries_max} only as 1/{share}");
            assert!(ring.entries >= entries_max / 16, "the share became too small: 1/{share}");
        }
    }

    #[test]
    fn one_heavy_caller_does_not_empty_the_ring() {
        let mut ring = ring(400);
        let sent: Vec<_> = (0..5_000).map(|number| (3, after(number * 1_000))).collect();
        add(&mut ring, sent.iter().copied());
        let now = sent.last().unwrap().1;
        assert_eq!((ring.share, complete_callers(&ring, &sent, now)), (SampleShare::ALL, 1));
        let recorded = ring.recorded(now);
        assert!(recorded.from > START, "the oldest requests were dropped");
        assert!(recorded.requests().len() >= 100);
    }

    #[test]
    fn requests_are_kept_for_an_hour() {
        let mut ring = ring(1_000);
        let sent: Vec<_> = (0..20).map(|number| (number, after(number * 600_000_000))).collect();
        for one in &sent {
            add(&mut ring, [*one].into_iter());
        }
        let now = sent.last().unwrap().1;
        assert_eq!(complete_callers(&ring, &sent, now), 7, "one each ten minutes, both ends");
        let later = Micros::new(now.as_u64() + KEPT_US + 1);
        assert_eq!(ring.recorded(later).requests(), []);
    }

    #[test]
    fn the_share_grows_back_and_callers_who_join_are_shown_once_complete() {
        let mut ring = ring(1_000);
        let burst: Vec<_> = (0..8_000).map(|number| (number % 2_000, after(number))).collect();
        add(&mut ring, burst.iter().copied());
        let least = ring.share;
        assert!(least.one_in() >= 8);
        let mut sent = burst;
        for minute in 1..=60 * 12 {
            let quiet: Vec<_> = (0..3)
                .map(|number| ((minute * 3 + number) % 2_000, after(minute * 60_000_000 + number)))
                .collect();
            add(&mut ring, quiet.iter().copied());
            sent.extend(quiet);
            if minute % 20 == 0 {
                complete_callers(&ring, &sent, after(minute * 60_000_000 + 3));
            }
        }
        assert!(ring.share < least, "still 1/{}", ring.share.one_in());
        assert_eq!(ring.recorded(after(60 * 12 * 60_000_000)).share, SampleShare::ALL);
    }
}
