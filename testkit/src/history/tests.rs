use super::*;
use crate::random::SplitMix64;

const TEN_A_SECOND: BucketBound = BucketBound { burst: 5, units: 10, period_us: 1_000_000 };

/// Admitted calls of cost 1, from (asked, answered) in milliseconds.
fn admitted(times_ms: &[(u64, u64)]) -> Vec<ObservedCall> {
    let call = |&(asked, answered)| ObservedCall {
        asked_us: asked * 1_000,
        answered_us: answered * 1_000,
        cost: 1,
        admitted: true,
    };
    times_ms.iter().map(call).collect()
}

/// A bucket that decides at an instant between asking and answering; `extra` are let in that should
/// not be, all at once in the middle.
fn traffic(seed: u64, extra: u64) -> Vec<ObservedCall> {
    let mut random = SplitMix64::seeded(seed);
    let (mut level, mut last_us) = (5_000_000_u64, 0);
    let mut calls = Vec::new();
    let mut decided_us = 0;
    for n in 0..2_000_u64 {
        decided_us += random.below(40_000);
        level = (level + 10 * (decided_us - last_us)).min(5_000_000);
        last_us = decided_us;
        let cost = random.between(1, 2);
        let planted = (1_000..1_000 + extra).contains(&n);
        let fits = level >= cost * 1_000_000;
        level -= if fits { cost * 1_000_000 } else { 0 };
        calls.push(ObservedCall {
            asked_us: decided_us.saturating_sub(random.below(3_000)),
            answered_us: decided_us + random.below(3_000),
            cost,
            admitted: fits || planted,
        });
    }
    calls
}

#[test]
fn a_burst_and_what_comes_back_are_kept_to_the_microsecond() {
    // Five at once, then one each 100 ms.
    let right = admitted(&[(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (100, 100), (200, 200)]);
    assert_eq!(never_above(TEN_A_SECOND, &right), Ok(()));
    assert_eq!(excess(TEN_A_SECOND, &right), 0);
    let mut wrong = right.clone();
    (wrong[6].asked_us, wrong[6].answered_us) = (199_999, 199_999);
    let found = never_above(TEN_A_SECOND, &wrong).unwrap_err();
    assert_eq!(found, OverAdmission { from_us: 0, to_us: 199_999, admitted: 7, possible: 6 });
    assert_eq!(excess(TEN_A_SECOND, &wrong), 1);
}

#[test]
fn the_worst_interval_is_named_and_not_the_first() {
    let mut calls = admitted(&[(0, 0); 6]);
    calls.extend(admitted(&[(10_000, 10_000); 8]));
    let found = never_above(TEN_A_SECOND, &calls).unwrap_err();
    assert_eq!((found.from_us, found.admitted, found.possible), (10_000_000, 8, 5));
    assert_eq!(excess(TEN_A_SECOND, &calls), 3);
}

#[test]
fn who_may_have_been_decided_earlier_is_not_accused() {
    // The sixth was asked at 0 and answered at 100 ms: it may have been decided then.
    let right = admitted(&[(0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 100)]);
    assert_eq!(never_above(TEN_A_SECOND, &right), Ok(()));
    // Answered in another order than decided: the slow one came first of all.
    let right = admitted(&[(99, 99), (99, 99), (99, 99), (99, 99), (99, 99), (0, 100)]);
    assert_eq!(never_above(TEN_A_SECOND, &right), Ok(()));
}

#[test]
fn refused_calls_cost_nothing() {
    let mut calls = admitted(&[(0, 0); 20]);
    calls[5..].iter_mut().for_each(|call| call.admitted = false);
    assert_eq!(never_above(TEN_A_SECOND, &calls), Ok(()));
    assert_eq!(never_above(TEN_A_SECOND, &[]), Ok(()));
}

#[test]
fn a_right_limiter_is_never_accused_and_a_planted_violation_is_found() {
    for seed in 0..50 {
        let right = traffic(seed, 0);
        assert_eq!(never_above(TEN_A_SECOND, &right), Ok(()), "seed {seed}");
        let to_us = right.last().unwrap().asked_us;
        assert_eq!(not_below(TEN_A_SECOND, &right, 0, to_us), Ok(()), "seed {seed}");
        let wrong = traffic(seed, 10);
        assert!(never_above(TEN_A_SECOND, &wrong).is_err(), "seed {seed}");
    }
}

#[test]
fn one_pass_finds_what_every_interval_finds() {
    for seed in 0..20 {
        let mut calls = traffic(seed, 10 + seed);
        calls.drain(..950);
        calls.truncate(120);
        calls.retain(|call| call.admitted);
        let mut most = 0;
        for from in &calls {
            for to in calls.iter().filter(|to| to.answered_us >= from.asked_us) {
                let (s, e) = (from.asked_us, to.answered_us);
                let inside = |it: &&ObservedCall| it.asked_us >= s && it.answered_us <= e;
                let spent: u64 = calls.iter().filter(inside).map(|it| it.cost).sum();
                let possible = 5_000_000 + 10 * i128::from(e - s);
                most = most.max(i128::from(spent) * 1_000_000 - possible);
            }
        }
        let most = most.unsigned_abs().div_ceil(1_000_000) as u64;
        assert_eq!(excess(TEN_A_SECOND, &calls), most, "seed {seed}");
    }
}

#[test]
fn a_limiter_that_gives_too_little_is_found() {
    let mut calls = traffic(1, 0);
    let to_us = calls.last().unwrap().asked_us;
    // Every twentieth is lost.
    calls.iter_mut().step_by(20).for_each(|call| call.admitted = false);
    let found = not_below(TEN_A_SECOND, &calls, 0, to_us).unwrap_err();
    assert!(found.admitted < found.expected);
}

#[test]
#[should_panic(expected = "was asked for")]
fn a_phase_with_too_few_questions_shows_nothing() {
    let _ = not_below(TEN_A_SECOND, &admitted(&[(0, 0)]), 0, 10_000_000);
}
