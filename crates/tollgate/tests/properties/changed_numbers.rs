//! Changes of a bucket's numbers, by the three promises: a caller that waits as told is admitted, a change
//! locks nobody out, and instances with different numbers admit no more than the larger limit would.

use super::*;

/// A bucket: token, leaky or queue. Its capacity is smaller if it would take more than 100 years to refill.
pub(crate) fn bucket(kind: usize, (units, period): (u64, u64), capacity: u64) -> Limit {
    let century_units = u128::from(CENTURY) * u128::from(units) / u128::from(period);
    let capacity = u128::from(capacity).min(century_units) as u64;
    let limit = Limit::per(units, Duration::from_micros(period)).burst(capacity).name("changed");
    let limit = match kind {
        0 => limit,
        1 => limit.algorithm(Algorithm::LeakyBucket),
        _ => limit.algorithm(Algorithm::LeakyBucket).queue(),
    };
    limit.build().unwrap()
}

/// The numbers of a bucket: N and capacity.
fn numbers() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        4 => (prop_oneof![1..=7u64, 1..=6_000u64, Just(1_000_003)], prop_oneof![1..=6u64, 1..=200u64]),
        1 => (any_size(MAX_EXACT), any_size(MAX_EXACT)),
    ]
}

/// A period, and the numbers of a limit before and after some changes.
fn changes() -> impl Strategy<Value = (usize, u64, Vec<(u64, u64)>)> {
    let periods = select(vec![1_000_000, 1_000_003, 60_000_000, 86_400_000_000, CENTURY]);
    (0..3usize, periods, prop::collection::vec(numbers(), 2..=4))
}

/// The instants at which each of these numbers took effect: unknown, long ago, during the traffic or in the
/// future.
fn instants() -> impl Strategy<Value = [Option<Micros>; 4]> {
    let instant = prop_oneof![
        Just(None),
        Just(Some(Micros::new(1))),
        (0..3_000_000u64).prop_map(|after| Some(START.after(Wait::from_micros(after)))),
        (0..500_000_000u64).prop_map(|after| Some(START.after(Wait::from_micros(after)))),
    ];
    [instant.clone(), instant.clone(), instant.clone(), instant]
}

/// The limits of some changes, each with the instant at which its numbers took effect.
fn limits_of(
    (kind, period, numbers): &(usize, u64, Vec<(u64, u64)>),
    since: [Option<Micros>; 4],
) -> Vec<Limit> {
    let limits = numbers.iter().zip(since);
    limits
        .map(|(&(units, capacity), since)| {
            bucket(*kind, (units, *period), capacity).with_numbers_since(since)
        })
        .collect()
}

/// Steps: the numbers that are asked, the act, its cost, and microseconds until it. A cost of 9 is a whole
/// bucket, and 8 is half of one.
fn steps() -> impl Strategy<Value = Vec<(usize, u8, u64, u64)>> {
    let gap = prop_oneof![Just(0), 0..2_000u64, 0..3_000_000u64, 0..200_000_000u64];
    prop::collection::vec((0..4usize, 0..8u8, 1..=9u64, gap), 1..=40)
}

pub(crate) const START: Micros = Micros::new(1_700_000_000 * SECOND);

/// Runs one step and returns the units that were granted.
fn step(store: &MemoryStore, limit: &Limit, act: u8, cost: u64, now: Micros) -> u64 {
    let cost = match cost {
        9 => limit.capacity(),
        8 => limit.capacity().div_ceil(2),
        _ => cost,
    };
    let check = Check::new(limit, "a").cost(cost);
    let beside = Limit::per_second(1).burst(1).name("beside").build().unwrap();
    match act {
        0 => store.decide_one(&check.act(tollgate::Act::UpTo), now).granted(),
        1 => store.decide_one(&check.act(tollgate::Act::Peek), now).granted(),
        2 => {
            // Often another limit refuses the request.
            let mut outcomes = [Outcome::default(); 2];
            let both = [check, Check::new(&beside, "a")];
            let _ = store.decide_each(&both, now, &mut outcomes);
            outcomes[0].charged
        }
        3 => {
            let mut decisions = Vec::new();
            store.decide_batch(&[check, check], now, &mut decisions);
            decisions.iter().map(tollgate::Decision::granted).sum()
        }
        _ => store.decide_one(&check, now).granted(),
    }
}

/// A store in which these steps have been made, and the instant of the last one.
fn after_steps(limits: &[Limit], steps: Vec<(usize, u8, u64, u64)>) -> (MemoryStore, Micros) {
    let (store, mut now) = (MemoryStore::new(16), START);
    for (which, act, cost, gap) in steps {
        now = now.after(Wait::from_micros(gap));
        step(&store, &limits[which % limits.len()], act, cost, now);
    }
    (store, now)
}

proptest! {
    #![proptest_config(config())]

    /// Whatever was asked under whatever numbers: the caller that is refused and then waits as it was told is
    /// admitted, not a microsecond earlier, and never has to wait longer than a full refill.
    #[test]
    fn a_caller_that_waits_as_told_is_admitted(
        changes in changes(),
        since in instants(),
        before in steps(),
        (which, cost, alone) in (0..4usize, 1..=4u64, any::<bool>()),
    ) {
        let limits = limits_of(&changes, since);
        let (store, now) = after_steps(&limits, before);
        let limit = &limits[which % limits.len()];
        let check = Check::new(limit, "a").cost(cost.min(limit.capacity()));
        let take = |now: Micros| match alone {
            true => store.decide_one(&check, now),
            false => {
                let beside = Limit::per_second(1_000).name("wide").build().unwrap();
                store.decide_now(&[check, Check::new(&beside, "a")], now)
            }
        };
        let refused = take(now);
        if !refused.allowed() {
            let wait = refused.retry_after();
            prop_assert!(wait.as_micros().unwrap() <= limit.full_refill_us(), "{}", limit);
            let peeked = store.decide_one(&check.act(tollgate::Act::Peek), now);
            prop_assert_eq!(peeked.retry_after(), wait);
            let then = now.after(wait);
            let early = take(Micros::new(then.as_u64() - 1));
            prop_assert!(!early.allowed(), "{}: earlier than told", limit);
            prop_assert!(take(then).allowed(), "{}: told {:?}", limit, wait);
        }
    }

    /// A caller whom only peeks have told a wait under numbers that took effect before is admitted after it,
    /// although nothing has converted the state meanwhile.
    #[test]
    fn a_caller_that_waits_as_a_peek_told_is_admitted(
        changes in changes(),
        since in instants(),
        before in steps(),
        (which, cost, took_effect) in (0..4usize, 1..=4u64, 0..200_000_000u64),
        looks in prop::collection::vec(0..=100u64, 0..=3),
    ) {
        let limits = limits_of(&changes, since);
        let (store, now) = after_steps(&limits, before);
        let since = Micros::new(now.as_u64() - took_effect);
        let limit = limits[which % limits.len()].clone().with_numbers_since(Some(since));
        let check = Check::new(&limit, "a").cost(cost.min(limit.capacity()));
        let peek = |now: Micros| store.decide_one(&check.act(tollgate::Act::Peek), now);
        let told = peek(now);
        if !told.allowed() {
            let wait = told.retry_after().as_micros().unwrap();
            prop_assert!(wait <= limit.full_refill_us(), "{}", limit);
            let then = now.after(told.retry_after());
            for percent in looks {
                let at = now.after(Wait::from_micros(wait / 100 * percent));
                let left = then.as_u64() - at.as_u64();
                prop_assert!(peek(at).retry_after() <= Wait::from_micros(left), "{}", limit);
            }
            prop_assert!(peek(then).allowed(), "{}: told {:?}", limit, told.retry_after());
            let taken = store.decide_one(&check, then);
            prop_assert!(taken.allowed(), "{}: told {:?}", limit, told.retry_after());
        }
    }

    /// Instances that use different numbers on one store admit no more than the largest rate and the
    /// largest capacity would, over any time.
    #[test]
    fn instances_with_different_numbers_admit_no_more_than_the_larger(
        changes in changes(),
        since in instants(),
        traffic in steps(),
        flips in 1..=12usize,
    ) {
        let limits = limits_of(&changes, since);
        let (_, period, numbers) = changes;
        let (rate, capacity) = (
            u128::from(numbers.iter().map(|one| one.0).max().unwrap()),
            u128::from(numbers.iter().map(|one| one.1).max().unwrap()),
        );
        let store = MemoryStore::new(16);
        let mut now = START;
        let mut granted: Vec<(Micros, u128)> = Vec::new();
        for (which, act, cost, gap) in traffic {
            now = now.after(Wait::from_micros(gap));
            let flips = (0..flips).map(|flip| &limits[(which + flip) % limits.len()]);
            let units: u64 = flips.map(|limit| step(&store, limit, act, cost, now)).sum();
            granted.push((now, units.into()));
        }
        for (first, (start, _)) in granted.iter().enumerate() {
            let mut sum = 0;
            for (at, units) in &granted[first..] {
                sum += units;
                let passed = u128::from(at.as_u64() - start.as_u64());
                let most = (capacity * u128::from(period) + rate * passed) / u128::from(period);
                prop_assert!(sum <= most, "{} of {} in {} us", sum, most, passed);
            }
        }
    }
}

/// The changes that operators complained about.
#[test]
fn a_raised_limit_helps_at_once_and_a_lowered_one_keeps_its_promise() {
    for kind in 0..3 {
        let minute = 60 * SECOND;
        let store = MemoryStore::new(16);
        let take = |limit: &Limit, at: Micros| store.decide_one(&Check::new(limit, "a"), at);
        let after = |at: Micros, micros: u64| at.after(Wait::from_micros(micros));
        let (slow, fast) = (bucket(kind, (2, minute), 3), bucket(kind, (6_000, minute), 3));
        for _ in 0..4 {
            let _ = take(&slow, START);
        }
        let refused = take(&fast, after(START, 5));
        assert_eq!(refused.retry_after(), Wait::from_micros(10_000), "{fast}");
        assert!(take(&fast, after(START, 10_005)).allowed(), "{fast}");

        store.reset(&fast, "a".into(), START);
        let (wide, narrow) = (bucket(kind, (60, minute), 20), bucket(kind, (60, minute), 5));
        for _ in 0..21 {
            let _ = take(&wide, START);
        }
        assert_eq!(take(&narrow, START).retry_after(), Wait::from_micros(SECOND), "{narrow}");
        assert!(take(&narrow, after(START, SECOND)).allowed(), "{narrow}");
        // The fifteen that the narrow one did not count are counted by the wide one again.
        assert!(!take(&wide, after(START, SECOND)).allowed(), "{wide}");
        assert!(take(&wide, after(START, 2 * SECOND)).allowed(), "{wide}");
    }
}

/// The case of a raised limit that `explain` looks at first; and a lowered one keeps what was refilled before.
#[test]
fn a_peek_is_the_first_to_look_under_new_numbers() {
    let minute = 60 * SECOND;
    let after = |micros: u64| START.after(Wait::from_micros(micros));
    for kind in 0..3 {
        let store = MemoryStore::new(16);
        let take = |limit: &Limit, at: Micros| store.decide_one(&Check::new(limit, "a"), at);
        let peek = |limit: &Limit, at: Micros| {
            store.decide_one(&Check::new(limit, "a").act(tollgate::Act::Peek), at)
        };
        let (slow, fast) = (bucket(kind, (2, minute), 3), bucket(kind, (6_000, minute), 3));
        for _ in 0..4 {
            let _ = take(&slow, START);
        }
        let fast = fast.with_numbers_since(Some(after(5)));
        let told = peek(&fast, after(5)).retry_after().as_micros().unwrap();
        assert!((9_990..=10_000).contains(&told), "{told}");
        assert!(!peek(&fast, after(5 + told - 1)).allowed(), "{fast}");
        assert!(take(&fast, after(5 + told)).allowed(), "{fast}");

        store.reset(&fast, "a".into(), START);
        let (wide, narrow) = (bucket(kind, (60, minute), 20), bucket(kind, (1, minute), 20));
        for _ in 0..21 {
            let _ = take(&wide, START);
        }
        // Ten seconds at the old rate are ten units; those of the next second are at the new one.
        let narrow = narrow.with_numbers_since(Some(after(10 * SECOND)));
        assert_eq!(peek(&narrow, after(11 * SECOND)).remaining(), 10, "{narrow}");
        assert_eq!(take(&narrow, after(11 * SECOND)).remaining(), 9, "{narrow}");
    }
}

/// Would catch: an excess that is kept for ever, or dropped while the bucket is in use.
#[test]
fn excess_flows_back_after_the_debt() {
    let minute = 60 * SECOND;
    let store = MemoryStore::new(16);
    let (wide, narrow) = (bucket(0, (60, minute), 100), bucket(0, (60, minute), 20));
    let at = |second: u64| Micros::new((1_700_000_000 + second) * SECOND);
    let left = |limit: &Limit, second: u64| {
        store.decide_one(&Check::new(limit, "a").cost(0), at(second)).remaining()
    };
    assert!(store.decide_one(&Check::new(&wide, "a").cost(60), at(0)).allowed());
    assert!(!store.decide_one(&Check::new(&narrow, "a"), at(0)).allowed());
    assert_eq!((left(&narrow, 0), left(&wide, 0)), (0, 40));
    // One unit a second for the narrow one: nothing of the excess flows back.
    for second in 1..=500 {
        assert!(store.decide_one(&Check::new(&narrow, "a"), at(second)).allowed());
    }
    assert_eq!((left(&narrow, 500), left(&wide, 500)), (0, 40));
    // Twenty seconds fill the narrow one, ten more take ten from the excess.
    assert_eq!((left(&narrow, 530), left(&wide, 530)), (20, 70));
    assert!(store.decide_one(&Check::new(&narrow, "a"), at(530)).allowed());
    assert_eq!((left(&narrow, 530), left(&wide, 530)), (19, 69));
    assert_eq!((left(&narrow, 570), left(&wide, 570)), (20, 100));
}
