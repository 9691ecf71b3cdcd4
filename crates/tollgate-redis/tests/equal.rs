//! Random traffic through memory and through Redis, at the same injected times: every answer is the
//! same, to the last wait.
//!
//! Each algorithm has many lanes: a few keys, two limits in three sets of numbers each, a clock that
//! runs, stands, goes back and jumps. A lane is one sequence; lanes run beside each other, so that
//! calls are on their way together. A failure prints its lane's seed.

use std::sync::Arc;
use std::time::Duration;

use crate::shared;
use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use tollgate::time::MAX_EXACT;
use tollgate::{
    Act, Algorithm, Align, Calendar, CalendarUnit, Check, DecidedBy, Decision, Key, Limit,
    LimitBuilder, MemoryStore, Micros, OnChange, Outcome, Receipt,
};
use tollgate_redis::{RedisOptions, RedisStore, TimeSource};

/// Number of steps for each algorithm.
const STEPS: usize = 100_800;
const LANES: usize = 72;
const KEYS: [&str; 3] = ["ada", "bob", "eve"];
const CENTURY_US: u64 = 100 * 36_525 * 864 * 1_000_000;

/// Rates that are ordinary, tiny, huge, and at the ends of what is possible: units, period, burst.
const RATES: [(u64, u64, u64); 14] = [
    (10, 1_000_000, 5),
    (100, 60_000_000, 20),
    (3, 1_000_000, 3),
    (7, 13, 9),
    (1, 1, 1),
    (1, 86_400_000_000, 4),
    (10_000_000, 1_000_000, 1_000),
    (1_000_003, 999_983, 77),
    (MAX_EXACT, CENTURY_US, MAX_EXACT),
    (MAX_EXACT - 1, 1_000_000, MAX_EXACT),
    (1, CENTURY_US, 1),
    (999_999_999_989, 3_600_000_000, 123_456_789),
    (4_503_599_627_370_497, 86_400_000_003, 9_007_199_254_740_881),
    (50_000, 1_000_000_000, 40_000),
];

#[derive(Debug)]
struct Months;

/// Months of 3 and of 5 minutes in turn: short enough for many of them in one lane.
impl Calendar for Months {
    fn unit(&self) -> CalendarUnit {
        CalendarUnit::Day
    }
    fn zone(&self) -> &str {
        "Test/Short"
    }
    fn window(&self, at: Micros) -> std::ops::Range<Micros> {
        const MINUTE: u64 = 60_000_000;
        let (pair, within) = (at.as_u64() / (8 * MINUTE), at.as_u64() % (8 * MINUTE));
        let (from, till) = if within < 3 * MINUTE { (0, 3) } else { (3, 8) };
        Micros::new((pair * 8 + from) * MINUTE)..Micros::new((pair * 8 + till) * MINUTE)
    }
}

/// A limit of one of the shapes that a test is about.
type EqualityShape = fn(LimitBuilder, u64, &mut SplitMix64) -> LimitBuilder;

fn bucket(algorithm: Algorithm) -> impl Fn(LimitBuilder, u64) -> LimitBuilder {
    move |builder, burst| builder.algorithm(algorithm).burst(burst)
}

fn token(builder: LimitBuilder, burst: u64, _: &mut SplitMix64) -> LimitBuilder {
    bucket(Algorithm::TokenBucket)(builder, burst)
}

fn leaky(builder: LimitBuilder, burst: u64, random: &mut SplitMix64) -> LimitBuilder {
    let builder = bucket(Algorithm::LeakyBucket)(builder, burst);
    if random.one_in(3) { builder } else { builder.queue() }
}

fn window(builder: LimitBuilder, _: u64, random: &mut SplitMix64) -> LimitBuilder {
    let builder = builder.algorithm(Algorithm::FixedWindow);
    match random.below(4) {
        0 => builder.align(Align::FirstHit),
        1 => builder.align(Align::Anchor(Micros::new(random.below(1 << 50)))),
        2 => builder.stagger(),
        _ => builder,
    }
}

fn log(builder: LimitBuilder, _: u64, _: &mut SplitMix64) -> LimitBuilder {
    builder.algorithm(Algorithm::SlidingWindowLog)
}

fn counter(builder: LimitBuilder, _: u64, _: &mut SplitMix64) -> LimitBuilder {
    builder.algorithm(Algorithm::SlidingWindowCounter)
}

fn buckets(builder: LimitBuilder, _: u64, random: &mut SplitMix64) -> LimitBuilder {
    let count = *random.pick(&[1, 2, 7, 60, 1_000, 1_023]);
    builder.algorithm(Algorithm::SlidingWindowCounter).buckets(count)
}

/// The sets of numbers that one limit of a lane comes in: the same identity, other numbers.
fn limits(name: &str, shape: EqualityShape, random: &mut SplitMix64) -> Vec<Limit> {
    let (units, period, burst) = *random.pick(&RATES);
    let seed = random.number();
    let on_change = *random.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
    let made = [(1, 1), (2, 1), (1, 2)].map(|(times, by)| {
        let grown = |number: u64| (number * times / by).clamp(1, MAX_EXACT);
        let builder = Limit::per(grown(units), Duration::from_micros(period)).name(name);
        let builder = builder.on_change(on_change);
        shape(builder, grown(burst), &mut SplitMix64::seeded(seed)).build()
    });
    let made: Vec<Limit> = made.into_iter().flatten().collect();
    if made.is_empty() { limits(name, shape, random) } else { made }
}

/// One sequence of steps.
struct TrafficLane {
    seed: u64,
    random: SplitMix64,
    now: u64,
    memory: MemoryStore,
    redis: Arc<RedisStore>,
    keys: Vec<String>,
    limits: Vec<Vec<Limit>>,
    /// Numbers change once in so many questions.
    changes: u64,
    /// Refusals count in one question of so many.
    counts: u64,
    /// What can be given back: with the numbers it was charged under. Bound: 8.
    receipts: Vec<(usize, Limit, Receipt, Receipt)>,
}

impl TrafficLane {
    fn new(redis: &Arc<RedisStore>, shape: EqualityShape, seed: u64) -> TrafficLane {
        let mut random = SplitMix64::seeded(seed);
        let limits = vec![limits("a", shape, &mut random), limits("b", shape, &mut random)];
        TrafficLane {
            seed,
            now: *random.pick(&[0, 1_700_000_000_123_456, 6_000_000_000_000_000]),
            random,
            memory: MemoryStore::new(20_000),
            changes: if seed.is_multiple_of(4) { 2 } else { 12 },
            counts: if seed.is_multiple_of(3) { 2 } else { 16 },
            redis: Arc::clone(redis),
            keys: KEYS.iter().map(|key| format!("{key} {seed}")).collect(),
            limits,
            receipts: Vec::new(),
        }
    }

    async fn run(mut self, steps: usize) {
        for step in 0..steps {
            self.tick();
            match self.random.below(20) {
                0..=1 => self.refund(step).await,
                2 if self.random.one_in(8) => self.reset().await,
                3 => self.balance(step).await,
                4..=11 => self.decide(1, step).await,
                _ => {
                    let count = self.random.between(1, 5);
                    self.decide(count as usize, step).await;
                }
            }
        }
    }

    /// Most steps are a part of a period after the last; some clocks stand, go back, or jump.
    fn tick(&mut self) {
        let limit = &self.limits[self.random.below(2) as usize][0];
        let period = limit.period_us();
        let random = &mut self.random;
        let now = self.now;
        self.now = match random.below(25) {
            0..=7 => now,
            8..=15 => now + random.below(period / 10 + 2),
            16..=18 => now + random.below(period + 2),
            19 => now + period,
            20 => now + random.below(3) * period + random.below(3),
            21 => now.saturating_sub(random.below(period / 4 + 2)),
            22 if random.one_in(6) => now.saturating_sub(random.below(5) * period),
            // Around the least that is a jump of the clock.
            23 if random.one_in(4) => now.saturating_sub(999_999 + random.below(3)),
            _ => now + 1,
        };
        // Not beyond what can be told, with some room for what is ahead.
        if self.now > 8_900_000_000_000_000 {
            self.now = 1_000_000_000;
        }
    }

    fn limit(&mut self) -> Limit {
        let limits = &self.limits[self.random.below(2) as usize];
        let index = if self.random.one_in(self.changes) {
            self.random.below(limits.len() as u64)
        } else {
            0
        };
        limits[index as usize].clone()
    }

    fn cost(&mut self, limit: &Limit) -> u64 {
        let random = &mut self.random;
        let capacity = limit.capacity();
        match random.below(16) {
            0 => 0,
            1..=8 => 1,
            9 => 2,
            10 => capacity,
            11 => capacity.saturating_add(1),
            12 => random.below(capacity) + 1,
            13 => capacity / 2 + 1,
            14 if random.one_in(6) => *random.pick(&[MAX_EXACT, u64::MAX, MAX_EXACT - 1]),
            _ => random.below(capacity.min(8)) + 1,
        }
    }

    async fn decide(&mut self, count: usize, step: usize) {
        let asked: Vec<(usize, Limit, u64, u64)> = (0..count)
            .map(|_| {
                let limit = self.limit();
                let cost = self.cost(&limit);
                let key = if count > 1 { self.random.below(2) } else { self.random.below(3) };
                (key as usize, limit, cost, self.random.number())
            })
            .collect();
        let checks: Vec<Check<'_>> = asked
            .iter()
            .map(|(key, limit, cost, flags)| {
                let act = match flags % 16 {
                    0 | 1 => Act::Peek,
                    2 => Act::Force,
                    3 => Act::UpTo,
                    _ => Act::Take,
                };
                let mut check = Check::new(limit, &self.keys[*key]).cost(*cost).act(act);
                check = if (flags >> 8).is_multiple_of(self.counts) {
                    check.count_denied()
                } else {
                    check
                };
                check = if flags >> 16 & 7 == 0 { check.at_once() } else { check };
                if flags >> 24 & 7 == 0 { check.shadow() } else { check }
            })
            .collect();
        let now = Micros::new(self.now);
        let mut here = vec![Outcome::default(); count];
        let mut there = here.clone();
        let wanted = match &checks[..] {
            [check] if !check.is_shadow() => {
                let decision = self.memory.decide_one(check, now);
                here[0] = decision.outcome();
                decision
            }
            _ => self.memory.decide_each(&checks, now, &mut here),
        };
        let got = self.redis.decide_each(&checks, now, &mut there).await.expect("an answer");
        let what = || {
            let asked: Vec<String> = checks.iter().map(shown).collect();
            format!("seed {}, step {step}, at {now:?}: {}", self.seed, asked.join("; "))
        };
        let by_memory = |mut outcome: Outcome| {
            outcome.decided_by = DecidedBy::Memory;
            outcome
        };
        for (here, there) in here.iter().zip(&there) {
            assert_eq!(by_memory(*there), by_memory(*here), "{}", what());
        }
        assert_eq!(summary(&got), summary(&wanted), "{}", what());
        for (index, (key, limit, ..)) in asked.iter().enumerate() {
            if here[index].charged > 0 && self.receipts.len() < 8 {
                let (one, other) = (here[index].receipt(), there[index].receipt());
                self.receipts.push((*key, limit.clone(), one, other));
            }
        }
    }

    async fn refund(&mut self, step: usize) {
        let now = Micros::new(self.now);
        let known = self.receipts.len() as u64;
        if known > 0 && !self.random.one_in(4) {
            let index = self.random.below(known) as usize;
            let (key, limit, here, there) = self.receipts.swap_remove(index);
            let units = if self.random.one_in(2) { u64::MAX } else { self.cost(&limit) };
            // Sometimes the numbers have changed since.
            let limit = if self.random.one_in(8) { self.like(&limit) } else { limit };
            let key = Key::from(&self.keys[key]);
            self.memory.refund(&limit, key, Some(here), units, now);
            self.redis.refund(&limit, key, Some(there), units, now).await.expect("an answer");
        } else {
            let limit = self.limit();
            let units = self.cost(&limit);
            let key = Key::from(&self.keys[self.random.below(3) as usize]);
            self.memory.refund(&limit, key, None, units, now);
            self.redis.refund(&limit, key, None, units, now).await.expect("an answer");
        }
        self.balance(step).await;
    }

    fn like(&mut self, limit: &Limit) -> Limit {
        let of = self.limits.iter().position(|list| list[0].id() == limit.id()).expect("known");
        let count = self.limits[of].len() as u64;
        self.limits[of][self.random.below(count) as usize].clone()
    }

    async fn reset(&mut self) {
        let limit = self.limit();
        let key = Key::from(&self.keys[self.random.below(3) as usize]);
        self.memory.reset(&limit, key, Micros::new(self.now));
        self.redis.reset(&limit, key).await.expect("an answer");
    }

    async fn balance(&mut self, step: usize) {
        let limit = self.limit();
        let key = Key::from(&self.keys[self.random.below(3) as usize]);
        let now = Micros::new(self.now);
        let wanted = self.memory.balance(&limit, key, now);
        let got = self.redis.balance(&limit, key, now).await.expect("an answer");
        assert_eq!(got, wanted, "seed {}, step {step}, at {now:?}: {limit}", self.seed);
    }
}

/// A check in one line.
fn shown(check: &Check<'_>) -> String {
    let key = String::from_utf8_lossy(check.key().as_bytes()).into_owned();
    let flags = [
        (check.is_shadow(), "shadow"),
        (check.counts_denied(), "count_denied"),
        (check.is_at_once(), "at_once"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    let (act, units, limit) = (check.requested_act(), check.units(), check.limit());
    format!("{act:?} {units} {} {limit} of {key} {}", limit.name(), flags.join(" "))
}

/// What a decision says beside who made it.
fn summary(decision: &Decision) -> (Option<tollgate::Refusal>, usize, u64, Vec<bool>, Outcome) {
    let violates = (0..16).map(|index| decision.violates(index)).collect();
    let outcome = Outcome { decided_by: DecidedBy::Memory, ..decision.outcome() };
    (decision.refusal(), decision.binding(), decision.capacity(), violates, outcome)
}

/// Runs all lanes of a shape; at the end every key has a TTL and script and Rust never disagreed.
async fn agrees(shape: EqualityShape, seed: u64, steps: usize) {
    let server = TestRedis::start();
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let redis = Arc::new(shared::store_at(&server, options).await);
    let lanes = (0..LANES).map(|lane| TrafficLane::new(&redis, shape, seed + lane as u64));
    let lanes: Vec<_> = lanes.map(|lane| tokio::spawn(lane.run(steps / LANES))).collect();
    for lane in lanes {
        lane.await.expect("the lane runs to its end");
    }
    let stats = redis.stats();
    assert_eq!((stats.mismatches, stats.unreadable), (0, 0));
    assert!(stats.multi_call > 0, "numbers changed");
    shared::every_key_expires(&server, 50, 3_600_000);
}

#[tokio::test]
async fn token_bucket_is_the_same_in_redis() {
    agrees(token, 1_000, STEPS).await;
}

#[tokio::test]
async fn leaky_bucket_is_the_same_in_redis() {
    agrees(leaky, 2_000, STEPS).await;
}

#[tokio::test]
async fn fixed_window_is_the_same_in_redis() {
    agrees(window, 3_000, STEPS).await;
}

#[tokio::test]
async fn sliding_window_log_is_the_same_in_redis() {
    agrees(log, 4_000, STEPS).await;
}

#[tokio::test]
async fn sliding_window_counter_is_the_same_in_redis() {
    agrees(counter, 5_000, STEPS).await;
}

#[tokio::test]
async fn sub_buckets_are_the_same_in_redis() {
    agrees(buckets, 6_000, STEPS / 2).await;
}

/// As the limits of the other tests, in days of a calendar.
#[tokio::test]
async fn a_calendar_is_the_same_in_redis() {
    fn days(_: LimitBuilder, burst: u64, _: &mut SplitMix64) -> LimitBuilder {
        Limit::per_calendar(burst, Arc::new(Months)).name("days")
    }
    agrees(days, 7_000, STEPS / 4).await;
}

/// Limits of one request that differ only in their numbers have a state each: what is given back goes
/// where it was taken.
#[tokio::test]
async fn what_is_given_back_goes_where_it_was_taken() {
    let server = TestRedis::start();
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let store = shared::store_at(&server, options).await;
    let now = Micros::from_secs(1_700_000_000);
    for algorithm in Algorithm::ALL {
        let limits =
            [10, 20].map(|units| Limit::per_day(units).algorithm(algorithm).build().unwrap());
        let key = algorithm.name();
        let checks = limits.each_ref().map(|limit| Check::new(limit, key).cost(3));
        let mut outcomes = [Outcome::default(); 2];
        let _ = store.decide_each(&checks, now, &mut outcomes).await.expect("an answer");
        assert_eq!(outcomes.map(|outcome| outcome.remaining), [7, 17], "{algorithm}");
        let back = store.refund(&limits[1], Key::from(key), Some(outcomes[1].receipt()), 2, now);
        back.await.expect("an answer");
        let asked = checks.map(|check| check.act(Act::Peek));
        let _ = store.decide_each(&asked, now, &mut outcomes).await.expect("an answer");
        assert_eq!(outcomes.map(|outcome| outcome.remaining), [7, 19], "{algorithm}");
    }
}
