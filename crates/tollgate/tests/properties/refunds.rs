//! Refunds: what is given back is as if it had not been taken.

use super::*;

/// Compares two states at this and later instants, with small and large costs.
fn answer_alike(
    one: &CoreModel,
    other: &CoreModel,
    course: &mut TraceCursor,
    probes: &[(StepTime, StepCost)],
) -> Result<(), TestCaseError> {
    for &(when, cost) in probes {
        let (now, cost) = (course.advance(when), course.cost(cost));
        prop_assert_eq!(one.judge(cost, now), other.judge(cost, now), "cost {} at {:?}", cost, now);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    /// Taking and giving back at once leaves every later answer as it was.
    #[test]
    fn take_and_refund_is_nothing(
        trace in traces(EVERY_SHAPE, jumping(), takes()),
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
        trace in traces(EVERY_SHAPE, late(), takes()),
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
        trace in traces(EVERY_SHAPE, jumping(), takes()),
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
