//! Random traces: steps relative to what has happened, and what they come to.

use super::*;

/// When the next request comes, relative to what has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepTime {
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
pub(crate) enum StepCost {
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
pub(crate) enum StepAct {
    Take(StepCost),
    Peek(StepCost),
    Force(StepCost),
    /// Charges for a request that was refused.
    Refused(StepCost),
    /// Gives back thousandths of one of the charges so far.
    Refund(usize, u64),
    /// Gives back without a receipt.
    RefundNow(StepCost),
}

pub(crate) type TraceStep = (StepTime, StepAct);

#[derive(Clone)]
pub(crate) struct RequestTrace {
    pub(crate) limit: Limit,
    pub(crate) start: u64,
    pub(crate) steps: Vec<TraceStep>,
}

impl std::fmt::Debug for RequestTrace {
    /// On one line, and the limit as people write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} from {}: ", self.limit, self.limit.align(), self.start)?;
        self.steps.iter().try_for_each(|(when, act)| write!(f, "({when:?}, {act:?}), "))
    }
}

pub(crate) fn off_by_one() -> impl Strategy<Value = i64> {
    -1..=1i64
}

/// The clock only goes forward.
pub(crate) fn forward() -> impl Strategy<Value = StepTime> {
    prop_oneof![
        4 => Just(StepTime::Same),
        2 => (1..=5u64).prop_map(StepTime::Micros),
        3 => (1..=1_100u64).prop_map(StepTime::Part),
        1 => (1_000..=9_000u64).prop_map(StepTime::Part),
        3 => ((1..=4u64), off_by_one()).prop_map(|(units, off)| StepTime::Units(units, off)),
        2 => off_by_one().prop_map(StepTime::Boundary),
        2 => off_by_one().prop_map(StepTime::Retry),
        1 => off_by_one().prop_map(StepTime::More),
        1 => off_by_one().prop_map(StepTime::Reset),
    ]
}

/// Some callers are late.
pub(crate) fn late() -> impl Strategy<Value = StepTime> {
    prop_oneof![6 => forward(), 1 => (0..=1_000u64).prop_map(StepTime::Late)]
}

/// Some callers are late, and sometimes the clock jumps.
pub(crate) fn jumping() -> impl Strategy<Value = StepTime> {
    prop_oneof![
        12 => late(),
        1 => prop_oneof![Just(0), 0..=5_000u64].prop_map(StepTime::Jump),
    ]
}

pub(crate) fn costs() -> impl Strategy<Value = StepCost> {
    prop_oneof![
        4 => (0..=4u64).prop_map(StepCost::Exactly),
        3 => (0..=1_000u64).prop_map(StepCost::Part),
        3 => off_by_one().prop_map(StepCost::Left),
        2 => off_by_one().prop_map(StepCost::Full),
        1 => prop_oneof![Just(u64::MAX), any_size(MAX_EXACT)].prop_map(StepCost::Exactly),
    ]
}

pub(crate) fn takes() -> impl Strategy<Value = StepAct> {
    costs().prop_map(StepAct::Take)
}

pub(crate) fn acts() -> impl Strategy<Value = StepAct> {
    prop_oneof![
        6 => takes(),
        1 => costs().prop_map(StepAct::Peek),
        1 => costs().prop_map(StepAct::Force),
        1 => costs().prop_map(StepAct::Refused),
        2 => (0..4usize, 0..=1_000u64).prop_map(|(which, part)| StepAct::Refund(which, part)),
        1 => costs().prop_map(StepAct::RefundNow),
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
    kinds: &'static [LimitShape],
    when: impl Strategy<Value = StepTime>,
    act: impl Strategy<Value = StepAct>,
) -> impl Strategy<Value = RequestTrace> {
    (limits(kinds), starts(), prop::collection::vec((when, act), 1..=16))
        .prop_map(|(limit, start, steps)| RequestTrace { limit, start, steps })
}

/// Turns relative steps into instants and costs.
#[derive(Clone, Debug)]
pub(crate) struct TraceCursor {
    pub(crate) limit: Limit,
    pub(crate) horizon: u64,
    pub(crate) now: u64,
    pub(crate) mark: u64,
    pub(crate) last: Outcome,
}

impl TraceCursor {
    pub(crate) fn of(trace: &RequestTrace) -> TraceCursor {
        TraceCursor {
            limit: trace.limit.clone(),
            horizon: horizon(&trace.limit),
            now: trace.start,
            mark: trace.start,
            last: Outcome { remaining: trace.limit.capacity(), ..Outcome::default() },
        }
    }

    pub(crate) fn advance(&mut self, when: StepTime) -> Micros {
        let (now, period) = (i128::from(self.now), self.limit.period().as_micros() as i128);
        let (mark, horizon) = (i128::from(self.mark), i128::from(self.horizon));
        let late = i128::from(lateness(&self.limit));
        let after = |wait: Wait, off: i64| {
            let wait = wait.as_micros().map_or(0, i128::from);
            now + (wait + i128::from(off)).max(0)
        };
        let at = match when {
            StepTime::Same => now,
            StepTime::Micros(micros) => now + i128::from(micros),
            StepTime::Part(part) => now + horizon * i128::from(part) / 1_000,
            StepTime::Units(units, off) => {
                let passed = (period * i128::from(units)).div_euclid(self.limit.units().into());
                now + (passed + i128::from(off)).max(0)
            }
            StepTime::Boundary(off) => now.max((now / period + 1) * period + i128::from(off)),
            StepTime::Retry(off) => after(self.last.retry_after, off),
            StepTime::More(off) => after(self.last.more_after, off),
            StepTime::Reset(off) => after(self.last.reset_after, off),
            StepTime::Late(part) => now.min(mark - late * i128::from(part) / 1_000),
            // Not to before what is remembered: a log knows no instant before the epoch.
            StepTime::Jump(part) => {
                let at = mark - late - 1 - horizon * i128::from(part) / 1_000;
                if at < horizon { now } else { at }
            }
        };
        self.now = at.clamp(0, MAX_EXACT.into()) as u64;
        Micros::new(self.now)
    }

    pub(crate) fn cost(&self, cost: StepCost) -> u64 {
        let capacity = self.limit.capacity();
        match cost {
            StepCost::Exactly(units) => units,
            StepCost::Part(part) => (u128::from(capacity) * u128::from(part) / 1_000) as u64,
            StepCost::Left(off) => self.last.remaining.saturating_add_signed(off),
            StepCost::Full(off) => capacity.saturating_add_signed(off),
        }
    }

    /// Notes an answer, and whether it was charged.
    pub(crate) fn record_outcome(&mut self, outcome: Outcome, charged: bool) {
        if charged || outcome.jumped {
            self.mark = outcome.served_at.as_u64();
        }
        self.last = outcome;
    }
}

/// Takes along a trace; calls `each` with the state before, the cost, the instant, the answer and
/// the state after.
pub(crate) fn take_along(
    trace: &RequestTrace,
    mut each: impl FnMut(&CoreModel, u64, Micros, Outcome, &CoreModel) -> Result<(), TestCaseError>,
) -> Result<(CoreModel, TraceCursor), TestCaseError> {
    let mut course = TraceCursor::of(trace);
    let mut core = CoreModel::fresh(&trace.limit, Micros::new(trace.start));
    for &(when, act) in &trace.steps {
        let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
        let (now, cost) = (course.advance(when), course.cost(cost));
        let before = core.clone();
        let outcome = core.take(cost, now);
        course.record_outcome(outcome, outcome.allowed && cost > 0);
        each(&before, cost, now, outcome, &core)?;
    }
    Ok((core, course))
}

/// What a trace leads to.
pub(crate) fn end_of(trace: &RequestTrace) -> (CoreModel, TraceCursor) {
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

pub(crate) fn probes() -> impl Strategy<Value = Vec<(StepTime, StepCost)>> {
    prop::collection::vec((forward(), costs()), 1..=6)
}
