//! The arithmetic of each algorithm, as literal text.

use tollgate::algorithm::{self, State};
use tollgate::limit::parse_rate;
use tollgate::{Algorithm, DecidedBy, Limit, Micros, Outcome, Wait};

use super::LimitJudgement;

/// 2027-01-15 12:00:00 UTC, in microseconds.
const NOON: u64 = 1_800_014_400_000_000;

fn limit(rate: &str, algorithm: Algorithm) -> Limit {
    parse_rate(rate).unwrap().algorithm(algorithm).build().unwrap()
}

/// The state after charges at these milliseconds after noon.
fn state(limit: &Limit, charges: &[(i64, u64)]) -> State {
    let at = |ms: i64| Micros::new(NOON.saturating_add_signed(ms * 1_000));
    let mut state = State::fresh(limit, at(charges.first().map_or(0, |one| one.0)));
    for (ms, units) in charges {
        algorithm::charge(limit, &mut state, *units, at(*ms));
    }
    state
}

/// The arithmetic of a request at so many milliseconds after noon.
fn arithmetic(limit: &Limit, charges: &[(i64, u64)], at_ms: u64, needs: u64) -> String {
    let state = state(limit, charges);
    let now = Micros::new(NOON + at_ms * 1_000);
    let present = &algorithm::judge(limit, &state, 0, now);
    let asked = &algorithm::judge(limit, &state, needs, now);
    LimitJudgement { limit, present, state: Some(&state), asked, needs, now }.arithmetic()
}

#[test]
fn buckets_are_told_in_tokens_and_levels() {
    let tokens = limit("100/minute burst 20", Algorithm::TokenBucket);
    let spent = [(-790, 20)];
    for (needs, want) in [
        (5, "refused, 960 ms until 5"),
        (3, "fits, 0.4 left"),
        (0, "only looked at"),
        (21, "never fits, the most at once is 20"),
    ] {
        let head = format!("bucket of 20, 3.4 tokens at 12:00:01.250 UTC, needs {needs}: ");
        assert_eq!(arithmetic(&tokens, &spent, 1_250, needs), head + want);
    }
    assert_eq!(
        arithmetic(&tokens, &[(0, 26)], 0, 1),
        "bucket of 20, 6 tokens in debt at 12:00:00 UTC, needs 1: refused, 4.2 s until 1"
    );
    assert_eq!(
        arithmetic(&tokens, &[(0, 19)], 0, 1),
        "bucket of 20, 1 token at 12:00:00 UTC, needs 1: fits, 0 left"
    );
    let leaky = limit("100/minute burst 20", Algorithm::LeakyBucket);
    assert_eq!(
        arithmetic(&leaky, &spent, 1_250, 3),
        "leaky bucket of 20, filled to 16.6 at 12:00:01.250 UTC, needs 3: fits, filled to 19.6"
    );
    assert_eq!(
        arithmetic(&leaky, &spent, 1_250, 5),
        "leaky bucket of 20, filled to 16.6 at 12:00:01.250 UTC, needs 5: refused, 960 ms until 5 fit"
    );
    assert_eq!(
        arithmetic(&leaky, &[], 0, 1),
        "leaky bucket of 20, empty at 12:00:00 UTC, needs 1: fits, filled to 1"
    );
}

#[test]
fn queues_are_told_in_departures() {
    let queue = parse_rate("100/minute burst 20").unwrap();
    let queue = queue.algorithm(Algorithm::LeakyBucket).queue().build().unwrap();
    assert_eq!(
        arithmetic(&queue, &[(-8_710, 20)], 1_250, 1),
        "queue of 20, 3.4 ahead at 12:00:01.250 UTC, needs 1: fits, leaves after 2.04 s"
    );
    assert_eq!(
        arithmetic(&queue, &[(0, 20)], 0, 1),
        "queue of 20, 20 ahead at 12:00:00 UTC, needs 1: refused, 600 ms until 1 fits"
    );
    assert_eq!(
        arithmetic(&queue, &[], 0, 1),
        "queue of 20, 0 ahead at 12:00:00 UTC, needs 1: fits, leaves at once"
    );
}

#[test]
fn windows_are_told_in_units_used() {
    let window = limit("100/minute", Algorithm::FixedWindow);
    assert_eq!(
        arithmetic(&window, &[(0, 97)], 22_500, 5),
        "window of 100, 97 used at 12:00:22.500 UTC, needs 5: \
         refused, 37.5 s until the window ends at 12:01:00 UTC"
    );
    assert_eq!(
        arithmetic(&window, &[(0, 97)], 22_500, 1),
        "window of 100, 97 used at 12:00:22.500 UTC, needs 1: fits, 98 used until 12:01:00 UTC"
    );
    let log = limit("5 per 10s", Algorithm::SlidingWindowLog);
    let charges = [(7_000, 1), (9_000, 1), (12_000, 1), (14_000, 1), (15_000, 1)];
    assert_eq!(
        arithmetic(&log, &charges, 15_000, 1),
        "5 in any 10 s, 5 used at 12:00:15 UTC, needs 1: refused, 2 s until 1 of them has expired"
    );
    assert_eq!(
        arithmetic(&log, &charges, 15_000, 2),
        "5 in any 10 s, 5 used at 12:00:15 UTC, needs 2: refused, 4 s until 2 of them have expired"
    );
    assert_eq!(
        arithmetic(&log, &charges[..3], 15_000, 2),
        "5 in any 10 s, 3 used at 12:00:15 UTC, needs 2: fits, 5 used"
    );
}

#[test]
fn counters_are_told_by_their_windows() {
    let counter = limit("100/minute", Algorithm::SlidingWindowCounter);
    let charges = [(-60_000, 80), (0, 20)];
    assert_eq!(
        arithmetic(&counter, &charges, 15_000, 10),
        "100 in the last minute, 75.0 % of 80 before + 20 now = about 80 used at 12:00:15 UTC, needs 10: \
         fits, about 90 used"
    );
    assert_eq!(
        arithmetic(&counter, &[(0, 7)], 0, 1),
        "100 in the last minute, about 7 used at 12:00:00 UTC, needs 1: fits, about 8 used"
    );
    let whole = parse_rate("4/minute").unwrap().algorithm(Algorithm::SlidingWindowCounter);
    let whole = whole.buckets(4).build().unwrap();
    assert_eq!(
        arithmetic(&whole, &[(0, 4)], 1_000, 1),
        "4 in any minute, 4 used at 12:00:01 UTC, needs 1: refused, 74 s until 1 of them has expired"
    );
}

#[test]
fn other_deciders_are_named() {
    let limit = limit("100/minute burst 20", Algorithm::TokenBucket);
    let now = Micros::new(NOON);
    let text = |allowed: bool, decided_by: DecidedBy| {
        let retry_after = if allowed { Wait::ZERO } else { Wait::from_micros(90_000_000) };
        let outcome =
            &Outcome { allowed, remaining: 7, retry_after, decided_by, ..Outcome::default() };
        let (present, asked) = (outcome, outcome);
        LimitJudgement { limit: &limit, present, state: None, asked, needs: 1, now }.arithmetic()
    };
    let rows = [
        (false, DecidedBy::Block, "not asked: the key is blocked for 90 s"),
        (true, DecidedBy::Open, "the store is unavailable, and the rule admits then"),
        (false, DecidedBy::Closed, "the store is unavailable, and the rule refuses then"),
        (
            false,
            DecidedBy::Local,
            "the store is unavailable: this instance decides by its share of the limit, 7 left, needs 1: \
             refused, 90 s until it fits",
        ),
    ];
    for (allowed, decided_by, want) in rows {
        assert_eq!(text(allowed, decided_by), want);
    }
    for (decided_by, want) in [
        (DecidedBy::Overflow, "counted together with other keys, because the table is full"),
        (DecidedBy::RefusalCache, "remembered: the store refused this key a moment ago"),
        (DecidedBy::Lease, "spent from units borrowed from the store"),
    ] {
        let text = text(true, decided_by);
        assert!(text.ends_with(&format!(" ({want})")), "{text}");
    }
}
