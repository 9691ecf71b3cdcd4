//! A bucket whose numbers change, on a real server with injected time: two instances with different numbers
//! together admit no more than the larger limit would, and a caller that waits as told is admitted, also as a
//! peek told. Each answer is that of the memory.

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
