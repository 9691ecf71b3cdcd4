//! Changes between numbers of any size: usage that is worth millennia to a far smaller limit is kept, and
//! everything is as the model says, to the unit.

use super::changed_numbers::{START, bucket};
use super::*;

/// A period and the numbers of some limits.
fn extreme_changes() -> impl Strategy<Value = Vec<Limit>> {
    let period = prop_oneof![select(vec![1, SECOND, 86_400 * SECOND, CENTURY]), any_size(CENTURY),];
    let size = || prop_oneof![2 => any_size(MAX_EXACT), 1 => 1..=9u64, 1 => Just(MAX_EXACT)];
    let numbers = prop::collection::vec((size(), size()), 2..=3);
    (0..3usize, period, numbers).prop_map(|(kind, period, numbers)| {
        numbers
            .into_iter()
            .map(|(units, capacity)| bucket(kind, (units, period), capacity))
            .collect()
    })
}

/// The table and the model side by side, and a cursor that turns relative steps into costs and instants.
struct ComparedRun {
    table: TableExecutor,
    model: KeyedExecutor<AlgorithmModel>,
    course: TraceCursor,
}

impl ComparedRun {
    fn start(limit: &Limit) -> ComparedRun {
        let limit = limit.clone();
        let trace = RequestTrace { limit, start: START.as_u64(), steps: Vec::new() };
        let (table, model) = (TableExecutor::new(), KeyedExecutor::new());
        ComparedRun { table, model, course: TraceCursor::of(&trace) }
    }

    fn step(&mut self, limit: &Limit, act: StepAct, when: StepTime) -> Result<(), TestCaseError> {
        (self.course.limit, self.course.horizon) = (limit.clone(), horizon(limit));
        let now = self.course.advance(when);
        let (table, model) = (&mut self.table, &mut self.model);
        match act {
            StepAct::Take(cost) => {
                let cost = self.course.cost(cost);
                let want = model.take("a", limit, cost, now);
                prop_assert_eq!(table.take("a", limit, cost, now), without_clock_fields(want));
                self.course.record_outcome(want, want.allowed && cost > 0);
            }
            StepAct::Force(cost) => {
                let cost = self.course.cost(cost).clamp(1, MAX_EXACT);
                let want = model.force("a", limit, cost, now);
                prop_assert_eq!(table.force("a", limit, cost, now), want);
            }
            StepAct::RefundNow(cost) => {
                let cost = self.course.cost(cost).clamp(1, MAX_EXACT);
                let want = model.refund("a", limit, cost, now);
                prop_assert_eq!(table.refund("a", limit, cost, now), want);
            }
            _ => unreachable!("no other act is tried"),
        }
        Ok(())
    }
}

/// Takes most of all, and what settles them.
fn settled_acts() -> impl Strategy<Value = StepAct> {
    prop_oneof![
        8 => takes(),
        1 => costs().prop_map(StepAct::Force),
        1 => costs().prop_map(StepAct::RefundNow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases / 2, ..config() })]

    #[test]
    fn extreme_changes_are_the_model_s(
        limits in extreme_changes(),
        steps in prop::collection::vec((0..3usize, settled_acts(), forward()), 1..=16),
    ) {
        let mut run = ComparedRun::start(&limits[0]);
        for (which, act, when) in steps {
            run.step(&limits[which % limits.len()], act, when)?;
            for limit in &limits {
                run.step(limit, StepAct::Take(StepCost::Exactly(0)), StepTime::Same)?;
            }
        }
    }
}

/// Would catch: usage that is forgotten or counted as everything once it is worth more time than a debt may last.
#[test]
fn a_bucket_that_was_choked_by_a_far_smaller_limit_keeps_its_usage() {
    let day = 86_400 * SECOND;
    // period, wide N and capacity, used, narrow numbers
    let cases = [
        (day, 100_000, 60_000, (1, 1)),
        (day, 1_000_000, 600_000, (1, 1)),
        (day, 1_000_000_000, 999_999_999, (7, 3)),
        (SECOND, MAX_EXACT, MAX_EXACT - 5, (1, 1)),
        (CENTURY, MAX_EXACT, MAX_EXACT - 1, (1, 1)),
    ];
    for (kind, (period, wide, used, narrow)) in
        (0..3).flat_map(|kind| cases.map(|case| (kind, case)))
    {
        let (wide, narrow) =
            (bucket(kind, (wide, period), wide), bucket(kind, (narrow.0, period), narrow.1));
        let store = MemoryStore::new(16);
        let take =
            |limit: &Limit, cost| store.decide_one(&Check::new(limit, "a").cost(cost), START);
        let left = wide.capacity() - used;
        assert_eq!(take(&wide, used).remaining(), left);
        for _ in 0..3 {
            let refused = take(&narrow, 1);
            assert!(
                !refused.allowed()
                    && refused.retry_after() <= Wait::from_micros(narrow.full_refill_us())
            );
            assert_eq!(take(&wide, 0).remaining(), left, "{wide} choked by {narrow}");
        }
        assert!(!take(&wide, left + 1).allowed(), "{wide} choked by {narrow}");
        assert!(take(&wide, left).allowed(), "{wide} choked by {narrow}");
    }
}
