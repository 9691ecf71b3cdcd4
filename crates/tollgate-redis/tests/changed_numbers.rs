//! A bucket whose numbers change, on a real server with injected time: two instances with different numbers
//! together admit no more than the larger limit would, and a caller that waits as told is admitted, also as a
//! peek told. Each answer is that of the memory, of whatever size the numbers are.

use std::time::Duration;

use crate::shared;
use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use tollgate::{Act, Algorithm, Check, Decision, Limit, MemoryStore, Micros, Wait};
use tollgate_redis::{RedisOptions, RedisStore, TimeSource};

const START: Micros = Micros::from_secs(1_795_000_000);
const RUNS: u64 = 150;
const STEPS: usize = 40;

fn bucket(kind: u64, units: u64, period_us: u64, capacity: u64) -> Limit {
    let limit = Limit::per(units, Duration::from_micros(period_us)).burst(capacity).name("changed");
    let limit = match kind {
        0 => limit,
        1 => limit.algorithm(Algorithm::LeakyBucket),
        _ => limit.algorithm(Algorithm::LeakyBucket).queue(),
    };
    limit.build().unwrap()
}

async fn store_at(server: &TestRedis) -> RedisStore {
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    shared::store_at(server, options).await
}

/// The parts of an answer that are the same in every store.
fn answer_of(decision: &Decision) -> (bool, u64, Wait, Wait) {
    let waits = (decision.retry_after(), decision.delay());
    (decision.allowed(), decision.remaining(), waits.0, waits.1)
}

async fn decide(store: &RedisStore, check: Check<'_>, now: Micros) -> Decision {
    let mut outcome = [tollgate::Outcome::default()];
    store.decide_each(&[check], now, &mut outcome).await.expect("an answer")
}

/// One run: two instances, each with numbers of its own, and a caller that alternates between them.
struct ChangingRun {
    limits: [Limit; 2],
    stores: [RedisStore; 2],
    memory: MemoryStore,
    key: String,
    now: Micros,
    random: SplitMix64,
    granted: Vec<(Micros, u64)>,
}

impl ChangingRun {
    async fn traffic(&mut self) {
        for _ in 0..STEPS {
            let gap = *self.random.pick(&[0, 0, 1, 2_000, 300_000, 5_000_000]);
            self.now = self.now.after(Wait::from_micros(self.random.below(gap + 1)));
            let which = self.random.below(2) as usize;
            let act = *self.random.pick(&[Act::Take, Act::Take, Act::Take, Act::UpTo, Act::Peek]);
            let cost = self.random.between(1, 6);
            let check = Check::new(&self.limits[which], &*self.key).cost(cost).act(act);
            let decision = decide(&self.stores[which], check, self.now).await;
            let in_memory = self.memory.decide_one(&check, self.now);
            assert_eq!(answer_of(&decision), answer_of(&in_memory), "{}", self.limits[which]);
            self.granted.push((self.now, decision.granted()));
        }
    }

    fn assert_bounded(&self, seed: u64) {
        let most = |of: fn(&Limit) -> u64| u128::from(self.limits.iter().map(of).max().unwrap());
        let (rate, capacity) = (most(Limit::units), most(Limit::capacity));
        let period = u128::from(self.limits[0].period_us());
        for (first, (start, _)) in self.granted.iter().enumerate() {
            let mut sum = 0;
            for (at, units) in &self.granted[first..] {
                sum += u128::from(*units);
                let passed = u128::from(at.as_u64() - start.as_u64());
                let bound = (capacity * period + rate * passed) / period;
                assert!(sum <= bound, "seed {seed}: {sum} of {bound} in {passed} us");
            }
        }
    }

    async fn assert_waits_come_true(&self, seed: u64) {
        let which = (seed % 2) as usize;
        let (store, limit) = (&self.stores[which], &self.limits[which]);
        let since = self.now.as_u64() - seed * 40_000;
        let limit = &limit.clone().with_numbers_since(Some(Micros::new(since)));
        let check = Check::new(limit, &*self.key).cost(limit.capacity().min(2));
        // A peek or a take is the first to look.
        let is_peek = !seed.is_multiple_of(3);
        let act = if is_peek { Act::Peek } else { Act::Take };
        let refused = decide(store, check.act(act), self.now).await;
        if refused.allowed() {
            return;
        }
        let wait = refused.retry_after().as_micros().expect("the cost fits");
        assert!(wait <= limit.full_refill_us(), "seed {seed}: {wait} us under {limit}");
        let then = self.now.as_u64() + wait;
        if !is_peek {
            let early = decide(store, check, Micros::new(then - 1)).await;
            assert!(!early.allowed(), "seed {seed}: {limit}");
        }
        let ready = decide(store, check, Micros::new(then)).await;
        assert!(ready.allowed(), "seed {seed}: {limit}");
    }
}

#[tokio::test]
async fn instances_with_different_numbers_admit_no_more_than_the_larger() {
    let server = TestRedis::start();
    for seed in 0..RUNS {
        let mut random = SplitMix64::seeded(seed);
        let period = *random.pick(&[1_000_000, 1_000_003, 60_000_000, 3_600_000_000]);
        let kind = random.below(3);
        let mut limit = || {
            let units = *random.pick(&[1, 2, 7, 60, 6_000, 1_000_003]);
            let since = *random.pick(&[None, Some(0), Some(1), Some(200_000), Some(20_000_000)]);
            let since = since.map(|after| match after {
                0 => Micros::new(1),
                _ => START.after(Wait::from_micros(after)),
            });
            let limit = bucket(kind, units, period, *random.pick(&[1, 3, 5, 20, 100]));
            limit.with_numbers_since(since)
        };
        let limits = [limit(), limit()];
        let stores = [store_at(&server).await, store_at(&server).await];
        let key = format!("caller {seed}");
        let memory = MemoryStore::new(16);
        let granted = Vec::new();
        let mut run = ChangingRun { limits, stores, memory, key, now: START, random, granted };
        run.traffic().await;
        run.assert_bounded(seed);
        run.assert_waits_come_true(seed).await;
    }
}

#[tokio::test]
async fn a_raised_limit_helps_an_exhausted_caller_at_once() {
    let server = TestRedis::start();
    let store = store_at(&server).await;
    let minute = 60_000_000;
    for kind in 0..3 {
        let key = format!("caller {kind}");
        let (slow, fast) = (bucket(kind, 2, minute, 3), bucket(kind, 6_000, minute, 3));
        for _ in 0..4 {
            let _ = decide(&store, Check::new(&slow, &*key), START).await;
        }
        // A peek is the first to look.
        let fast = fast.with_numbers_since(Some(START));
        let peek = Check::new(&fast, &*key).act(Act::Peek);
        let refused = decide(&store, peek, START).await;
        assert_eq!(refused.retry_after(), Wait::from_micros(10_000), "{fast}");
        let then = START.after(refused.retry_after());
        assert!(decide(&store, Check::new(&fast, &*key), then).await.allowed(), "{fast}");
    }
}

const CENTURY_US: u64 = 100 * 36_525 * 864 * 1_000_000;

/// From 1 to 2^53 - 1, small and large alike.
fn any_size(random: &mut SplitMix64) -> u64 {
    (random.number() >> random.between(11, 63)).max(1)
}

/// A limit of any size whose bucket is full after 100 years.
fn bucket_of_any_size(kind: u64, period_us: u64, random: &mut SplitMix64) -> Limit {
    let units = any_size(random);
    let most = u128::from(CENTURY_US) * u128::from(units) / u128::from(period_us);
    let capacity = u128::from(any_size(random)).min(most) as u64;
    bucket(kind, units, period_us, capacity)
}

/// Takes, settlements and peeks under limits of any size, each on the server and in memory.
async fn extreme_run(server: &TestRedis, seed: u64) {
    let mut random = SplitMix64::seeded(seed);
    let (store, memory) = (store_at(server).await, MemoryStore::new(16));
    let kind = random.below(3);
    let any_period = any_size(&mut random).min(CENTURY_US);
    let period = *random.pick(&[1, 1_000_000, 86_400_000_000, CENTURY_US, any_period]);
    let limits: Vec<Limit> =
        (0..3).map(|_| bucket_of_any_size(kind, period, &mut random)).collect();
    let (key, mut now, mut last) = (format!("extreme {seed}"), START, Wait::ZERO);
    for step in 0..STEPS {
        let year = 31_557_600_000_000;
        let gap = any_size(&mut random).min(*random.pick(&[1, 1_000, 1_000_000, year]));
        let gap = *random.pick(&[0, 0, gap, last.as_micros().unwrap_or(0)]);
        if now.as_u64() + gap > START.as_u64() + CENTURY_US {
            break;
        }
        now = now.after(Wait::from_micros(gap));
        let limit = random.pick(&limits);
        let part = limit.capacity() / random.between(1, 9);
        let cost = *random.pick(&[1, 1, 2, part.max(1), limit.capacity()]);
        let check = Check::new(limit, &*key).cost(cost);
        if random.one_in(10) {
            memory.refund(limit, check.key(), None, cost, now);
            store.refund(limit, check.key(), None, cost, now).await.expect("an answer");
        }
        let act = *random.pick(&[Act::Take, Act::Take, Act::Take, Act::UpTo, Act::Force]);
        let check = if random.one_in(4) { check.count_denied() } else { check.act(act) };
        let (there, here) = (decide(&store, check, now).await, memory.decide_one(&check, now));
        let at = format!("seed {seed}, step {step}: {check:?} of {limits:?}");
        assert_eq!(answer_of(&there), answer_of(&here), "{at}");
        last = here.retry_after();
        for limit in &limits {
            let peek = Check::new(limit, &*key).act(Act::Peek);
            let (there, here) = (decide(&store, peek, now).await, memory.decide_one(&peek, now));
            assert_eq!(answer_of(&there), answer_of(&here), "{at}, peeked under {limit}");
        }
    }
}

#[tokio::test]
async fn extreme_changes_are_those_of_the_memory() {
    let server = TestRedis::start();
    for seed in 0..RUNS {
        extreme_run(&server, seed).await;
    }
}

/// Would catch: usage that is forgotten or counted as everything once it is worth more time than a debt may last.
#[tokio::test]
async fn a_bucket_that_was_choked_by_a_far_smaller_limit_keeps_its_usage() {
    let server = TestRedis::start();
    let store = store_at(&server).await;
    let day = 86_400_000_000;
    let cases = [(100_000, 60_000), (1_000_000, 600_000), ((1 << 53) - 1, 1 << 52)];
    for (kind, (units, used)) in (0..3).flat_map(|kind| cases.map(|case| (kind, case))) {
        let key = format!("caller {kind} of {units}");
        let (wide, narrow) = (bucket(kind, units, day, units), bucket(kind, 1, day, 1));
        let left = units - used;
        let check = |limit| Check::new(limit, &*key);
        assert!(decide(&store, check(&wide).cost(used), START).await.allowed(), "{wide}");
        for later in 0..3 {
            let now = START.after(Wait::from_micros(later));
            assert!(!decide(&store, check(&narrow), now).await.allowed(), "{wide}");
            let peeked = decide(&store, check(&wide).act(Act::Peek), now).await;
            assert_eq!(peeked.remaining(), left, "{wide}");
        }
        // Two days of the narrow one refill its bucket and one unit of the rest.
        let now = START.after(Wait::from_micros(2 * day));
        assert!(decide(&store, check(&narrow), now).await.allowed(), "{wide}");
        assert!(!decide(&store, check(&narrow), now).await.allowed(), "{wide}");
        let peeked = decide(&store, check(&wide).act(Act::Peek), now).await;
        assert_eq!(peeked.remaining(), left + 1, "{wide}");
    }
}
