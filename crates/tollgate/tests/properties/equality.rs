//! Core, model and table answer alike, whatever is done to them.

use super::*;

/// The core and the model side by side.
struct CoreAndModel {
    core: CoreModel,
    model: AlgorithmModel,
    /// What was charged since the clock last jumped, and when.
    receipts: Vec<(Micros, u64)>,
}

impl CoreAndModel {
    /// Does the same to both; returns both answers.
    fn act(&mut self, act: StepAct, course: &TraceCursor, now: Micros) -> (Outcome, Outcome) {
        let CoreAndModel { core, model, .. } = self;
        match act {
            StepAct::Take(cost) => {
                let cost = course.cost(cost);
                let answers = (core.take(cost, now), model.take(cost, now));
                if answers.0.allowed && cost > 0 {
                    self.receipts.push((answers.0.served_at, cost));
                }
                return answers;
            }
            StepAct::Peek(cost) => {
                let cost = course.cost(cost);
                return (core.peek(cost, now), model.peek(cost, now));
            }
            StepAct::Force(cost) => {
                let (cost, served_at) = (course.cost(cost), core.judge(0, now).served_at);
                if cost > 0 && can_owe(core, cost, now) {
                    core.force(cost, now);
                    model.force(cost, now);
                    self.receipts.push((served_at, cost));
                }
            }
            StepAct::Refused(cost) => {
                let cost = course.cost(cost);
                if cost > 0 && can_owe(core, cost, now) {
                    core.force_refused(cost, now);
                    model.force_refused(cost, now);
                    // Perhaps not all of it was charged: no receipt is given.
                    self.receipts.clear();
                }
            }
            StepAct::Refund(which, part) => {
                let count = self.receipts.len().max(1);
                if let Some((charged_at, granted)) = self.receipts.get_mut(which % count) {
                    let units = (u128::from(*granted) * u128::from(part) / 1_000) as u64;
                    *granted -= units;
                    core.refund(units, Some(*charged_at), now);
                    model.refund(units, Some(*charged_at), now);
                }
            }
            StepAct::RefundNow(cost) => {
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
fn agrees_with_the_model(trace: &RequestTrace) -> Result<(), TestCaseError> {
    let (mut course, start) = (TraceCursor::of(trace), Micros::new(trace.start));
    let mut pair = CoreAndModel {
        core: CoreModel::fresh(&trace.limit, start),
        model: AlgorithmModel::fresh(&trace.limit, start),
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
fn agrees_with_the_table(trace: &RequestTrace) -> Result<(), TestCaseError> {
    let (mut course, start) = (TraceCursor::of(trace), Micros::new(trace.start));
    let (limit, key) = (&trace.limit, "anna");
    let mut core = CoreModel::fresh(limit, start);
    let TableExecutor(table) = TableExecutor::new();
    core.force(1, start);
    let mut receipts = vec![table.at(start).force(limit, key, 1)];
    for (index, &(when, act)) in trace.steps.iter().enumerate() {
        let now = course.advance(when);
        let at = table.at(now);
        let answers = match act {
            StepAct::Take(cost) => {
                let decision = at.take(limit, key, course.cost(cost));
                receipts.extend(decision.allowed().then_some(decision));
                Some((decision, core.take(course.cost(cost), now)))
            }
            StepAct::Peek(cost) => {
                let answers =
                    (at.peek(limit, key, course.cost(cost)), core.peek(course.cost(cost), now));
                core.take(0, now);
                Some(answers)
            }
            StepAct::Force(cost) => {
                receipts.push(at.force(limit, key, course.cost(cost)));
                if course.cost(cost) > 0 {
                    core.force(course.cost(cost), now);
                }
                None
            }
            StepAct::Refused(cost) => {
                let cost = course.cost(cost);
                let counting = Check::new(limit, key).cost(cost).count_denied();
                let decision = at.decide(&[counting]);
                let outcome = core.take(cost, now);
                prop_assert_eq!(decision.allowed(), outcome.allowed, "step {}", index);
                if !outcome.allowed {
                    core.force_refused(cost, now);
                }
                None
            }
            StepAct::Refund(which, part) => {
                let charged = &receipts[which % receipts.len()];
                let units = (u128::from(charged.granted()) * u128::from(part) / 1_000) as u64;
                core.refund(units, Some(charged.receipt().charged_at()), now);
                at.refund(limit, key, charged.receipt(), units);
                None
            }
            StepAct::RefundNow(cost) => {
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
        course.record_outcome(outcome, false);
    }
    Ok(())
}

/// Whether a debt stays below where the implementation stops counting it.
fn can_owe(core: &CoreModel, more: u64, now: Micros) -> bool {
    let (units, period, capacity) = numbers(core.limit());
    let owed = capacity - i128::from(core.balance(now)) + i128::from(more);
    owed < i128::from(MAX_EXACT) && owed * period / units < 1 << 52
}

#[test]
fn traces_that_once_failed() {
    let take = |units| StepAct::Take(StepCost::Exactly(units));
    let refund_now = |units| StepAct::RefundNow(StepCost::Exactly(units));
    let rows: [(LimitShape, u64, u64, &[TraceStep]); 7] = [
        // A late refund of an old charge was judged by the caller's clock, not as of the mark.
        (
            LimitShape::Meter,
            10,
            10,
            &[
                (StepTime::Same, take(4)),
                (StepTime::Micros(10), take(4)),
                (StepTime::Late(100), StepAct::Refund(0, 500)),
            ],
        ),
        // A refund of the last debt left a full bucket for callers with an earlier clock.
        (
            LimitShape::Token,
            10,
            10,
            &[
                (StepTime::Same, take(10)),
                (StepTime::Micros(9), refund_now(1)),
                (StepTime::Late(0), take(10)),
            ],
        ),
        // The refund of a window long gone was taken out of another after a jump of the clock.
        (
            LimitShape::Window,
            5,
            10,
            &[
                (StepTime::Same, take(3)),
                (StepTime::Micros(15), take(4)),
                (StepTime::Jump(0), StepAct::Refund(0, 1_000)),
            ],
        ),
        // A window emptied by refunds kept its age over a jump, so the next one was too short.
        (
            LimitShape::FirstHit,
            5,
            60,
            &[
                (StepTime::Same, take(1)),
                (StepTime::Micros(50), take(1)),
                (StepTime::Same, refund_now(2)),
                (StepTime::Jump(0), take(1)),
            ],
        ),
        // A refund after a jump went to the previous window.
        (
            LimitShape::Counter,
            10,
            100,
            &[(StepTime::Micros(5), take(3)), (StepTime::Jump(0), refund_now(2))],
        ),
        // A refund after both windows still showed to a caller with an earlier clock.
        (
            LimitShape::Counter,
            10,
            100,
            &[
                (StepTime::Same, take(4)),
                (StepTime::Part(2_000), StepAct::Refund(0, 500)),
                (StepTime::Late(0), take(0)),
            ],
        ),
        // The refund of an expired entry was taken out of a later one after a jump.
        (
            LimitShape::Log,
            9,
            10,
            &[
                (StepTime::Same, take(3)),
                (StepTime::Micros(15), take(4)),
                (StepTime::Jump(0), StepAct::Refund(0, 1_000)),
            ],
        ),
    ];
    for (kind, units, period, steps) in rows {
        let limit = limit(kind, (units, period), None, 0);
        let trace = RequestTrace { limit, start: 10_000_000, steps: steps.to_vec() };
        agrees_with_the_model(&trace).unwrap_or_else(|failure| panic!("{trace:?}: {failure}"));
    }
}

proptest! {
    #![proptest_config(config())]

    /// The table, with its packed slots and its short ways, answers as the pure functions do.
    #[test]
    fn the_table_is_the_core(trace in traces(EVERY_SHAPE, jumping(), acts())) {
        agrees_with_the_table(&trace)?;
    }
}

proptest! {
    #![proptest_config(config())]

    /// A token bucket answers as the exact fractions do.
    #[test]
    fn a_token_bucket_is_the_model(trace in traces(&[LimitShape::Token], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A leaky bucket too, and its queue holds work until the backlog ahead is gone.
    #[test]
    fn a_leaky_bucket_is_the_model(
        trace in traces(&[LimitShape::Meter, LimitShape::Queue], jumping(), acts()),
    ) {
        agrees_with_the_model(&trace)?;
    }

    /// A fixed window answers as a recount of its window does, wherever windows begin.
    #[test]
    fn a_fixed_window_is_the_model(
        trace in traces(&[LimitShape::Window, LimitShape::Anchored, LimitShape::FirstHit], jumping(), acts()),
    ) {
        agrees_with_the_model(&trace)?;
    }

    /// A log answers as a recount of the trailing period does.
    #[test]
    fn a_log_is_the_model(trace in traces(&[LimitShape::Log], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A counter answers as a recount of both windows does.
    #[test]
    fn a_counter_is_the_model(trace in traces(&[LimitShape::Counter], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }

    /// A counter in sub-buckets answers as a recount of k + 1 of them does.
    #[test]
    fn sub_buckets_are_the_model(trace in traces(&[LimitShape::Buckets], jumping(), acts())) {
        agrees_with_the_model(&trace)?;
    }
}
