//! Random traffic: a store must answer as the memory store does, to the last wait.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::probe::Probe;
use super::{Behaviour, START};
use crate::algorithm::Algorithm;
use crate::check::{Act, Check};
use crate::clock::Now;
use crate::decision::{DecidedBy, Decision, Outcome, Receipt, Refusal};
use crate::limit::{Align, Calendar, CalendarUnit, Limit, LimitBuilder, MAX_PERIOD, OnChange};
use crate::store::{MemoryStore, Store};
use crate::time::{MAX_EXACT, Micros};

const KEYS: [&str; 3] = ["ada", "bob", "eve"];
/// Cap on the receipts that are kept for refunds.
const RECEIPTS_MAX: usize = 8;

/// Ordinary, tiny, huge and extreme rates: units, period in microseconds, burst.
const RATES: [(u64, u64, u64); 14] = [
    (10, 1_000_000, 5),
    (100, 60_000_000, 20),
    (3, 1_000_000, 3),
    (7, 13, 9),
    (1, 1, 1),
    (1, 86_400_000_000, 4),
    (10_000_000, 1_000_000, 1_000),
    (1_000_003, 999_983, 77),
    (MAX_EXACT, MAX_PERIOD.as_micros() as u64, MAX_EXACT),
    (MAX_EXACT - 1, 1_000_000, MAX_EXACT),
    (1, MAX_PERIOD.as_micros() as u64, 1),
    (999_999_999_989, 3_600_000_000, 123_456_789),
    (4_503_599_627_370_497, 86_400_000_003, 9_007_199_254_740_881),
    (50_000, 1_000_000_000, 40_000),
];

/// Requests that a lane may send beside those of one check.
#[derive(Clone, Copy)]
struct TrafficMix {
    /// Requests of several checks.
    several: bool,
    /// Batches of requests.
    batches: bool,
}

pub(super) async fn single_checks<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    run_lanes(probe, TrafficMix { several: false, batches: false }).await;
}

pub(super) async fn several_checks<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    run_lanes(probe, TrafficMix { several: true, batches: false }).await;
}

pub(super) async fn batches<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    run_lanes(probe, TrafficMix { several: false, batches: true }).await;
}

/// Runs two lanes of every shape.
async fn run_lanes<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>, mix: TrafficMix) {
    for seed in 0..2 * shapes().len() as u64 {
        run_lane(probe, seed, 250, mix).await;
    }
}

/// Runs `steps` steps of random traffic, several checks and batches included, and compares each answer with
/// that of a [`MemoryStore`] at the same instants. Each seed has its own keys, and the seeds in turn have
/// limits of all algorithms and options.
///
/// # Panics
///
/// If an answer differs, with the seed and the step; or if the store fails.
pub async fn random_traffic<S: Store<Error: fmt::Debug>>(store: &S, seed: u64, steps: usize) {
    let probe = Probe { store, behaviour: Behaviour::RandomTraffic };
    run_lane(&probe, seed, steps, TrafficMix { several: true, batches: true }).await;
}

async fn run_lane<S: Store<Error: fmt::Debug>>(
    probe: &Probe<'_, S>,
    seed: u64,
    steps: usize,
    mix: TrafficMix,
) {
    let mut lane = RandomLane::new(probe, seed);
    for step in 0..steps {
        lane.step = step;
        lane.advance_clock();
        match lane.random.below(20) {
            0..=1 => lane.refund().await,
            2 if lane.random.one_in(8) => lane.reset().await,
            3 => lane.balance().await,
            4..=5 if mix.batches => lane.decide_batch().await,
            12.. if mix.several => {
                let count = 1 + lane.random.below(5) as usize;
                lane.decide(count).await;
            }
            _ => lane.decide(1).await,
        }
    }
}

/// Makes a limit of one algorithm with one set of options.
type LimitShape = Box<dyn Fn(LimitBuilder, u64) -> LimitBuilder + Send + Sync>;

/// Every algorithm, and every option of those that have some.
fn shapes() -> Vec<LimitShape> {
    let plain = Algorithm::ALL.into_iter().map(|algorithm| -> LimitShape {
        Box::new(move |builder, burst| match algorithm.is_bucket() {
            true => builder.algorithm(algorithm).burst(burst),
            false => builder.algorithm(algorithm),
        })
    });
    let window = |builder: LimitBuilder| builder.algorithm(Algorithm::FixedWindow);
    let counter = |builder: LimitBuilder| builder.algorithm(Algorithm::SlidingWindowCounter);
    let options: [LimitShape; 8] = [
        Box::new(|builder, burst| builder.algorithm(Algorithm::LeakyBucket).burst(burst).queue()),
        Box::new(move |builder, _| window(builder).align(Align::FirstHit)),
        Box::new(move |builder, _| window(builder).align(Align::Anchor(Micros::new(123_456_789)))),
        Box::new(move |builder, _| window(builder).stagger()),
        Box::new(|_, burst| Limit::per_calendar(burst, Arc::new(ShortDays))),
        Box::new(move |builder, _| counter(builder).buckets(1)),
        Box::new(move |builder, _| counter(builder).buckets(7)),
        Box::new(move |builder, _| counter(builder).buckets(1_000)),
    ];
    plain.chain(options).collect()
}

/// Days of 3 and of 5 minutes in turn, so that there are many of them in one lane.
#[derive(Debug)]
struct ShortDays;

impl Calendar for ShortDays {
    fn unit(&self) -> CalendarUnit {
        CalendarUnit::Day
    }
    fn zone(&self) -> &str {
        "Conformance/Short"
    }
    fn window(&self, at: Micros) -> Range<Micros> {
        const MINUTE: u64 = 60_000_000;
        let (pair, within) = (at.as_u64() / (8 * MINUTE), at.as_u64() % (8 * MINUTE));
        let (from, till) = if within < 3 * MINUTE { (0, 3) } else { (3, 8) };
        Micros::new((pair * 8 + from) * MINUTE)..Micros::new((pair * 8 + till) * MINUTE)
    }
}

/// The sets of numbers of one limit of a lane: the same identity, other numbers.
fn limits(name: &str, shape: &LimitShape, random: &mut LaneRandom) -> Vec<Limit> {
    loop {
        let (units, period, burst) = *random.pick(&RATES);
        let on_change = *random.pick(&[OnChange::Keep, OnChange::Scale, OnChange::Reset]);
        let made = [(1, 1), (2, 1), (1, 2)].map(|(times, by)| {
            let scaled = |number: u64| (number * times / by).clamp(1, MAX_EXACT);
            let builder = Limit::per(scaled(units), Duration::from_micros(period));
            shape(builder, scaled(burst)).name(name).on_change(on_change).build()
        });
        // Some of the extreme rates are too slow for some bursts.
        let made: Vec<Limit> = made.into_iter().flatten().collect();
        if !made.is_empty() {
            return made;
        }
    }
}

/// One sequence of steps, on the store under test and in memory.
struct RandomLane<'a, S> {
    probe: &'a Probe<'a, S>,
    memory: MemoryStore,
    seed: u64,
    step: usize,
    random: LaneRandom,
    now: u64,
    keys: Vec<String>,
    limits: [Vec<Limit>; 2],
    /// One check in this many has other numbers.
    changes: u64,
    /// One check in this many counts refusals.
    counts: u64,
    /// Key, limit, and the receipts of memory and of the store. Bound: [`RECEIPTS_MAX`].
    receipts: Vec<(usize, Limit, Receipt, Receipt)>,
}

/// One random check: key, limit, cost, act and flags.
struct RandomCheck {
    key: usize,
    limit: Limit,
    cost: u64,
    act: Act,
    counts_denied: bool,
    at_once: bool,
    shadow: bool,
}

impl RandomCheck {
    fn check<'a>(&'a self, keys: &'a [String]) -> Check<'a> {
        let check = Check::new(&self.limit, &keys[self.key]).cost(self.cost).act(self.act);
        let check = if self.counts_denied { check.count_denied() } else { check };
        let check = if self.at_once { check.at_once() } else { check };
        if self.shadow { check.shadow() } else { check }
    }
}

impl<'a, S: Store<Error: fmt::Debug>> RandomLane<'a, S> {
    fn new(probe: &'a Probe<'a, S>, seed: u64) -> RandomLane<'a, S> {
        let mut random = LaneRandom::new(seed);
        let shapes = shapes();
        let shape = &shapes[(seed % shapes.len() as u64) as usize];
        RandomLane {
            probe,
            memory: MemoryStore::new(1_000),
            seed,
            step: 0,
            now: *random.pick(&[0, START.as_u64() + 123_456, 6_000_000_000_000_000]),
            keys: KEYS.iter().map(|key| probe.key(format_args!("{key} {seed}"))).collect(),
            limits: [limits("a", shape, &mut random), limits("b", shape, &mut random)],
            changes: *random.pick(&[2, 12, 12, 12]),
            counts: *random.pick(&[2, 16, 16]),
            random,
            receipts: Vec::new(),
        }
    }

    /// Moves the clock: most steps are a part of a period, some clocks stand, go back, or jump.
    fn advance_clock(&mut self) {
        let period = self.limits[self.random.below(2) as usize][0].period_us();
        let (random, now) = (&mut self.random, self.now);
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
        // With some room before the last instant for states that are ahead.
        if self.now > 8_900_000_000_000_000 {
            self.now = 1_000_000_000;
        }
    }

    fn limit(&mut self) -> Limit {
        let limits = &self.limits[self.random.below(2) as usize];
        let index = match self.random.one_in(self.changes) {
            true => self.random.below(limits.len() as u64),
            false => 0,
        };
        limits[index as usize].clone()
    }

    fn cost(&mut self, limit: &Limit) -> u64 {
        let (random, capacity) = (&mut self.random, limit.capacity());
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

    fn check(&mut self, keys: u64) -> RandomCheck {
        let limit = self.limit();
        let cost = self.cost(&limit);
        let random = &mut self.random;
        RandomCheck {
            key: random.below(keys) as usize,
            limit,
            cost,
            act: match random.below(16) {
                0 | 1 => Act::Peek,
                2 => Act::Force,
                3 => Act::UpTo,
                _ => Act::Take,
            },
            counts_denied: random.one_in(self.counts),
            at_once: random.one_in(8),
            shadow: random.one_in(8),
        }
    }

    async fn decide(&mut self, count: usize) {
        // Fewer keys where there are several checks, so that some share a state.
        let keys = if count > 1 { 2 } else { 3 };
        let asked: Vec<RandomCheck> = (0..count).map(|_| self.check(keys)).collect();
        let checks: Vec<Check<'_>> = asked.iter().map(|one| one.check(&self.keys)).collect();
        let now = Micros::new(self.now);
        let (mut want, mut got) =
            (vec![Outcome::default(); count], vec![Outcome::default(); count]);
        let Ok(wanted) = Store::decide_each(&self.memory, &checks, Now::at(now), &mut want).await;
        let decision = self.probe.decide_into(&checks, now, &mut got).await;
        let outcomes = |outcomes: &[Outcome]| outcomes.iter().map(comparable).collect::<Vec<_>>();
        let what = self.describe(&checks);
        self.probe.equal(outcomes(&got), outcomes(&want), &what);
        self.probe.equal(summary(&decision), summary(&wanted), &what);
        for (index, one) in asked.into_iter().enumerate() {
            if want[index].charged > 0 && self.receipts.len() < RECEIPTS_MAX {
                let (here, there) = (want[index].receipt(), got[index].receipt());
                self.receipts.push((one.key, one.limit, here, there));
            }
        }
    }

    async fn decide_batch(&mut self) {
        let count = self.random.below(5) as usize;
        let asked: Vec<RandomCheck> = (0..count).map(|_| self.check(3)).collect();
        let checks: Vec<Check<'_>> = asked.iter().map(|one| one.check(&self.keys)).collect();
        let (now, mut want) = (Micros::new(self.now), Vec::new());
        self.memory.decide_batch(&checks, now, &mut want);
        let got = self.probe.decide_batch(&checks, now).await;
        let summaries = |decisions: &[Decision]| decisions.iter().map(summary).collect::<Vec<_>>();
        self.probe.equal(summaries(&got), summaries(&want), self.describe(&checks));
    }

    async fn refund(&mut self) {
        let now = Micros::new(self.now);
        let known = self.receipts.len() as u64;
        let (key, limit, receipts) = if known > 0 && !self.random.one_in(4) {
            let index = self.random.below(known) as usize;
            let (key, limit, here, there) = self.receipts.swap_remove(index);
            // Sometimes the numbers have changed since.
            let limit = if self.random.one_in(8) { self.with_other_numbers(&limit) } else { limit };
            (key, limit, Some((here, there)))
        } else {
            (self.random.below(3) as usize, self.limit(), None)
        };
        let units = if self.random.one_in(2) { u64::MAX } else { self.cost(&limit) };
        let check = Check::new(&limit, &self.keys[key]).cost(units);
        let (here, there) = receipts.unzip();
        self.memory.refund(&limit, check.key, here, units, now);
        self.probe.refund(check, there, now).await;
        self.balance().await;
    }

    fn with_other_numbers(&mut self, limit: &Limit) -> Limit {
        let same = self.limits.iter().find(|limits| limits[0].id() == limit.id());
        let same = same.expect("receipts are of limits of this lane");
        self.random.pick(same).clone()
    }

    async fn reset(&mut self) {
        let (limit, key) = (self.limit(), self.random.below(3) as usize);
        let now = Micros::new(self.now);
        let key = &self.keys[key];
        self.memory.reset(&limit, key.into(), now);
        self.probe.reset(&limit, key, now).await;
    }

    async fn balance(&mut self) {
        let (limit, key) = (self.limit(), self.random.below(3) as usize);
        let now = Micros::new(self.now);
        let key = &self.keys[key];
        let want = self.memory.balance(&limit, key.into(), now);
        let got = self.probe.balance(&limit, key, now).await;
        self.probe.equal(got, want, self.describe(&[Check::new(&limit, key)]));
    }

    fn describe(&self, checks: &[Check<'_>]) -> String {
        let shown: Vec<String> = checks.iter().map(describe).collect();
        format!("seed {}, step {}, at {} µs: {}", self.seed, self.step, self.now, shown.join("; "))
    }
}

/// A check in one line.
fn describe(check: &Check<'_>) -> String {
    let key = String::from_utf8_lossy(check.key.as_bytes());
    let mut text = format!(
        "{:?} {} of {} {} for {key:?}",
        check.act,
        check.cost,
        check.limit.name(),
        check.limit
    );
    let flags = [
        (check.shadow, " shadow"),
        (check.count_denied, " count_denied"),
        (check.at_once, " at_once"),
    ];
    text.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name));
    text
}

/// An outcome without its decider, which may differ.
pub(super) fn comparable(outcome: &Outcome) -> Outcome {
    Outcome { decided_by: DecidedBy::Memory, ..*outcome }
}

/// A decision without its decider.
pub(super) fn summary(decision: &Decision) -> (Option<Refusal>, usize, u64, u16, Outcome) {
    let outcome = comparable(&decision.outcome());
    (decision.refusal(), decision.binding(), decision.capacity(), decision.violated, outcome)
}

/// Random numbers that are the same in every run: SplitMix64.
pub(super) struct LaneRandom(u64);

impl LaneRandom {
    pub(super) fn new(seed: u64) -> LaneRandom {
        LaneRandom(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}
