//! What must hold for every limit and every sequence of requests, tried on random ones.
//!
//! The same cases are tried at each run. `PROPTEST_RNG_SEED=7 PROPTEST_CASES=1000000` tries others;
//! a failure prints the smallest trace that shows it, and that trace becomes a row of
//! `traces_that_once_failed` or of the algorithm's own table.

mod executor;
mod model;

use std::time::Duration;

use executor::{Core, Executor, InTable, Subject, outcome_of, take_together};
use model::Model;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use tollgate::time::MAX_EXACT;
use tollgate::{
    Algorithm, Align, Check, Limit, Limiter, MemoryStore, Micros, OnChange, Outcome, Precision,
    SystemClock, Wait,
};

const CASES: u32 = 10_000;
const SEED: u64 = 0x7011_6A7E;

fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let is_set = |name: &str| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if is_set("PROPTEST_CASES") { given.cases } else { CASES },
        rng_seed: match is_set("PROPTEST_RNG_SEED") {
            true => given.rng_seed,
            false => RngSeed::Fixed(SEED),
        },
        failure_persistence: None,
        ..given
    }
}

// ---------------------------------------------------------------------------------------------
// Random limits

/// Every way to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Token,
    Meter,
    Queue,
    Window,
    Anchored,
    FirstHit,
    Log,
    Counter,
    Buckets,
}

const EVERY: &[Kind] = &[
    Kind::Token,
    Kind::Meter,
    Kind::Queue,
    Kind::Window,
    Kind::Anchored,
    Kind::FirstHit,
    Kind::Log,
    Kind::Counter,
    Kind::Buckets,
];

const SECOND: u64 = 1_000_000;
const CENTURY: u64 = 100 * 36_525 * 864 * SECOND;

/// Rates that have been wrong somewhere, or lie at an end of the range.
const RATES: [(u64, u64); 12] = [
    (1, 86_400 * SECOND),
    (100, 3_600 * SECOND),
    (3, SECOND),
    (2, 5 * SECOND),
    (10_000_000, SECOND),
    (1, 1),
    (7, 13),
    (1, CENTURY),
    (MAX_EXACT, 1),
    (MAX_EXACT, SECOND),
    (MAX_EXACT, CENTURY),
    (MAX_EXACT - 1, CENTURY - 1),
];

/// From 1 to `max`, small and large alike.
fn any_size(max: u64) -> impl Strategy<Value = u64> {
    (0..=53u32, any::<u64>()).prop_map(move |(bits, noise)| (noise >> (63 - bits)).clamp(1, max))
}

fn rates() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        3 => select(&RATES),
        3 => (1..=12u64, 1..=60u64),
        2 => (1..=1_000u64, 1..=10 * SECOND),
        2 => (any_size(MAX_EXACT), any_size(CENTURY)),
    ]
}

/// A burst; none is as many as the rate.
fn bursts() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        2 => Just(None),
        3 => (1..=12u64).prop_map(Some),
        2 => any_size(MAX_EXACT).prop_map(Some),
        1 => Just(Some(MAX_EXACT)),
    ]
}

fn limit(kind: Kind, (units, period): (u64, u64), burst: Option<u64>, odd: u64) -> Limit {
    let century_units = u128::from(CENTURY) * u128::from(units) / u128::from(period);
    let burst = burst.unwrap_or(units).min(u64::try_from(century_units).unwrap_or(u64::MAX));
    let per = Limit::per(units, Duration::from_micros(period));
    let builder = match kind {
        Kind::Token => per.burst(burst),
        Kind::Meter => per.burst(burst).algorithm(Algorithm::LeakyBucket),
        Kind::Queue => per.burst(burst).algorithm(Algorithm::LeakyBucket).queue(),
        Kind::Window => per.algorithm(Algorithm::FixedWindow),
        Kind::Anchored => {
            per.algorithm(Algorithm::FixedWindow).align(Align::Anchor(Micros::new(odd)))
        }
        Kind::FirstHit => per.algorithm(Algorithm::FixedWindow).align(Align::FirstHit),
        Kind::Log => per.algorithm(Algorithm::SlidingWindowLog),
        Kind::Counter => per,
        Kind::Buckets => per.buckets((1 + odd % period.min(1_023)) as u32),
    };
    builder.build().expect("numbers within the range")
}

fn limits(kinds: &'static [Kind]) -> impl Strategy<Value = Limit> {
    (select(kinds), rates(), bursts(), prop_oneof![0..12u64, any::<u64>()])
        .prop_map(|(kind, rate, burst, odd)| limit(kind, rate, burst, odd))
}

/// A period, or a full refill: how long a state remembers, and how late a caller may be.
fn horizon(limit: &Limit) -> u64 {
    let period = limit.period().as_micros();
    let horizon = match limit.algorithm().is_bucket() {
        true => (period * u128::from(limit.capacity())).div_ceil(u128::from(limit.units())),
        false => period,
    };
    horizon as u64
}

// ---------------------------------------------------------------------------------------------
// Random traces

/// When the next request comes, relative to what has happened.
#[derive(Clone, Copy, Debug)]
enum When {
    Same,
    Micros(u64),
    /// So many thousandths of the horizon later.
    Part(u64),
    /// So many units at the rate later, and a microsecond more or less.
    Units(u64, i64),
    /// At the next whole multiple of the period, or a microsecond beside it.
    Boundary(i64),
    /// When the last answer said that asking again would help, or a microsecond beside it.
    Retry(i64),
    More(i64),
    Reset(i64),
    /// So many thousandths of the horizon before the last charge: a caller with a late clock.
    Late(u64),
    /// Further back than that: the clock jumped.
    Jump(u64),
}

/// How much, relative to what there is.
#[derive(Clone, Copy, Debug)]
enum Cost {
    Exactly(u64),
    /// So many thousandths of the capacity.
    Part(u64),
    /// What the last answer said is left, and this many more.
    Left(i64),
    /// The capacity, and this many more.
    Full(i64),
}

/// What is done.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(Cost),
    Peek(Cost),
    Force(Cost),
    /// Gives back thousandths of one of the charges so far.
    Refund(usize, u64),
    /// Gives back without a receipt.
    RefundNow(Cost),
}

type Step = (When, Act);

#[derive(Clone)]
struct Trace {
    limit: Limit,
    start: u64,
    steps: Vec<Step>,
}

impl std::fmt::Debug for Trace {
    /// On one line, and the limit as people write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} from {}: ", self.limit, self.limit.align(), self.start)?;
        self.steps.iter().try_for_each(|(when, act)| write!(f, "({when:?}, {act:?}), "))
    }
}

fn beside() -> impl Strategy<Value = i64> {
    -1..=1i64
}

/// The clock only goes forward.
fn forward() -> impl Strategy<Value = When> {
    prop_oneof![
        4 => Just(When::Same),
        2 => (1..=5u64).prop_map(When::Micros),
        3 => (1..=1_100u64).prop_map(When::Part),
        1 => (1_000..=9_000u64).prop_map(When::Part),
        3 => ((1..=4u64), beside()).prop_map(|(units, off)| When::Units(units, off)),
        2 => beside().prop_map(When::Boundary),
        2 => beside().prop_map(When::Retry),
        1 => beside().prop_map(When::More),
        1 => beside().prop_map(When::Reset),
    ]
}

/// Some callers are late.
fn late() -> impl Strategy<Value = When> {
    prop_oneof![6 => forward(), 1 => (0..=1_000u64).prop_map(When::Late)]
}

/// Some callers are late, and sometimes the clock jumps.
fn jumping() -> impl Strategy<Value = When> {
    prop_oneof![
        12 => late(),
        1 => prop_oneof![Just(0), 0..=5_000u64].prop_map(When::Jump),
    ]
}

fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => (0..=4u64).prop_map(Cost::Exactly),
        3 => (0..=1_000u64).prop_map(Cost::Part),
        3 => beside().prop_map(Cost::Left),
        2 => beside().prop_map(Cost::Full),
        1 => prop_oneof![Just(u64::MAX), any_size(MAX_EXACT)].prop_map(Cost::Exactly),
    ]
}

fn takes() -> impl Strategy<Value = Act> {
    costs().prop_map(Act::Take)
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => takes(),
        1 => costs().prop_map(Act::Peek),
        1 => costs().prop_map(Act::Force),
        2 => (0..4usize, 0..=1_000u64).prop_map(|(which, part)| Act::Refund(which, part)),
        1 => costs().prop_map(Act::RefundNow),
    ]
}

fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => 0..=5u64,
        2 => Just(1_700_000_000 * SECOND),
        1 => any_size(MAX_EXACT),
        1 => Just(MAX_EXACT - 2 * CENTURY),
    ]
}

fn traces(
    kinds: &'static [Kind],
    when: impl Strategy<Value = When>,
    act: impl Strategy<Value = Act>,
) -> impl Strategy<Value = Trace> {
    (limits(kinds), starts(), prop::collection::vec((when, act), 1..=16))
        .prop_map(|(limit, start, steps)| Trace { limit, start, steps })
}

/// Turns relative steps into instants and costs.
#[derive(Clone, Debug)]
struct Course {
    limit: Limit,
    horizon: u64,
    now: u64,
    mark: u64,
    last: Outcome,
}

impl Course {
    fn of(trace: &Trace) -> Course {
        Course {
            limit: trace.limit.clone(),
            horizon: horizon(&trace.limit),
            now: trace.start,
            mark: trace.start,
            last: Outcome { remaining: trace.limit.capacity(), ..Outcome::default() },
        }
    }

    fn advance(&mut self, when: When) -> Micros {
        let (now, period) = (i128::from(self.now), self.limit.period().as_micros() as i128);
        let (mark, horizon) = (i128::from(self.mark), i128::from(self.horizon));
        let after = |wait: Wait, off: i64| {
            let wait = wait.as_micros().map_or(0, i128::from);
            now + (wait + i128::from(off)).max(0)
        };
        let at = match when {
            When::Same => now,
            When::Micros(micros) => now + i128::from(micros),
            When::Part(part) => now + horizon * i128::from(part) / 1_000,
            When::Units(units, off) => {
                let passed = (period * i128::from(units)).div_euclid(self.limit.units().into());
                now + (passed + i128::from(off)).max(0)
            }
            When::Boundary(off) => now.max((now / period + 1) * period + i128::from(off)),
            When::Retry(off) => after(self.last.retry_after, off),
            When::More(off) => after(self.last.more_after, off),
            When::Reset(off) => after(self.last.reset_after, off),
            When::Late(part) => now.min(mark - horizon * i128::from(part) / 1_000),
            // Not to before what is remembered: a log knows no instant before the epoch.
            When::Jump(part) => {
                let at = mark - horizon - 1 - horizon * i128::from(part) / 1_000;
                if at < horizon { now } else { at }
            }
        };
        self.now = at.clamp(0, MAX_EXACT.into()) as u64;
        Micros::new(self.now)
    }

    fn cost(&self, cost: Cost) -> u64 {
        let capacity = self.limit.capacity();
        match cost {
            Cost::Exactly(units) => units,
            Cost::Part(part) => (u128::from(capacity) * u128::from(part) / 1_000) as u64,
            Cost::Left(off) => self.last.remaining.saturating_add_signed(off),
            Cost::Full(off) => capacity.saturating_add_signed(off),
        }
    }

    /// Notes an answer, and whether it was charged.
    fn saw(&mut self, outcome: Outcome, charged: bool) {
        if charged || outcome.jumped {
            self.mark = outcome.served_at.as_u64();
        }
        self.last = outcome;
    }
}

/// Takes along a trace; calls `each` with the state before, the cost, the instant, the answer and
/// the state after.
fn take_along(
    trace: &Trace,
    mut each: impl FnMut(&Core, u64, Micros, Outcome, &Core) -> Result<(), TestCaseError>,
) -> Result<(Core, Course), TestCaseError> {
    let mut course = Course::of(trace);
    let mut core = Core::fresh(&trace.limit, Micros::new(trace.start));
    for &(when, act) in &trace.steps {
        let Act::Take(cost) = act else { unreachable!("a trace of takes") };
        let (now, cost) = (course.advance(when), course.cost(cost));
        let before = core.clone();
        let outcome = core.take(cost, now);
        course.saw(outcome, outcome.allowed && cost > 0);
        each(&before, cost, now, outcome, &core)?;
    }
    Ok((core, course))
}

/// What a trace leads to.
fn end_of(trace: &Trace) -> (Core, Course) {
    take_along(trace, |_, _, _, _, _| Ok(())).expect("nothing is asserted")
}

// ---------------------------------------------------------------------------------------------
// Equality with the model

/// The core and the model side by side.
struct Pair {
    core: Core,
    model: Model,
    /// What was charged since the clock last jumped, and when.
    receipts: Vec<(Micros, u64)>,
}

impl Pair {
    /// Does the same to both; returns both answers.
    fn act(&mut self, act: Act, course: &Course, now: Micros) -> (Outcome, Outcome) {
        let Pair { core, model, .. } = self;
        match act {
            Act::Take(cost) => {
                let cost = course.cost(cost);
                let answers = (core.take(cost, now), model.take(cost, now));
                if answers.0.allowed && cost > 0 {
                    self.receipts.push((answers.0.served_at, cost));
                }
                return answers;
            }
            Act::Peek(cost) => {
                let cost = course.cost(cost);
                return (core.peek(cost, now), model.peek(cost, now));
            }
            Act::Force(cost) => {
                let (cost, served_at) = (course.cost(cost), core.judge(0, now).served_at);
                if cost > 0 && can_owe(core, cost, now) {
                    core.force(cost, now);
                    model.force(cost, now);
                    self.receipts.push((served_at, cost));
                }
            }
            Act::Refund(which, part) => {
                let count = self.receipts.len().max(1);
                if let Some((charged_at, granted)) = self.receipts.get_mut(which % count) {
                    let units = (u128::from(*granted) * u128::from(part) / 1_000) as u64;
                    *granted -= units;
                    core.refund(units, Some(*charged_at), now);
                    model.refund(units, Some(*charged_at), now);
                }
            }
            Act::RefundNow(cost) => {
                core.refund(course.cost(cost), None, now);
                model.refund(course.cost(cost), None, now);
                // Whose units these were nobody knows, so no receipt may claim them again.
                self.receipts.clear();
            }
        }
        (core.judge(0, now), model.judge(0, now))
    }
}

/// Does everything to both and compares every answer.
fn agrees_with_the_model(trace: &Trace) -> Result<(), TestCaseError> {
    let (mut course, start) = (Course::of(trace), Micros::new(trace.start));
    let mut pair = Pair {
        core: Core::fresh(&trace.limit, start),
        model: Model::fresh(&trace.limit, start),
        receipts: Vec::new(),
    };
    for (index, &(when, act)) in trace.steps.iter().enumerate() {
        let now = course.advance(when);
        let (receipts, jumped) = (pair.receipts.len(), pair.core.judge(0, now).jumped);
        let (got, want) = pair.act(act, &course, now);
        prop_assert_eq!(got, want, "step {} at {:?} of {}", index, now, trace.limit);
        prop_assert_eq!(pair.core.balance(now), pair.model.balance(now), "step {}", index);
        if jumped && !pair.core.judge(0, now).jumped {
            // The state has followed the clock: older receipts tell a time that never was.
            pair.receipts.drain(..receipts.min(pair.receipts.len()));
        }
        course.mark = pair.model.mark();
        course.last = got;
    }
    Ok(())
}

/// Does everything to the core and to a limiter with its table, and compares every answer. Both
/// begin with a charge: a table remembers nothing of a key before that.
fn agrees_with_the_table(trace: &Trace) -> Result<(), TestCaseError> {
    let (mut course, start) = (Course::of(trace), Micros::new(trace.start));
    let (limit, key) = (&trace.limit, "anna");
    let mut core = Core::fresh(limit, start);
    let InTable(table) = InTable::new();
    core.force(1, start);
    let mut receipts = vec![table.at(start).force(limit, key, 1)];
    for (index, &(when, act)) in trace.steps.iter().enumerate() {
        let now = course.advance(when);
        let at = table.at(now);
        let answers = match act {
            Act::Take(cost) => {
                let decision = at.take(limit, key, course.cost(cost));
                receipts.extend(decision.allowed().then_some(decision));
                Some((decision, core.take(course.cost(cost), now)))
            }
            Act::Peek(cost) => {
                let answers =
                    (at.peek(limit, key, course.cost(cost)), core.peek(course.cost(cost), now));
                core.take(0, now);
                Some(answers)
            }
            Act::Force(cost) => {
                receipts.push(at.force(limit, key, course.cost(cost)));
                if course.cost(cost) > 0 {
                    core.force(course.cost(cost), now);
                }
                None
            }
            Act::Refund(which, part) => {
                let charged = &receipts[which % receipts.len()];
                let units = (u128::from(charged.granted()) * u128::from(part) / 1_000) as u64;
                core.refund(units, Some(charged.receipt().charged_at()), now);
                at.refund(limit, key, charged.receipt(), units);
                None
            }
            Act::RefundNow(cost) => {
                core.refund(course.cost(cost), None, now);
                at.grant(limit, key, course.cost(cost));
                None
            }
        };
        let (decision, outcome) =
            answers.unwrap_or_else(|| (at.peek(limit, key, 0), core.take(0, now)));
        let told = Outcome { served_at: Micros::ZERO, jumped: false, ..outcome };
        prop_assert_eq!(outcome_of(&decision), told, "step {} at {:?} of {}", index, now, limit);
        prop_assert_eq!(at.balance(limit, key), core.balance(now), "step {}", index);
        course.saw(outcome, false);
    }
    Ok(())
}

/// Whether a debt stays below where the implementation stops counting it.
fn can_owe(core: &Core, more: u64, now: Micros) -> bool {
    let (units, period, capacity) = numbers(core.limit());
    let owed = capacity - i128::from(core.balance(now)) + i128::from(more);
    owed < i128::from(MAX_EXACT) && owed * period / units < 1 << 52
}

#[test]
fn traces_that_once_failed() {
    let take = |units| Act::Take(Cost::Exactly(units));
    let refund_now = |units| Act::RefundNow(Cost::Exactly(units));
    let rows: [(Kind, u64, u64, &[Step]); 7] = [
        // A late refund of an old charge was judged by the caller's clock, not as of the mark.
        (
            Kind::Meter,
            10,
            10,
            &[
                (When::Same, take(4)),
                (When::Micros(10), take(4)),
                (When::Late(100), Act::Refund(0, 500)),
            ],
        ),
        // A refund of the last debt left a full bucket for callers with an earlier clock.
        (
            Kind::Token,
            10,
            10,
            &[(When::Same, take(10)), (When::Micros(9), refund_now(1)), (When::Late(0), take(10))],
        ),
        // The refund of a window long gone was taken out of another after a jump of the clock.
        (
            Kind::Window,
            5,
            10,
            &[
                (When::Same, take(3)),
                (When::Micros(15), take(4)),
                (When::Jump(0), Act::Refund(0, 1_000)),
            ],
        ),
        // A window emptied by refunds kept its age over a jump, so the next one was too short.
        (
            Kind::FirstHit,
            5,
            60,
            &[
                (When::Same, take(1)),
                (When::Micros(50), take(1)),
                (When::Same, refund_now(2)),
                (When::Jump(0), take(1)),
            ],
        ),
        // A refund after a jump went to the previous window.
        (Kind::Counter, 10, 100, &[(When::Micros(5), take(3)), (When::Jump(0), refund_now(2))]),
        // A refund after both windows still showed to a caller with an earlier clock.
        (
            Kind::Counter,
            10,
            100,
            &[
                (When::Same, take(4)),
                (When::Part(2_000), Act::Refund(0, 500)),
                (When::Late(0), take(0)),
            ],
        ),
        // The refund of an expired entry was taken out of a later one after a jump.
        (
            Kind::Log,
            9,
            10,
            &[
                (When::Same, take(3)),
                (When::Micros(15), take(4)),
                (When::Jump(0), Act::Refund(0, 1_000)),
            ],
        ),
    ];
    for (kind, units, period, steps) in rows {
        let limit = limit(kind, (units, period), None, 0);
        let trace = Trace { limit, start: 1_000, steps: steps.to_vec() };
        agrees_with_the_model(&trace).unwrap_or_else(|failure| panic!("{trace:?}: {failure}"));
    }
}

proptest! {
    #![proptest_config(config())]

    /// The table, with its packed slots and its short ways, answers as the pure functions do.
    #[test]
    fn the_table_is_the_core(trace in traces(EVERY, jumping(), acts())) {
        agrees_with_the_table(&trace)?;
    }
}

proptest! {
    #![proptest_config(config())]

    /// A token bucket answers as the exact fractions do.
    #[test]
    fn a_token_bucket_is_the_model(trace in traces(&[Kind::Token], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A leaky bucket too, and its queue holds work until the backlog ahead is gone.
    #[test]
    fn a_leaky_bucket_is_the_model(
        trace in traces(&[Kind::Meter, Kind::Queue], jumping(), acts()),
    ) {
        agrees_with_the_model(&trace)?;
    }

    /// A fixed window answers as a recount of its window does, wherever windows begin.
    #[test]
    fn a_fixed_window_is_the_model(
        trace in traces(&[Kind::Window, Kind::Anchored, Kind::FirstHit], jumping(), acts()),
    ) {
        agrees_with_the_model(&trace)?;
    }

    /// A log answers as a recount of the trailing period does.
    #[test]
    fn a_log_is_the_model(trace in traces(&[Kind::Log], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A counter answers as a recount of both windows does.
    #[test]
    fn a_counter_is_the_model(trace in traces(&[Kind::Counter], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A counter in sub-buckets answers as a recount of k + 1 of them does.
    #[test]
    fn sub_buckets_are_the_model(trace in traces(&[Kind::Buckets], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }
}

// ---------------------------------------------------------------------------------------------
// Never more than the limit says

/// Takes along a trace; what was admitted, and when.
fn admitted(trace: &Trace) -> Vec<(i128, i128)> {
    let mut admitted = Vec::new();
    let keep = |_: &Core, cost: u64, _: Micros, outcome: Outcome, _: &Core| {
        if outcome.allowed && cost > 0 {
            admitted.push((outcome.served_at.as_u64().into(), cost.into()));
        }
        Ok(())
    };
    take_along(trace, keep).expect("nothing is asserted");
    admitted
}

/// Units within each span from one admission to another, and how long it is.
fn spans(admitted: &[(i128, i128)]) -> impl Iterator<Item = (i128, i128)> {
    (0..admitted.len()).flat_map(move |from| {
        let mut sum = 0;
        admitted[from..].iter().map(move |&(at, units)| {
            sum += units;
            (at - admitted[from].0, sum)
        })
    })
}

fn numbers(limit: &Limit) -> (i128, i128, i128) {
    let period = limit.period().as_micros() as i128;
    (limit.units().into(), period, limit.capacity().into())
}

proptest! {
    #![proptest_config(config())]

    /// A bucket admits at most burst + rate × time in any interval.
    #[test]
    fn a_bucket_keeps_its_bound(
        trace in traces(&[Kind::Token, Kind::Meter, Kind::Queue], late(), takes()),
    ) {
        let (units, period, capacity) = numbers(&trace.limit);
        for (time, sum) in spans(&admitted(&trace)) {
            prop_assert!(sum * period <= capacity * period + units * time, "{sum} in {time} us");
        }
    }

    /// A fixed window admits at most N between two of its boundaries.
    #[test]
    fn a_fixed_window_keeps_its_bound(
        trace in traces(&[Kind::Window, Kind::Anchored], late(), takes()),
    ) {
        let (_, period, capacity) = numbers(&trace.limit);
        let anchor = match trace.limit.align() {
            Align::Anchor(anchor) => i128::from(anchor.as_u64()),
            _ => 0,
        };
        let admitted = admitted(&trace);
        for &(start, _) in &admitted {
            let window = |at: i128| (at - anchor).div_euclid(period);
            let same = admitted.iter().filter(|(at, _)| window(*at) == window(start));
            let sum: i128 = same.map(|(_, units)| units).sum();
            prop_assert!(sum <= capacity, "{sum} in the window of {start}");
        }
    }

    /// A window opened by its first hit admits at most N before it closes, one period later.
    #[test]
    fn an_opened_window_keeps_its_bound(trace in traces(&[Kind::FirstHit], late(), takes())) {
        let (_, period, capacity) = numbers(&trace.limit);
        let (mut opened, mut sum) = (-period, 0);
        for (at, units) in admitted(&trace) {
            if at - opened >= period {
                (opened, sum) = (at, 0);
            }
            sum += units;
            prop_assert!(sum <= capacity, "{sum} since {opened}");
        }
    }

    /// A log and a counter in sub-buckets admit at most N in any trailing period.
    #[test]
    fn trailing_periods_keep_their_bound(
        trace in traces(&[Kind::Log, Kind::Buckets], late(), takes()),
    ) {
        let (_, period, capacity) = numbers(&trace.limit);
        for (time, sum) in spans(&admitted(&trace)) {
            prop_assert!(time >= period || sum <= capacity, "{sum} in {time} us");
        }
    }

    /// A counter admits only while its estimate, recounted, is at most N; so at most 2 N in any
    /// trailing period.
    #[test]
    fn a_counter_keeps_its_estimate(trace in traces(&[Kind::Counter], late(), takes())) {
        let (_, period, capacity) = numbers(&trace.limit);
        let admitted = admitted(&trace);
        for (index, &(at, _)) in admitted.iter().enumerate() {
            let in_window = |window: i128| -> i128 {
                let until_now = &admitted[..=index];
                let ours = until_now.iter().filter(|(at, _)| at / period == window);
                ours.map(|(_, units)| units).sum()
            };
            let (previous, current) = (in_window(at / period - 1), in_window(at / period));
            let estimate = previous * (period - at % period) / period + current;
            prop_assert!(estimate <= capacity, "an estimate of {estimate} at {at}");
        }
        for (time, sum) in spans(&admitted) {
            prop_assert!(time >= period || sum <= 2 * capacity, "{sum} in {time} us");
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Promises about time

/// `now` later by `wait`, unless that is never or cannot be told.
fn later(now: Micros, wait: Wait) -> Option<Micros> {
    let at = now.as_u64().checked_add(wait.as_micros()?)?;
    (at <= MAX_EXACT).then_some(Micros::new(at))
}

fn earlier(at: Micros) -> Micros {
    Micros::new(at.as_u64() - 1)
}

proptest! {
    #![proptest_config(config())]

    /// Waiting `retry_after` admits, a microsecond less does not; the same for `more_after` and
    /// `reset_after`; and never means never.
    #[test]
    fn waits_are_enough_and_minimal(trace in traces(EVERY, jumping(), takes())) {
        take_along(&trace, |_, cost, now, outcome, after| {
            let retry = outcome.retry_after;
            prop_assert_eq!(outcome.allowed, retry.is_zero());
            prop_assert_eq!(retry.is_never(), cost > trace.limit.capacity());
            if let Some(at) = later(now, retry).filter(|_| !outcome.allowed) {
                prop_assert!(after.judge(cost, at).allowed, "{retry:?} is not enough");
                prop_assert!(!after.judge(cost, earlier(at)).allowed, "{retry:?} is too long");
            }
            let more = outcome.more_after;
            if let Some(at) = later(now, more).filter(|_| !more.is_zero()) {
                prop_assert!(after.judge(0, at).remaining > outcome.remaining);
                prop_assert_eq!(after.judge(0, earlier(at)).remaining, outcome.remaining);
            }
            prop_assert_eq!(more.is_zero(), outcome.remaining == trace.limit.capacity());
            let reset = outcome.reset_after;
            if let Some(at) = later(now, reset).filter(|_| !reset.is_zero()) {
                prop_assert!(after.judge(0, at).reset_after.is_zero());
                prop_assert!(!after.judge(0, earlier(at)).reset_after.is_zero());
            }
            Ok(())
        })?;
    }

    /// Who cannot wait is admitted by a queue exactly if it is not delayed; else waiting
    /// `retry_after` admits, a microsecond less does not, and nothing was charged. Alone and
    /// together with another limit.
    #[test]
    fn who_cannot_wait_is_told_when(trace in traces(&[Kind::Queue], jumping(), takes())) {
        let store = MemoryStore::new(16);
        let other = Limit::per_second(1_000_000).burst(1_000_000).name("other").build().unwrap();
        let mut course = Course::of(&trace);
        for (nth, &(when, act)) in trace.steps.iter().enumerate() {
            let Act::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            let plain = Check::new(&trace.limit, "a").cost(cost);
            let at_once = plain.at_once();
            let peek = |now| store.decide_one(&at_once.act(tollgate::Act::Peek), now);
            let expected = store.decide_one(&plain.act(tollgate::Act::Peek), now);
            let present = store.decide_one(&plain.cost(0), now).outcome();
            let mut outcomes = [Outcome::default(); 2];
            let check = if nth % 3 == 0 { plain } else { at_once };
            let decision = match nth % 3 {
                1 => store.decide_one(&check, now),
                _ => store.decide_each(&[check, Check::new(&other, "b")], now, &mut outcomes),
            };
            let got = if nth % 3 == 1 { decision.outcome() } else { outcomes[0] };
            course.saw(got, got.allowed && cost > 0);
            if nth % 3 == 0 {
                continue;
            }
            prop_assert_eq!(got.allowed, expected.allowed() && expected.delay().is_zero());
            prop_assert_eq!(got.allowed, decision.allowed());
            prop_assert!(got.delay.is_zero());
            if got.allowed {
                continue;
            }
            let retry = got.retry_after;
            prop_assert_eq!(Outcome { allowed: true, retry_after: Wait::ZERO, ..got }, present);
            prop_assert_eq!(store.decide_one(&plain.cost(0), now).outcome(), present);
            prop_assert_eq!(retry.is_never(), cost > trace.limit.capacity());
            if expected.allowed() {
                prop_assert_eq!(retry, expected.delay());
            }
            if let Some(at) = later(now, retry) {
                prop_assert!(peek(at).allowed(), "{:?} is not enough", retry);
                prop_assert!(!peek(earlier(at)).allowed(), "{:?} is too long", retry);
            }
        }
    }

    /// A state with nothing to reset answers every later question as a fresh one.
    #[test]
    fn long_idle_is_fresh(
        trace in traces(EVERY, jumping(), takes()),
        (idle, mut rest) in (0..=3_000u64, traces(EVERY, late(), takes())),
    ) {
        let (mut idled, mut course) = end_of(&trace);
        // A caller before the last charge is served as of that charge; a fresh state has none.
        course.now = course.now.max(course.mark);
        let reset = idled.judge(0, Micros::new(course.now)).reset_after;
        let Some(at) = later(Micros::new(course.now), reset) else { return Ok(()) };
        course.now = at.as_u64();
        let at = course.advance(When::Part(idle));
        let mut fresh = Core::fresh(&trace.limit, at);
        (rest.limit, rest.start) = (trace.limit.clone(), at.as_u64());
        let mut course = Course::of(&rest);
        for &(when, act) in &rest.steps {
            let Act::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when).max(at), course.cost(cost));
            let outcome = fresh.take(cost, now);
            prop_assert_eq!(idled.take(cost, now), outcome);
            course.saw(outcome, outcome.allowed && cost > 0);
        }
    }

    /// What is left passes whole or in parts, with the same result, and not one unit more.
    #[test]
    fn parts_add_up(trace in traces(EVERY, jumping(), takes()), part in 0..=1_000u64) {
        let (core, course) = end_of(&trace);
        let now = Micros::new(course.now);
        let left = core.judge(0, now).remaining;
        let part = (u128::from(left) * u128::from(part) / 1_000) as u64;
        prop_assert!(!core.judge(left + 1, now).allowed);
        let (mut whole, mut parts, mut units) = (core.clone(), core.clone(), core);
        prop_assert!(whole.take(left, now).allowed);
        prop_assert!(parts.take(part, now).allowed && parts.take(left - part, now).allowed);
        prop_assert_eq!(whole.judge(1, now), parts.judge(1, now));
        prop_assert_eq!(whole.judge(1, now).allowed, false);
        if left <= 100 {
            let passed = (0..=left).filter(|_| units.take(1, now).allowed).count();
            prop_assert_eq!(passed as u64, left);
            prop_assert_eq!(whole.judge(1, now), units.judge(1, now));
        }
    }

    /// Peeks, refused requests and those of cost 0 change no later answer, however many there are
    /// and whenever they come, short of a jump of the clock.
    #[test]
    fn polling_changes_nothing(
        trace in traces(EVERY, late(), takes()),
        noise in prop::collection::vec((0..3u8, 0..=3_000u64), 16),
    ) {
        let mut polled = Core::fresh(&trace.limit, Micros::new(trace.start));
        let (mut index, horizon) = (0, u128::from(horizon(&trace.limit)));
        take_along(&trace, |_, cost, now, outcome, _| {
            let (kind, part) = noise[index];
            let ahead = (horizon * u128::from(part) / 1_000) as u64;
            let at = Micros::new(now.as_u64().saturating_add(ahead));
            match kind {
                0 => prop_assert!(polled.take(0, at).allowed),
                1 => _ = polled.peek(cost, at),
                _ => {
                    let refused = polled.judge(0, at).remaining + 1;
                    prop_assert!(!polled.take(refused, at).allowed);
                }
            }
            prop_assert_eq!(polled.take(cost, now), outcome);
            index += 1;
            Ok(())
        })?;
    }

    /// A token bucket and a leaky bucket that is no queue give the same answers.
    #[test]
    fn a_meter_is_a_token_bucket(
        rate in rates(),
        burst in bursts(),
        trace in traces(EVERY, jumping(), acts()),
    ) {
        let trace = Trace { limit: limit(Kind::Token, rate, burst, 0), ..trace };
        let (mut course, start) = (Course::of(&trace), Micros::new(trace.start));
        let mut token = Core::fresh(&trace.limit, start);
        let mut meter = Core::fresh(&limit(Kind::Meter, rate, burst, 0), start);
        for &(when, act) in &trace.steps {
            let now = course.advance(when);
            match act {
                Act::Take(cost) | Act::Peek(cost) => {
                    let cost = course.cost(cost);
                    let outcome = token.take(cost, now);
                    prop_assert_eq!(meter.take(cost, now), outcome);
                    course.saw(outcome, outcome.allowed && cost > 0);
                }
                Act::Force(cost) => {
                    let cost = course.cost(cost);
                    token.force(cost, now);
                    meter.force(cost, now);
                }
                Act::Refund(..) => {}
                Act::RefundNow(cost) => {
                    let cost = course.cost(cost);
                    token.refund(cost, None, now);
                    meter.refund(cost, None, now);
                }
            }
        }
        let now = Micros::new(course.now);
        prop_assert_eq!(token.judge(1, now), meter.judge(1, now));
    }
}

// ---------------------------------------------------------------------------------------------
// Refunds

/// Compares two states at this and later instants, with small and large costs.
fn answer_alike(
    one: &Core,
    other: &Core,
    course: &mut Course,
    probes: &[(When, Cost)],
) -> Result<(), TestCaseError> {
    for &(when, cost) in probes {
        let (now, cost) = (course.advance(when), course.cost(cost));
        prop_assert_eq!(one.judge(cost, now), other.judge(cost, now), "cost {} at {:?}", cost, now);
    }
    Ok(())
}

fn probes() -> impl Strategy<Value = Vec<(When, Cost)>> {
    prop::collection::vec((forward(), costs()), 1..=6)
}

proptest! {
    #![proptest_config(config())]

    /// Taking and giving back at once leaves every later answer as it was.
    #[test]
    fn take_and_refund_is_nothing(
        trace in traces(EVERY, jumping(), takes()),
        (cost, with_receipt) in (costs(), any::<bool>()),
        probes in probes(),
    ) {
        let (core, mut course) = end_of(&trace);
        let now = Micros::new(course.now);
        let cost = course.cost(cost);
        let mut given_back = core.clone();
        let outcome = given_back.take(cost, now);
        if outcome.allowed {
            given_back.refund(cost, with_receipt.then_some(outcome.served_at), now);
        }
        // Late callers are served as of the last charge, so they see that there was one.
        course.now = outcome.served_at.as_u64();
        answer_alike(&core, &given_back, &mut course, &probes)?;
    }

    /// What a charge was counted in is over: giving it back changes nothing.
    #[test]
    fn a_refund_that_comes_too_late_is_nothing(
        trace in traces(EVERY, late(), takes()),
        (cost, between, late) in (costs(), costs(), 0..=2_000u64),
        probes in probes(),
    ) {
        let (mut core, mut course) = end_of(&trace);
        let units = course.cost(cost).clamp(1, trace.limit.capacity());
        core.force(units, Micros::new(course.now));
        let charged = core.judge(0, Micros::new(course.now));
        course.now = charged.served_at.as_u64();
        let charged = core.judge(0, charged.served_at);
        let (_, period, _) = numbers(&trace.limit);
        let memory = match trace.limit.algorithm() {
            Algorithm::SlidingWindowLog => period,
            algorithm if algorithm.is_bucket() => horizon(&trace.limit).into(),
            Algorithm::FixedWindow => charged.reset_after.as_micros().expect("finite").into(),
            _ => 2 * period,
        };
        let late = memory * i128::from(late) / 1_000;
        let at = i128::from(course.now) + memory + late;
        if at > MAX_EXACT.into() {
            return Ok(());
        }
        core.take(course.cost(between), Micros::new((at - late) as u64));
        let before = core.clone();
        core.refund(units, Some(charged.served_at), Micros::new(at as u64));
        prop_assert_eq!(&core.state, &before.state);
        course.now = at as u64;
        answer_alike(&core, &before, &mut course, &probes)?;
    }

    /// However much is given back, there is never more than the capacity, and never less than
    /// before.
    #[test]
    fn refunds_stop_at_the_capacity(
        trace in traces(EVERY, jumping(), takes()),
        backs in prop::collection::vec(costs(), 1..=4),
    ) {
        let (mut core, course) = end_of(&trace);
        let (now, capacity) = (Micros::new(course.now), trace.limit.capacity());
        let mut left = core.judge(0, now).remaining;
        for back in backs {
            core.refund(course.cost(back), None, now);
            let given = core.judge(0, now).remaining;
            prop_assert!((left..=capacity).contains(&given), "{left} left, then {given}");
            prop_assert!(!core.judge(capacity + 1, now).allowed);
            left = given;
        }
    }
}

// ---------------------------------------------------------------------------------------------
// New numbers

/// `limit` with another N, or for a bucket another burst.
fn renumbered(limit: &Limit, units: u64, on_change: OnChange) -> Limit {
    let per = Limit::per(units, limit.period()).algorithm(limit.algorithm());
    let per = match (limit.algorithm(), limit.precision()) {
        (algorithm, _) if algorithm.is_bucket() => per.burst(units),
        (Algorithm::FixedWindow, _) => per.align(limit.align()),
        (_, Precision::Buckets(buckets)) => per.buckets(buckets),
        _ => per,
    };
    let per = if limit.is_queue() { per.queue() } else { per };
    per.on_change(on_change).build().expect("N of a period refills in that period")
}

proptest! {
    #![proptest_config(config())]

    /// Whenever numbers change, what is used by then stays used, or starts fresh, or what is left
    /// scales; and whoever had used nothing has used nothing.
    #[test]
    fn new_numbers_keep_what_is_used(
        trace in traces(EVERY, jumping(), takes()),
        units in prop_oneof![1..=12u64, any_size(MAX_EXACT)],
        when in forward(),
        on_change in select(vec![OnChange::Keep, OnChange::Reset, OnChange::Scale]),
    ) {
        let (mut core, mut course) = end_of(&trace);
        let now = course.advance(when);
        let new = renumbered(&trace.limit, units, on_change);
        let (left, old) = (core.judge(0, now).remaining, trace.limit.capacity());
        core.renumber(&new, now);
        let want = match on_change {
            OnChange::Keep => units - (old - left).min(units),
            OnChange::Reset => units,
            OnChange::Scale => (u128::from(left) * u128::from(units) / u128::from(old)) as u64,
        };
        prop_assert_eq!(core.judge(0, now).remaining, want, "{} left of {}", left, old);
        prop_assert!(core.balance(now) >= 0, "what has no room is forgotten, not owed");
    }
}

// ---------------------------------------------------------------------------------------------
// Several limits, full logs, and numbers out of this world

proptest! {
    #![proptest_config(config())]

    /// Several limits are charged all or none, and the wait is that of the last to let it pass.
    #[test]
    fn together_is_all_or_nothing(
        limits in prop::collection::vec(limits(EVERY), 1..=4),
        trace in traces(EVERY, late(), takes()),
    ) {
        let (mut course, start) = (Course::of(&trace), Micros::new(trace.start));
        let mut cores: Vec<Core> = limits.iter().map(|limit| Core::fresh(limit, start)).collect();
        for &(when, act) in &trace.steps {
            let Act::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            let before = cores.clone();
            let mut alone = cores.clone();
            let together = take_together(&mut cores, cost, now);
            let each: Vec<Outcome> = alone.iter_mut().map(|core| core.take(cost, now)).collect();
            prop_assert_eq!(together.allowed, each.iter().all(|outcome| outcome.allowed));
            let expected = if together.allowed { &alone } else { &before };
            for (core, want) in cores.iter().zip(expected) {
                prop_assert!(core.state == want.state || each.iter().any(|one| one.jumped));
            }
            let waited = later(now, together.retry_after).filter(|_| !together.allowed);
            if let Some(at) = waited {
                prop_assert!(take_together(&mut cores.clone(), cost, at).allowed);
                prop_assert!(!take_together(&mut cores.clone(), cost, earlier(at)).allowed);
            }
            course.saw(each[0], together.allowed);
        }
    }

    /// The table decides several limits at once as the pure functions do one after the other.
    #[test]
    fn together_in_the_table(
        limits in prop::collection::vec(limits(EVERY), 1..=5),
        trace in traces(EVERY, forward(), takes()),
    ) {
        // The same limit twice would be one state.
        let state_of = |limit: &Limit| (limit.id(), limit.units(), limit.capacity());
        let differ = |index: usize| {
            !limits[..index].iter().any(|limit| state_of(limit) == state_of(&limits[index]))
        };
        prop_assume!((0..limits.len()).all(differ));
        let (mut course, start) = (Course::of(&trace), Micros::new(trace.start));
        let mut cores: Vec<Core> = limits.iter().map(|limit| Core::fresh(limit, start)).collect();
        let mut table = InTable::new();
        for &(when, act) in &trace.steps {
            let Act::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            let want = take_together(&mut cores, cost, now);
            let got = table.take_all("anna", &limits, cost, now);
            prop_assert_eq!(got, want, "at {:?} of {:?}", now, limits);
            course.saw(cores[0].judge(0, now), false);
        }
    }

    /// A store restored from a snapshot answers every later question as the one it was taken of.
    #[test]
    fn a_snapshot_is_the_store(
        trace in traces(EVERY, forward(), takes()),
        probes in probes(),
    ) {
        let mut course = Course::of(&trace);
        let (limit, table) = (&trace.limit, InTable::new().0);
        for &(when, act) in &trace.steps {
            let Act::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            course.saw(outcome_of(&table.at(now).take(limit, "anna", cost)), false);
        }
        let now = Micros::new(course.now);
        let bytes = table.store().to_bytes(now);
        let (store, _) = MemoryStore::new(1_000).restore(&bytes, now).expect("our own snapshot");
        let restored = Limiter::new(store, SystemClock);
        for (when, cost) in probes {
            let (now, cost) = (course.advance(when), course.cost(cost));
            let want = table.at(now).take(limit, "anna", cost);
            prop_assert_eq!(restored.at(now).take(limit, "anna", cost), want, "at {:?}", now);
            course.saw(outcome_of(&want), false);
        }
    }

    /// Beyond its cap of instants a log merges neighbours: it may refuse more, never admit more.
    #[test]
    fn a_full_log_never_admits_more(
        gaps in prop::collection::vec(1..=1_000u64, 1_030..=1_100),
        (units, slack) in (1..=3u64, 0..=50u64),
        probes in prop::collection::vec(0..=300_000u64, 8),
    ) {
        let capacity = units * 1_030 + slack;
        let period = 400_000;
        let limit = limit(Kind::Log, (capacity, period), None, 0);
        let mut core = Core::fresh(&limit, Micros::ZERO);
        let (mut at, mut exact) = (0, Vec::new());
        let in_use = |exact: &[(u64, u64)], now: u64| -> u64 {
            let live = exact.iter().rev().take_while(|(at, _)| now - at < period);
            live.map(|(_, units)| units).sum()
        };
        for gap in gaps {
            at += gap;
            let outcome = core.take(units, Micros::new(at));
            if outcome.allowed {
                exact.push((at, units));
            }
            prop_assert!(in_use(&exact, at) <= capacity);
        }
        for probe in probes {
            let now = at + probe;
            let left = core.judge(0, Micros::new(now)).remaining;
            prop_assert!(left <= capacity - in_use(&exact, now), "{left} left at {now}");
        }
        let after = core.judge(0, Micros::new(at + period));
        prop_assert_eq!((after.remaining, after.reset_after), (capacity, Wait::ZERO));
    }

    /// No number and no instant breaks an invariant or panics.
    #[test]
    fn nothing_is_out_of_range(
        limit in limits(EVERY),
        acts in prop::collection::vec(
            (0..5u8, prop_oneof![any::<u64>(), any_size(MAX_EXACT)], prop_oneof![
                any_size(MAX_EXACT),
                Just(0),
                Just(MAX_EXACT),
            ]),
            1..=12,
        ),
        units in any_size(MAX_EXACT),
    ) {
        let mut core = Core::fresh(&limit, Micros::new(acts[0].2));
        for (index, (act, units, at)) in acts.into_iter().enumerate() {
            let now = Micros::new(at);
            match act {
                0 | 1 => _ = core.take(units, now),
                2 => core.force(units, now),
                3 => core.refund(units, None, now),
                _ => core.refund(units, Some(Micros::new(at / (index as u64 + 1))), now),
            }
            let present = core.judge(0, now);
            prop_assert!(present.remaining <= limit.capacity());
            prop_assert_eq!(present.remaining as i64, core.balance(now).max(0));
            prop_assert!(!core.judge(present.remaining + 1, now).allowed);
            prop_assert!(!present.reset_after.is_never() && !present.more_after.is_never());
        }
        core.renumber(&renumbered(&limit, units, OnChange::Scale), Micros::MAX);
        prop_assert!(core.judge(0, Micros::MAX).remaining <= units);
    }
}
