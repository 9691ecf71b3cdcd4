//! Random traces: steps relative to what has happened, and what they come to.

use super::*;

/// When the next request comes, relative to what has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
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
    /// So many thousandths of what a caller may be late before the last charge.
    Late(u64),
    /// Further back than that: the clock jumped.
    Jump(u64),
}

/// How much, relative to what there is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
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
pub(crate) enum Act {
    Take(Cost),
    Peek(Cost),
    Force(Cost),
    /// Charges for a request that was refused.
    Refused(Cost),
    /// Gives back thousandths of one of the charges so far.
    Refund(usize, u64),
    /// Gives back without a receipt.
    RefundNow(Cost),
}

pub(crate) type Step = (When, Act);

#[derive(Clone)]
pub(crate) struct Trace {
    pub(crate) limit: Limit,
    pub(crate) start: u64,
    pub(crate) steps: Vec<Step>,
}

impl std::fmt::Debug for Trace {
    /// On one line, and the limit as people write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} from {}: ", self.limit, self.limit.align(), self.start)?;
        self.steps.iter().try_for_each(|(when, act)| write!(f, "({when:?}, {act:?}), "))
    }
}

pub(crate) fn beside() -> impl Strategy<Value = i64> {
    -1..=1i64
}

/// The clock only goes forward.
pub(crate) fn forward() -> impl Strategy<Value = When> {
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
pub(crate) fn late() -> impl Strategy<Value = When> {
    prop_oneof![6 => forward(), 1 => (0..=1_000u64).prop_map(When::Late)]
}

/// Some callers are late, and sometimes the clock jumps.
pub(crate) fn jumping() -> impl Strategy<Value = When> {
    prop_oneof![
        12 => late(),
        1 => prop_oneof![Just(0), 0..=5_000u64].prop_map(When::Jump),
    ]
}

pub(crate) fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => (0..=4u64).prop_map(Cost::Exactly),
        3 => (0..=1_000u64).prop_map(Cost::Part),
        3 => beside().prop_map(Cost::Left),
        2 => beside().prop_map(Cost::Full),
        1 => prop_oneof![Just(u64::MAX), any_size(MAX_EXACT)].prop_map(Cost::Exactly),
    ]
}

pub(crate) fn takes() -> impl Strategy<Value = Act> {
    costs().prop_map(Act::Take)
}

pub(crate) fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => takes(),
        1 => costs().prop_map(Act::Peek),
        1 => costs().prop_map(Act::Force),
        1 => costs().prop_map(Act::Refused),
        2 => (0..4usize, 0..=1_000u64).prop_map(|(which, part)| Act::Refund(which, part)),
        1 => costs().prop_map(Act::RefundNow),
    ]
}

pub(crate) fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => 0..=5u64,
        2 => Just(1_700_000_000 * SECOND),
        1 => any_size(MAX_EXACT),
        1 => Just(MAX_EXACT - 2 * CENTURY),
    ]
}

pub(crate) fn traces(
    kinds: &'static [Kind],
    when: impl Strategy<Value = When>,
    act: impl Strategy<Value = Act>,
) -> impl Strategy<Value = Trace> {
    (limits(kinds), starts(), prop::collection::vec((when, act), 1..=16))
        .prop_map(|(limit, start, steps)| Trace { limit, start, steps })
}

/// Turns relative steps into instants and costs.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) limit: Limit,
    pub(crate) horizon: u64,
    pub(crate) now: u64,
    pub(crate) mark: u64,
    pub(crate) last: Outcome,
}

impl Course {
    pub(crate) fn of(trace: &Trace) -> Course {
        Course {
            limit: trace.limit.clone(),
            horizon: horizon(&trace.limit),
            now: trace.start,
            mark: trace.start,
            last: Outcome { remaining: trace.limit.capacity(), ..Outcome::default() },
        }
    }

    pub(crate) fn advance(&mut self, when: When) -> Micros {
        let (now, period) = (i128::from(self.now), self.limit.period().as_micros() as i128);
        let (mark, horizon) = (i128::from(self.mark), i128::from(self.horizon));
        let late = i128::from(lateness(&self.limit));
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
            When::Late(part) => now.min(mark - late * i128::from(part) / 1_000),
            // Not to before what is remembered: a log knows no instant before the epoch.
            When::Jump(part) => {
                let at = mark - late - 1 - horizon * i128::from(part) / 1_000;
                if at < horizon { now } else { at }
            }
        };
        self.now = at.clamp(0, MAX_EXACT.into()) as u64;
        Micros::new(self.now)
    }

    pub(crate) fn cost(&self, cost: Cost) -> u64 {
        let capacity = self.limit.capacity();
        match cost {
            Cost::Exactly(units) => units,
            Cost::Part(part) => (u128::from(capacity) * u128::from(part) / 1_000) as u64,
            Cost::Left(off) => self.last.remaining.saturating_add_signed(off),
            Cost::Full(off) => capacity.saturating_add_signed(off),
        }
    }

    /// Notes an answer, and whether it was charged.
    pub(crate) fn saw(&mut self, outcome: Outcome, charged: bool) {
        if charged || outcome.jumped {
            self.mark = outcome.served_at.as_u64();
        }
        self.last = outcome;
    }
}

/// Takes along a trace; calls `each` with the state before, the cost, the instant, the answer and
/// the state after.
pub(crate) fn take_along(
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
pub(crate) fn end_of(trace: &Trace) -> (Core, Course) {
    take_along(trace, |_, _, _, _, _| Ok(())).expect("nothing is asserted")
}

/// `now` later by `wait`, unless that is never or cannot be told.
pub(crate) fn later(now: Micros, wait: Wait) -> Option<Micros> {
    let at = now.as_u64().checked_add(wait.as_micros()?)?;
    (at <= MAX_EXACT).then_some(Micros::new(at))
}

pub(crate) fn earlier(at: Micros) -> Micros {
    Micros::new(at.as_u64() - 1)
}

pub(crate) fn probes() -> impl Strategy<Value = Vec<(When, Cost)>> {
    prop::collection::vec((forward(), costs()), 1..=6)
}
