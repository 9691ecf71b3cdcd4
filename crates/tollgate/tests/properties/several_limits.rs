//! Several limits, full logs, and numbers out of this world.

use super::*;

proptest! {
    #![proptest_config(config())]

    /// Several limits are charged all or none, and the wait is that of the last to let it pass.
    #[test]
    fn together_is_all_or_nothing(
        limits in prop::collection::vec(limits(EVERY_SHAPE), 1..=4),
        trace in traces(EVERY_SHAPE, late(), takes()),
    ) {
        let (mut course, start) = (TraceCursor::of(&trace), Micros::new(trace.start));
        let mut cores: Vec<CoreModel> = limits.iter().map(|limit| CoreModel::fresh(limit, start)).collect();
        for &(when, act) in &trace.steps {
            let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
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
            course.record_outcome(each[0], together.allowed);
        }
    }

    /// The table decides several limits at once as the pure functions do one after the other.
    #[test]
    fn together_in_the_table(
        limits in prop::collection::vec(limits(EVERY_SHAPE), 1..=5),
        trace in traces(EVERY_SHAPE, forward(), takes()),
    ) {
        // The same limit twice would be one state.
        let state_of = |limit: &Limit| (limit.id(), limit.units(), limit.capacity());
        let differ = |index: usize| {
            !limits[..index].iter().any(|limit| state_of(limit) == state_of(&limits[index]))
        };
        prop_assume!((0..limits.len()).all(differ));
        let (mut course, start) = (TraceCursor::of(&trace), Micros::new(trace.start));
        let mut cores: Vec<CoreModel> = limits.iter().map(|limit| CoreModel::fresh(limit, start)).collect();
        let mut table = TableExecutor::new();
        for &(when, act) in &trace.steps {
            let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            let want = take_together(&mut cores, cost, now);
            let got = table.take_all("anna", &limits, cost, now);
            prop_assert_eq!(got, want, "at {:?} of {:?}", now, limits);
            course.record_outcome(cores[0].judge(0, now), false);
        }
    }

    /// A store restored from a snapshot answers every later question as the one it was taken of.
    #[test]
    fn a_snapshot_is_the_store(
        trace in traces(EVERY_SHAPE, forward(), takes()),
        probes in probes(),
    ) {
        let mut course = TraceCursor::of(&trace);
        let (limit, table) = (&trace.limit, TableExecutor::new().0);
        for &(when, act) in &trace.steps {
            let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            course.record_outcome(outcome_of(&table.at(now).take(limit, "anna", cost)), false);
        }
        let now = Micros::new(course.now);
        let bytes = table.store().to_bytes(now);
        let (store, _) = MemoryStore::new(1_000).restore(&bytes, now).expect("our own snapshot");
        let restored = Limiter::new(store, SystemClock);
        for (when, cost) in probes {
            let (now, cost) = (course.advance(when), course.cost(cost));
            let want = table.at(now).take(limit, "anna", cost);
            prop_assert_eq!(restored.at(now).take(limit, "anna", cost), want, "at {:?}", now);
            course.record_outcome(outcome_of(&want), false);
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
        let limit = limit(LimitShape::Log, (capacity, period), None, 0);
        let mut core = CoreModel::fresh(&limit, Micros::ZERO);
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
        limit in limits(EVERY_SHAPE),
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
        let mut core = CoreModel::fresh(&limit, Micros::new(acts[0].2));
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
