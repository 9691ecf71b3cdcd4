//! New numbers: what is used stays used.

use super::*;

proptest! {
    #![proptest_config(config())]

    /// Whenever numbers change, what is used by then stays used, or starts fresh, or what is left
    /// scales; and whoever had used nothing has used nothing. The model says the same.
    #[test]
    fn new_numbers_keep_what_is_used(
        trace in traces(EVERY_SHAPE, jumping(), takes()),
        units in prop_oneof![1..=12u64, any_size(MAX_EXACT)],
        when in forward(),
        on_change in select(vec![OnChange::Keep, OnChange::Reset, OnChange::Scale]),
    ) {
        let (mut core, mut course) = end_of(&trace);
        let now = course.advance(when);
        let new = renumbered(&trace.limit, units, on_change);
        let (left, old) = (core.judge(0, now).remaining, trace.limit.capacity());
        let before = core.clone();
        core.renumber(&new, now);
        let want = match on_change {
            OnChange::Keep => units - (old - left).min(units),
            OnChange::Reset => units,
            OnChange::Scale => (u128::from(left) * u128::from(units) / u128::from(old)) as u64,
        };
        prop_assert_eq!(core.judge(0, now).remaining, want, "{} left of {}", left, old);
        let kept = on_change == OnChange::Keep && !new.algorithm().is_bucket();
        prop_assert!(kept || core.balance(now) >= 0, "what has no room is forgotten, not owed");
        if kept {
            prop_assert_eq!(&core.state, &before.state, "counts do not depend on numbers");
        }
    }

    /// Takes under several numbers of one limit: the table answers as the model does, which carries a
    /// state over only when it grants something.
    #[test]
    fn alternating_numbers_are_the_model_s(
        kind in select(EVERY_SHAPE),
        period in select(vec![1, 10_000, 1_000_003, 60_000_000, 86_400_000_000]),
        numbers in prop::collection::vec(prop_oneof![1..=12u64, any_size(1 << 40)], 2..=3),
        steps in prop::collection::vec((0..3usize, 0..=4u64, 0..8u8, forward()), 1..=24),
    ) {
        let first = limit(kind, (1, period), None, 0);
        let limits: Vec<Limit> =
            numbers.iter().map(|units| renumbered(&first, *units, OnChange::Keep)).collect();
        let (mut table, mut model) = (TableExecutor::new(), KeyedExecutor::<AlgorithmModel>::new());
        let start = RequestTrace { limit: first, start: 1_700_000_000 * SECOND, steps: Vec::new() };
        let mut course = TraceCursor::of(&start);
        for (step, &(which, cost, act, when)) in steps.iter().enumerate() {
            let (limit, now) = (&limits[which % limits.len()], course.advance(when));
            match act {
                0 => {
                    let want = model.peek("a", limit, cost, now);
                    prop_assert_eq!(table.peek("a", limit, cost, now), without_clock_fields(want), "step {}", step);
                }
                1 if cost > 0 => {
                    let want = model.force("a", limit, cost, now);
                    prop_assert_eq!(table.force("a", limit, cost, now), want, "step {}", step);
                }
                _ => {
                    let want = model.take("a", limit, cost, now);
                    prop_assert_eq!(table.take("a", limit, cost, now), without_clock_fields(want), "step {}", step);
                    course.record_outcome(want, want.allowed && cost > 0);
                }
            }
        }
    }

    /// At one instant, whoever alternates between numbers gets no more than the largest of them
    /// grants, however often the smaller ones are asked.
    #[test]
    fn alternating_numbers_grant_no_more_than_the_largest(
        kind in select(EVERY_SHAPE),
        rate in rates(),
        numbers in prop::collection::vec(1..=120u64, 2..=4),
        steps in prop::collection::vec((0..4usize, 1..=9u64, 0..3u8), 1..=200),
    ) {
        let first = limit(kind, rate, None, 0);
        let limits: Vec<Limit> =
            numbers.iter().map(|units| renumbered(&first, *units, OnChange::Keep)).collect();
        let store = MemoryStore::new(16);
        let now = Micros::new(1_700_000_000 * SECOND);
        let mut granted = 0;
        for (which, cost, how) in steps {
            let check = Check::new(&limits[which % limits.len()], "a").cost(cost);
            granted += match how {
                0 => store.decide_one(&check, now).granted(),
                1 => store.decide_one(&check.act(tollgate::Act::UpTo), now).granted(),
                _ => store.decide_one(&check.count_denied(), now).granted(),
            };
        }
        prop_assert!(granted <= *numbers.iter().max().unwrap(), "{}", granted);
    }
}

/// What a decision tells of an outcome.
pub(crate) fn without_clock_fields(outcome: Outcome) -> Outcome {
    Outcome { served_at: Micros::ZERO, jumped: false, ..outcome }
}
