//! Several limits as one decision.

use super::*;

#[test]
fn several_limits_charge_all_or_none() {
    let store = MemoryStore::new(100);
    let [second, minute] =
        [built(Limit::per_second(2).burst(2)), built(Limit::per_minute(5).burst(5))];
    let checks = [Check::new(&second, "anna"), Check::new(&minute, "anna")];
    // at µs, allowed, remaining of each, retry µs, violated
    let rows: [(u64, bool, [u64; 2], u64, u16); 9] = [
        (0, true, [1, 4], 0, 0),
        (0, true, [0, 3], 0, 0),
        (0, false, [0, 3], 500_000, 0b01),
        (500_000, true, [0, 2], 0, 0),
        (S, true, [0, 1], 0, 0),
        (1_500_000, true, [0, 0], 0, 0),
        (2 * S, false, [1, 0], 10 * S, 0b10),
        (12 * S, true, [1, 0], 0, 0),
        (12 * S, false, [1, 0], 12 * S, 0b10),
    ];
    for (row, (at, allowed, remaining, retry, violated)) in rows.into_iter().enumerate() {
        let mut outcomes = [Outcome::default(); 2];
        let decision = store.decide_each(&checks, Micros::new(at), &mut outcomes);
        assert_eq!(decision.allowed(), allowed, "row {row}");
        assert_eq!(outcomes.map(|outcome| outcome.remaining), remaining, "row {row}");
        assert_eq!(decision.retry_after(), Wait::from_micros(retry), "row {row}");
        assert_eq!(decision.violated, violated, "row {row}");
        assert_eq!(
            decision.binding(),
            if decision.violates(1) || remaining[1] < remaining[0] { 1 } else { 0 }
        );
    }
}

#[test]
fn acts_combine_over_several_limits() {
    let store = MemoryStore::new(100);
    let [small, large] =
        [built(Limit::per_minute(3).burst(3)), built(Limit::per_hour(10).burst(10))];
    let both = |act, cost| {
        let one = |limit| Check::new(limit, "anna").act(act).cost(cost);
        store.decide_now(&[one(&small), one(&large)], at(1))
    };
    let left = || {
        [&small, &large]
            .map(|limit| store.decide_one(&Check::new(limit, "anna").cost(0), at(1)).remaining())
    };
    use crate::check::Act;
    assert_eq!(both(Act::UpTo, 8).granted(), 3);
    assert_eq!(left(), [0, 7]);
    assert_eq!(both(Act::UpTo, 1).granted(), 0);
    assert_eq!(both(Act::Peek, 1).refusal(), Some(Refusal::OverLimit));
    assert!(both(Act::Force, 9).allowed());
    assert_eq!(left(), [0, 0]);
    assert_eq!(both(Act::Take, 4).refusal(), Some(Refusal::NeverFits));
}

#[test]
fn shadow_limits_see_and_never_refuse() {
    let store = MemoryStore::new(100);
    let [wide, tight] = [built(Limit::per_minute(5)), built(Limit::per_hour(2))];
    let checks = [Check::new(&wide, "anna"), Check::new(&tight, "anna").shadow()];
    let mut would_refuse = 0;
    for _ in 0..7 {
        let mut outcomes = [Outcome::default(); 2];
        let _ = store.decide_each(&checks, at(1), &mut outcomes);
        would_refuse += u32::from(!outcomes[1].allowed);
    }
    assert_eq!(store.decide_one(&checks[0].cost(0), at(1)).remaining(), 0);
    assert_eq!(store.decide_one(&Check::new(&tight, "anna").cost(0), at(1)).remaining(), 0);
    assert_eq!(would_refuse, 5);
}

#[test]
fn alike_limits_of_one_request_have_a_state_each() {
    let store = MemoryStore::new(100);
    let [ten, twenty] = [10, 20].map(|units| built(Limit::per_minute(units).burst(units)));
    let checks = [Check::new(&ten, "anna"), Check::new(&twenty, "anna")];
    let mut outcomes = [Outcome::default(); 2];
    let _ = store.decide_each(&checks, at(1), &mut outcomes);
    let decision = store.decide_each(&checks, at(1), &mut outcomes);
    assert!(decision.allowed());
    assert_eq!(outcomes.map(|outcome| outcome.remaining), [8, 18]);
}

/// Limits that differ only in their numbers have a state each within a request: what is given back goes
/// where it was taken. Would catch: a refund of the second that is found in the state of the first.
#[test]
fn what_is_given_back_goes_where_it_was_taken() {
    for [ten, twenty] in pairs() {
        let store = MemoryStore::new(100);
        let checks =
            [Check::new(&ten, "anna"), Check::new(&ten, "anna"), Check::new(&twenty, "anna")];
        let left = || {
            let mut outcomes = [Outcome::default(); 3];
            let asked = checks.map(|check| check.act(Act::Peek));
            let _ = store.decide_each(&asked, at(600), &mut outcomes);
            [outcomes[0].remaining, outcomes[2].remaining]
        };
        // The first request makes the states, the second finds them; alone each is charged otherwise.
        for (nth, checks) in [&checks[..], &checks[..], &checks[1..]].into_iter().enumerate() {
            let before = left();
            let mut outcomes = [Outcome::default(); 3];
            let outcomes = &mut outcomes[..checks.len()];
            assert!(store.decide_each(checks, at(600), outcomes).allowed(), "{ten}: {nth}");
            let charged = left();
            for (check, outcome) in checks.iter().zip(&*outcomes) {
                store.refund(check.limit, check.key, Some(outcome.receipt()), 1, at(600));
            }
            if nth < 2 {
                assert_eq!(charged, [before[0] - 2, before[1] - 1], "{ten}: {nth}");
                assert_eq!(left(), before, "{ten}: {nth}, given back");
            }
        }
    }
}

/// A request without room is refused because of other keys, however many limits it has.
#[test]
fn no_room_is_overflow_of_every_limit() {
    let store = MemoryStore::new(1);
    let strangers: Vec<Limit> =
        (0..220).map(|nth| built(Limit::per_hour(1).name(format!("stranger-{nth}")))).collect();
    for limit in &strangers {
        for key in 0..400 {
            let _ = take(&store, limit, &format!("key {key}"), at(600));
        }
    }
    let [one, two] = ["one", "two"].map(|name| built(Limit::per_hour(5).name(name)));
    let checks = [Check::new(&one, "anna"), Check::new(&two, "anna")];
    let mut outcomes = [Outcome::default(); 2];
    for several in [false, true] {
        let (checks, outcomes) = if several {
            (&checks[..], &mut outcomes[..])
        } else {
            (&checks[..1], &mut outcomes[..1])
        };
        let refused = match checks {
            [check] => {
                let refused = store.decide_one(check, at(600));
                outcomes[0] = refused.outcome();
                refused
            }
            _ => store.decide_each(checks, at(600), outcomes),
        };
        assert_eq!(
            (refused.refusal(), refused.decided_by()),
            (Some(Refusal::OverLimit), DecidedBy::Overflow)
        );
        assert!(refused.retry_after() > Wait::ZERO && !refused.retry_after().is_never());
        for outcome in outcomes {
            assert_eq!((outcome.allowed, outcome.decided_by), (false, DecidedBy::Overflow));
        }
    }
}

/// Would catch: limits that differ in their numbers alone and meet in one overflow state, where each is
/// charged for the other as well.
#[test]
fn twins_without_room_have_overflow_states_of_their_own() {
    let store = MemoryStore::new(1);
    let stranger = built(Limit::per_hour(1).name("stranger"));
    for key in 0..2_000 {
        let _ = take(&store, &stranger, &format!("key {key}"), at(600));
    }
    let [few, many] = [10, 20].map(|units| built(Limit::per_hour(units).name("twin")));
    let ask = |cost, outcomes: &mut [Outcome; 2]| {
        let checks = [Check::new(&few, "anna").cost(cost), Check::new(&many, "anna").cost(cost)];
        let _ = store.decide_each(&checks, at(600), outcomes);
        outcomes.map(|outcome| (outcome.decided_by, outcome.remaining))
    };
    let mut outcomes = [Outcome::default(); 2];
    let overflow = |remaining: [u64; 2]| remaining.map(|left| (DecidedBy::Overflow, left));
    assert_eq!(ask(3, &mut outcomes), overflow([7, 17]));
    store.refund(&many, "anna".into(), Some(outcomes[1].receipt()), 2, at(600));
    assert_eq!(ask(1, &mut outcomes), overflow([6, 18]));
}

/// Counting a refused request lengthens its wait, and waiting that long admits it. Would catch: a wait
/// of "up to" for all of its units, and a wait of checks that share a state for only one of them.
#[test]
fn waits_after_counted_refusals_admit() {
    let limit = built(Limit::per_minute(10).burst(10));
    let up_to = Check::new(&limit, "anna").act(Act::UpTo).cost(50).count_denied();
    let five = Check::new(&limit, "anna").cost(5).count_denied();
    // the checks of one request, units used before
    for (checks, used) in [(&[up_to][..], 10), (&[up_to, five.shadow()], 10), (&[five, five], 3)] {
        let store = MemoryStore::new(100);
        let mut outcomes = [Outcome::default(); 2];
        let outcomes = &mut outcomes[..checks.len()];
        assert!(store.decide_one(&Check::new(&limit, "anna").cost(used), at(600)).allowed());
        let refused = match checks {
            [check] => store.decide_one(check, at(600)),
            _ => store.decide_each(checks, at(600), outcomes),
        };
        assert!(!refused.allowed());
        let wait = refused.retry_after();
        assert!(!wait.is_never(), "{checks:?}");
        let peeks: Vec<Check<'_>> =
            checks.iter().map(|check| Check { count_denied: false, ..*check }).collect();
        let early = Micros::new(at(600).after(wait).as_u64() - 1);
        assert!(!store.decide_each(&peeks, early, outcomes).allowed(), "{checks:?}: too long");
        let ready = at(600).after(wait);
        assert!(store.decide_each(&peeks, ready, outcomes).allowed(), "{checks:?}: too short");
    }
}

/// Would catch: a limit that has another state because the one before it is checked twice.
#[test]
fn asking_one_limit_twice_leads_no_other_to_a_state_of_its_own() {
    for [few, many] in pairs() {
        let store = MemoryStore::new(100);
        let [few, many] = [&few, &many].map(|limit| Check::new(limit, "anna"));
        let mut outcomes = [Outcome::default(); 3];
        assert!(store.decide_each(&[few, many.cost(7)], at(600), &mut outcomes).allowed());
        assert!(store.decide_each(&[few, few, many], at(600), &mut outcomes).allowed());
        assert_eq!(outcomes.map(|outcome| outcome.remaining), [97, 97, 992]);
    }
}
