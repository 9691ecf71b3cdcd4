//! Eviction from a full table: the state that has used the smallest share of its capacity.

use std::cmp::Ordering::Equal;
use std::collections::HashMap;

use super::*;
use crate::store::memory::secret::HashSecret;

/// A store whose keys fall into the same places in every run.
fn repeatable_store(max_keys: usize) -> MemoryStore {
    MemoryStore { secret: HashSecret::from_words([1, 2]), ..MemoryStore::new(max_keys) }
}

/// `units` per hour, of every kind of state.
fn every_kind(units: u64) -> Vec<Limit> {
    let of = |algorithm| Limit::per_hour(units).algorithm(algorithm);
    let window = || of(Algorithm::FixedWindow);
    let more = [
        of(Algorithm::LeakyBucket).queue().name("queue"),
        of(Algorithm::SlidingWindowCounter).buckets(6),
        window().align(Align::FirstHit),
        window().stagger(),
    ];
    Algorithm::ALL.map(of).into_iter().chain(more).map(built).collect()
}

/// 500 callers have used 9 of 10, one unit each second. Then three times as many strangers as there
/// are slots take one unit each. A caller could only be evicted if all 16 or 32 slots of a stranger
/// belonged to callers, and 500 callers in 24,704 slots fill no bucket: none is evicted.
#[test]
fn a_flood_of_strangers_evicts_no_caller_that_used_more() {
    const CALLERS: usize = 500;
    for limit in every_kind(10) {
        let store = repeatable_store(20_000);
        let callers: Vec<String> = (0..CALLERS).map(|caller| format!("caller:{caller}")).collect();
        for second in 0..9 {
            for caller in &callers {
                assert!(take(&store, &limit, caller, at(7_200 + second)).allowed());
            }
        }
        for stranger in 0..60_000 {
            let second = 7_209 + stranger / 6_000;
            let _ = take(&store, &limit, &format!("stranger:{stranger}"), at(second));
        }
        let now = at(7_219);
        let peek = |caller: &String| store.decide_one(&Check::new(&limit, caller).cost(0), now);
        let forgotten = callers.iter().filter(|caller| peek(caller).remaining() > 1).count();
        assert_eq!(forgotten, 0, "{limit} evicted so many of {CALLERS}");
        assert!(store.stats().evicted > 30_000, "{limit}: {:?}", store.stats());
    }
}

/// Of limited keys in 80 % of all slots, at most 1 in 1,000 finds no slot, in small tables too.
#[test]
fn nearly_all_keys_of_a_table_that_fills_up_find_a_slot() {
    let limit = built(Limit::per_hour(1));
    for max_keys in [1_000, 4_000, 16_384, 40_000] {
        let store = repeatable_store(max_keys);
        let keys = store.stats().slots * 8 / 10;
        for key in 0..keys {
            assert!(
                take(&store, &limit, &format!("key:{key}"), at(7_200)).allowed() || key > 1_000
            );
        }
        let without_slot = keys - store.stats().keys;
        assert!(without_slot <= keys / 1_000, "{max_keys}: {without_slot} of {keys}");
    }
}

/// A small generator, so that a failure comes back with its seed.
struct EvictionRandom(u64);

impl EvictionRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The naive table: every state in a map, judged by the pure algorithms.
struct NaiveTable {
    store: MemoryStore,
    states: HashMap<u64, (Limit, State)>,
}

/// The worth of a state in the naive table: units used, capacity, and the wait until it is fresh.
type NaiveShare = (u64, u64, Wait);

fn compare(one: &NaiveShare, other: &NaiveShare) -> std::cmp::Ordering {
    let [left, right] =
        [(one, other), (other, one)].map(|(a, b)| u128::from(a.0) * u128::from(b.1));
    left.cmp(&right).then(one.2.cmp(&other.2))
}

impl NaiveTable {
    fn keys(&self) -> HashSet<u64> {
        self.store.keys.each().map(|(_, seen)| seen.key).collect()
    }

    fn share(&self, key: u64, now: Micros) -> NaiveShare {
        let (limit, state) = &self.states[&key];
        let present = algorithm::judge(limit, state, 0, now);
        (limit.capacity() - present.remaining, limit.capacity(), present.reset_after)
    }

    /// Takes, and compares who had to leave with who should.
    fn take(&mut self, limit: &Limit, name: &str, cost: u64, now: Micros) {
        let key = slot_key(self.store.secret.hash(name.as_bytes()), limit);
        let before = self.keys();
        let places: Vec<u64> = self.store.keys.places_of(key).iter().map(|seen| seen.key).collect();
        let decision = self.store.decide_one(&Check::new(limit, name).cost(cost), now);
        let after = self.keys();
        if decision.decided_by() == DecidedBy::Memory && decision.granted() > 0 {
            let fresh = || (limit.clone(), State::fresh(limit, now));
            let (_, state) = self.states.entry(key).or_insert_with(fresh);
            algorithm::charge(limit, state, cost, now);
        }
        let is_fresh = |key: &u64| self.share(*key, now).2.is_zero();
        let mut gone: Vec<u64> =
            before.difference(&after).copied().filter(|key| !is_fresh(key)).collect();
        let has_room = places.iter().any(|key| *key == 0 || is_fresh(key));
        let inserted = !before.contains(&key) && after.contains(&key);
        let open = |key: &&u64| {
            let (used, capacity, _) = self.share(**key, now);
            used < capacity
        };
        if !inserted || has_room {
            assert_eq!(gone, [], "{limit}: a state was evicted although no key needed its slot");
        } else {
            let victim = gone.pop().expect("one state had to be evicted");
            assert_eq!(gone, [], "{limit}: more than one left");
            let shares = places.iter().filter(open).map(|key| self.share(*key, now));
            let least = shares.min_by(compare).expect("the limited stay");
            let share = self.share(victim, now);
            assert_eq!(compare(&share, &least), Equal, "{share:?} left instead of {least:?}");
        }
        if decision.decided_by() == DecidedBy::Overflow {
            assert!(!has_room && !places.iter().any(|key| open(&key)), "{limit}: there was room");
        }
        self.states.retain(|key, _| after.contains(key));
    }
}

/// Would catch: an order of victims that is not that of the documents, for any algorithm, between
/// limits of different sizes, and at instants at which some states are nearly or wholly fresh again.
#[test]
fn the_victim_is_the_naive_table_s() {
    let mut limits = Vec::new();
    for units in [3, 10, 97] {
        let named = |limit: Limit| {
            let name = format!("{units}-{}", limit.name());
            let builder = Limit::per_hour(units).name(name).algorithm(limit.algorithm());
            match (limit.is_queue(), limit.precision()) {
                (true, _) => builder.queue(),
                (_, crate::limit::Precision::Buckets(buckets)) => builder.buckets(buckets),
                _ => builder.align(limit.align()),
            }
        };
        let kinds = every_kind(units).into_iter().filter(|limit| !limit.is_staggered());
        limits.extend(kinds.map(named).map(built));
    }
    for seed in 0..12 {
        let mut random = EvictionRandom(seed);
        let mut naive = NaiveTable { store: repeatable_store(20), states: HashMap::new() };
        let mut now = 7_200_000_000;
        for _ in 0..4_000 {
            now += match random.below(8) {
                0 => random.below(120 * S),
                1 => random.below(1_000),
                _ => 0,
            };
            let limit = &limits[random.below(limits.len() as u64) as usize];
            let cost = 1 + random.below(limit.capacity().min(12));
            let name = format!("key:{}", random.below(60));
            naive.take(limit, &name, cost, Micros::new(now));
        }
        let stats = naive.store.stats();
        assert!(stats.evicted > 300, "seed {seed}: {stats:?}");
    }
}

/// Restored and copied states compete for slots with the others: those that have used most stay, in
/// whatever order they come.
#[test]
fn a_copy_takes_no_place_of_one_that_used_more() {
    for limit in every_kind(10) {
        let store = repeatable_store(16);
        let slots = store.stats().slots;
        let used = |count: u64| {
            let mut state = State::fresh(&limit, at(7_200));
            (0..count).for_each(|nth| algorithm::charge(&limit, &mut state, 1, at(7_200 + nth)));
            state
        };
        let (heavy, light) = (used(9), used(2));
        let seed = |name: &str, state: &State| store.seed(&limit, name.into(), state, at(7_210));
        for key in 0..20 * slots {
            seed(&format!("heavy:{key}"), &heavy);
        }
        let heavies = || {
            let names = (0..20 * slots).map(|key| format!("heavy:{key}"));
            let balances = names.map(|name| store.balance(&limit, (&*name).into(), at(7_210)));
            balances.filter(|balance| *balance <= 2).count()
        };
        assert_eq!(heavies(), slots, "{limit}: the table is full of them");
        for key in 0..20 * slots {
            seed(&format!("light:{key}"), &light);
        }
        assert_eq!(heavies(), slots, "{limit}: copies of those who used less pushed others out");
        // Limited states evict the others.
        let spent = used(10);
        for key in 0..20 * slots {
            seed(&format!("spent:{key}"), &spent);
        }
        assert_eq!(heavies(), 0, "{limit}: the limited found no place");
    }
}

/// Would catch: a smaller table that keeps the states that happen to be restored last.
#[test]
fn a_smaller_table_restores_those_who_used_most() {
    for limit in every_kind(10) {
        let store = repeatable_store(2_000);
        for caller in 0..200 {
            for nth in 0..9 {
                let _ = take(&store, &limit, &format!("heavy:{caller}"), at(7_200 + nth));
            }
        }
        for caller in 0..1_500 {
            let _ = take(&store, &limit, &format!("light:{caller}"), at(7_209));
        }
        let bytes = store.to_bytes(at(7_210));
        let (small, restored) = MemoryStore::new(250).restore(&bytes, at(7_210)).unwrap();
        let heavies = (0..200).filter(|caller| {
            let name = format!("heavy:{caller}");
            small.balance(&limit, (&*name).into(), at(7_210)) <= 2
        });
        assert_eq!((heavies.count(), restored.keys > 500), (200, true), "{limit}: {restored:?}");
    }
}
