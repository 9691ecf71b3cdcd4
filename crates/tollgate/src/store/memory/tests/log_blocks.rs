//! The blocks of logs: whatever happens to a log, its block is in use exactly as long as it is.

use super::*;
use crate::algorithm::sliding_window_log;
use crate::store::memory::secret::HashSecret;

const PAGE: usize = 256 * 1_024;

fn log(units: u64) -> Limit {
    built(Limit::per_hour(units).algorithm(Algorithm::SlidingWindowLog))
}

/// A log charged with one unit in each of so many seconds, before 8,000 s.
fn charged(limit: &Limit, instants: u64) -> State {
    let mut state = State::fresh(limit, at(7_200));
    (0..instants).for_each(|nth| algorithm::charge(limit, &mut state, 1, at(7_200 + nth)));
    state
}

/// Checks that the blocks in use are those of the states in the tables, each once.
fn assert_accounted(store: &MemoryStore) {
    let tables = [Some(&store.keys), store.overflow.get()].into_iter().flatten();
    let records = tables.flat_map(SlotTable::each).map(|(_, seen)| seen.record());
    store.arena.assert_only(records);
}

/// Forgets every state and checks that logs then take no memory.
fn assert_returned(store: &MemoryStore) {
    for table in [Some(&store.keys), store.overflow.get()].into_iter().flatten() {
        let keys: Vec<u64> = table.each().map(|(_, seen)| seen.key).collect();
        for key in keys {
            assert!(table.remove(key, &store.policy(at(1))));
        }
    }
    assert_accounted(store);
    assert_eq!(store.stats().log_bytes, 0);
}

/// A table full of limited callers has no room for the copies of three others: their blocks are given
/// back each time, and a log that comes afterwards counts as exactly as ever.
#[test]
fn copies_that_find_no_room_take_no_memory() {
    let limit = log(100);
    let store = MemoryStore::new(16);
    let short = built(Limit::per_day(1).name("short"));
    for key in 0..1_000 {
        let _ = take(&store, &short, &format!("limited:{key}"), at(7_200));
    }
    let _ = take(&store, &limit, "overflow", at(7_200));
    let state = charged(&limit, 90);
    for _ in 0..4_000 {
        for key in ["a", "b", "c"] {
            store.seed(&limit, key.into(), &state, at(7_300));
        }
    }
    assert_accounted(&store);
    assert_eq!(store.stats().log_bytes, 0);
    let store = MemoryStore { keys: SlotTable::new(1_000), ..store };
    let admitted = (0..300).filter(|nth| take(&store, &limit, "new", at(7_300 + nth)).allowed());
    assert_eq!(admitted.count(), 100);
}

/// A log that never becomes a record gives back what it took, and leaves alone what its record names.
#[test]
fn a_log_that_is_dropped_gives_back_what_it_took() {
    let limit = log(2_000);
    let store = MemoryStore::new(100);
    for instants in [1, 2, 4, 5, 17, 300] {
        let mut dropped = SlotState::fresh_in_slot(&limit, at(7_200), &store.arena);
        assert!(dropped.become_copy_of(&charged(&limit, instants)));
        drop(dropped);
        assert_accounted(&store);
    }
    store.seed(&limit, "anna".into(), &charged(&limit, 4), at(8_000));
    let slot = store.keys.find(slot_key(store.secret.hash(b"anna"), &limit)).unwrap();
    let mut locked = slot.lock();
    let record = locked.snapshot().record();
    let grown = || {
        let mut held = SlotState::from_record(&limit, record, &store.arena).unwrap();
        (0..40).for_each(|nth| held.charge(&limit, 1, at(8_000 + nth)));
        held
    };
    drop(grown());
    store.arena.assert_only([record].into_iter());
    assert_eq!(
        SlotState::from_record(&limit, record, &store.arena).unwrap().used(&limit, at(8_000)),
        4
    );
    locked.write(grown().into_record(&limit, record.tag, &store.arena));
    drop(locked);
    assert_accounted(&store);
    assert_eq!(store.balance(&limit, "anna".into(), at(8_040)), 2_000 - 44);
    assert_returned(&store);
}

/// Pages whose small blocks are all free serve large ones, and the other way round.
#[test]
fn a_page_that_nobody_uses_serves_logs_of_any_size() {
    let limit = log(2_000);
    let store = MemoryStore::with_log_bytes(10_000, 2 * PAGE);
    let seed = |count: u64, instants: u64| {
        for key in 0..count {
            store.seed(&limit, (&*format!("{key}")).into(), &charged(&limit, instants), at(8_300));
        }
        assert_accounted(&store);
        store.stats().log_bytes
    };
    let exact = |count: u64, instants: u64| {
        (0..count).all(|key| {
            let name = format!("{key}");
            let slot = slot_key(store.secret.hash(name.as_bytes()), &limit);
            let record = store.keys.find(slot).unwrap().read().record();
            let state = store.arena.open(&limit, record).unwrap();
            sliding_window_log::SlidingLogEntries::len(&state.entries) as u64 == instants
        })
    };
    for round in 0..3 {
        for (count, instants) in [(5_000, 4), (30, 1_000), (400, 60), (1_900, 16), (120, 250)] {
            let bytes = seed(count, instants);
            assert_eq!((bytes, exact(count, instants)), (2 * PAGE, true), "{round}: {instants}");
            for key in 0..count {
                assert!(store.reset(&limit, (&*format!("{key}")).into(), at(8_300)));
            }
            assert_eq!(store.stats().log_bytes, 0);
        }
    }
}

/// Would catch: callers who are gone for good and keep their blocks, because the table is not full
/// enough to be swept, while those who are here have to merge their instants.
#[test]
fn logs_of_callers_who_are_gone_make_room_for_others() {
    let limit = log(100);
    let store = MemoryStore::with_log_bytes(20_000, PAGE);
    for second in 0..3 {
        for caller in 0..3_640 {
            let _ = take(&store, &limit, &format!("gone:{caller}"), at(7_200 + second));
        }
    }
    assert_accounted(&store);
    let ask = |name: &str, second: u64| {
        (0..300).filter(|nth| take(&store, &limit, name, at(second + nth)).allowed()).count()
    };
    // Two hours later: each log that cannot grow sweeps 16 lines of 12,352.
    for caller in 0..10 {
        assert_eq!(ask(&format!("early:{caller}"), 14_400), 100);
    }
    assert_accounted(&store);
    let now = 14_400 + 3_599;
    let late = |second: u64| take(&store, &limit, "late", at(now + second));
    assert!((0..100).all(|second| late(second).allowed()));
    let waits: Vec<u64> =
        (0..100).map(|nth| late(100 + nth).retry_after().seconds().unwrap()).collect();
    assert_eq!(
        waits,
        (0..100).map(|nth| 3_500 - nth).collect::<Vec<u64>>(),
        "instants were merged"
    );
}

struct LogRandom(u64);

impl LogRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Logs of three sizes, each with two versions of its numbers, and something else that takes places.
fn mixed() -> Vec<Limit> {
    let mut limits = Vec::new();
    for (name, units) in [("small", 4), ("middle", 40), ("large", 1_500)] {
        let of = |units| Limit::per_minute(units).name(name).algorithm(Algorithm::SlidingWindowLog);
        limits.push(built(of(units)));
        limits.push(built(of(units + 3).on_change(OnChange::Scale)));
    }
    limits.push(built(Limit::per_minute(30).name("buckets").buckets(12)));
    limits.push(built(Limit::per_minute(2).name("window").algorithm(Algorithm::FixedWindow)));
    limits
}

/// One random step of everything that can happen to a log.
fn step(store: &MemoryStore, limits: &[Limit], random: &mut LogRandom, now: &mut u64, keys: u64) {
    *now += random.below(1_500_000) * (1 - random.below(9).min(1)) + random.below(50_000);
    let instant = Micros::new(*now);
    let limit = &limits[random.below(limits.len() as u64) as usize];
    let name = format!("key:{}", random.below(keys));
    let check = Check::new(limit, &name).cost(1 + random.below(3));
    match random.below(24) {
        0 => drop(store.reset(limit, check.key, instant)),
        1 => store.refund(limit, check.key, None, 1 + random.below(9), instant),
        2 => {
            let other = &limits[random.below(limits.len() as u64) as usize];
            let another = format!("key:{}", random.below(keys));
            let checks = [check, Check::new(other, &another), Check::new(limit, &another)];
            let _ = store.decide_now(&checks, instant);
        }
        3..=6 => {
            let mut state = State::fresh(limit, instant);
            for _ in 0..random.below(8).pow(2) * random.below(20) {
                *now += random.below(5_000);
                algorithm::charge(limit, &mut state, 1, Micros::new(*now));
            }
            store.seed(limit, check.key, &state, Micros::new(*now));
        }
        7 => drop(store.decide_one(&check.act(Act::Force).cost(random.below(40)), instant)),
        8 => drop(store.decide_one(&check.act(Act::Peek), instant)),
        9 => drop(store.decide_one(&Check { count_denied: true, ..check }, instant)),
        10 => drop(
            store.decide_one(&check.act(Act::UpTo), Micros::new(*now - random.below(99_000_000))),
        ),
        _ => drop(store.decide_one(&check, instant)),
    }
}

/// Would catch: any way in which a log gets or loses its block without the books, or two logs get one.
#[test]
fn whatever_happens_every_block_is_accounted_for() {
    let limits = mixed();
    for seed in 0..40 {
        let mut random = LogRandom(seed);
        // With plenty of room, with places for a few, and with bytes for a few.
        let (keys, pages) = [(400, 64), (16, 64), (400, 3)][seed as usize % 3];
        let mut store = MemoryStore::with_log_bytes(keys, pages * PAGE);
        store.secret = HashSecret::from_words([seed, 7]);
        let mut now = 7_200 * S;
        for count in 0..3_000 {
            step(&store, &limits, &mut random, &mut now, 100);
            if count % 500 == 499 {
                assert_accounted(&store);
                assert!(store.stats().log_bytes <= pages * PAGE);
            }
        }
        let bytes = store.to_bytes(Micros::new(now));
        let smaller = MemoryStore::with_log_bytes(keys / 4, 2 * PAGE);
        let (smaller, _) = smaller.restore(&bytes, Micros::new(now)).unwrap();
        for store in [store, smaller] {
            assert_accounted(&store);
            assert_returned(&store);
        }
    }
}

/// Would catch: a race between those who find, insert, evict, copy and forget the same logs that loses
/// a block or gives it to two.
#[test]
fn many_threads_leave_the_blocks_that_live_logs_need() {
    let limits = mixed();
    for round in 0..6 {
        let (keys, pages) = [(16, 8), (200, 3)][round % 2];
        let store = MemoryStore::with_log_bytes(keys, pages * PAGE);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (store, limits) = (&store, &limits);
                scope.spawn(move || {
                    let (mut random, mut now) = (LogRandom(thread + 100 * round as u64), 7_200 * S);
                    for _ in 0..2_000 {
                        step(store, limits, &mut random, &mut now, 40);
                    }
                });
            }
        });
        assert_accounted(&store);
        assert_returned(&store);
    }
}
