//! Nothing is allocated per decision: a counting allocator watches.

mod counting;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use counting::allocations;
use tollgate::{
    Act, Algorithm, Align, Calendar, CalendarUnit, Check, Decision, Limit, Limiter, Micros,
};

/// Fails if `act` allocates. It is called once before, so that what is made once is made.
fn allocates_nothing<T>(what: &str, limit: &Limit, mut act: impl FnMut() -> T) {
    act();
    let before = allocations();
    for _ in 0..1_000 {
        std::hint::black_box(act());
    }
    let allocations = allocations() - before;
    assert_eq!(allocations, 0, "{what} of {limit} allocated");
}

const S: u64 = 1_000_000;
const NOW: Micros = Micros::new(1_790_000_000 * S);

/// A calendar whose days last an hour.
#[derive(Debug)]
struct HourlyCalendar;

impl Calendar for HourlyCalendar {
    fn unit(&self) -> CalendarUnit {
        CalendarUnit::Day
    }

    fn zone(&self) -> &str {
        "UTC"
    }

    fn window(&self, at: Micros) -> Range<Micros> {
        let hour = at.as_u64() / (3_600 * S);
        Micros::from_secs(3_600 * hour)..Micros::from_secs(3_600 * (hour + 1))
    }
}

/// Every way to count whose state fits in a slot.
fn compact(units: u64) -> Vec<Limit> {
    let window = || Limit::per_hour(units).algorithm(Algorithm::FixedWindow);
    let limits = [
        Limit::per_hour(units).burst(units),
        Limit::per_hour(units).burst(units).algorithm(Algorithm::LeakyBucket),
        Limit::per_hour(units).burst(units).algorithm(Algorithm::LeakyBucket).queue(),
        window(),
        window().align(Align::FirstHit),
        window().align(Align::Anchor(Micros::new(5))),
        window().stagger(),
        Limit::per_calendar(units, Arc::new(HourlyCalendar)),
        Limit::per_hour(units),
    ];
    limits.into_iter().map(|limit| limit.name("compact").build().unwrap()).collect()
}

fn logs(units: u64) -> Vec<Limit> {
    let limits = [
        Limit::per_hour(units).algorithm(Algorithm::SlidingWindowLog),
        Limit::per_hour(units).buckets(60),
    ];
    limits.into_iter().map(|limit| limit.build().unwrap()).collect()
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    std::hint::black_box(Box::new(1));
    assert!(allocations() > before);
}

#[test]
fn decisions_about_known_keys() {
    let limiter = Limiter::with_capacity(1_000);
    let now = || limiter.at(NOW);
    for limit in &compact(1 << 40) {
        let _ = now().take(limit, "anna", 1_000_000);
        allocates_nothing("a check", limit, || now().check(limit, "anna"));
        allocates_nothing("a take", limit, || now().take(limit, "anna", 3));
        allocates_nothing("a peek", limit, || now().peek(limit, "anna", 3));
        allocates_nothing("an up-to", limit, || now().take_up_to(limit, "anna", 3));
        allocates_nothing("a force", limit, || now().force(limit, "anna", 3));
        allocates_nothing("a grant", limit, || now().grant(limit, "anna", 3));
        allocates_nothing("a refund", limit, || {
            let receipt = now().take(limit, "anna", 3).receipt();
            now().refund(limit, "anna", receipt, 2);
        });
        allocates_nothing("a permit", limit, || {
            let permit = now().reserve(limit, "anna", 3, Duration::from_secs(1));
            permit.expect("there is room").commit(1);
        });
        let counted = Check::new(limit, "anna").count_denied();
        allocates_nothing("a counted check", limit, || now().decide(&[counted]));
        allocates_nothing("a reset", limit, || now().reset(limit, "anna"));
        allocates_nothing("a check on the system's clock", limit, || limiter.check(limit, "anna"));
    }
}

#[test]
fn refusals() {
    let limiter = Limiter::with_capacity(1_000);
    for limit in compact(5).iter().chain(&logs(5)) {
        for at in 0..5 {
            let _ = limiter.at(Micros::new(NOW.as_u64() + at)).check(limit, "ben");
        }
        let now = || limiter.at(Micros::new(NOW.as_u64() + 5));
        assert!(!now().check(limit, "ben").allowed());
        allocates_nothing("a refused check", limit, || now().check(limit, "ben"));
        allocates_nothing("a refused cost", limit, || now().take(limit, "ben", 4));
        allocates_nothing("an impossible cost", limit, || now().take(limit, "ben", 6));
        allocates_nothing("a peek", limit, || now().peek(limit, "ben", 1));
        allocates_nothing("an empty key", limit, || now().check(limit, ""));
    }
    let limit = &compact(5)[0];
    assert!(limiter.at(NOW).block("cleo", Micros::new(NOW.as_u64() + 9)));
    allocates_nothing("a blocked check", limit, || limiter.at(NOW).check(limit, "cleo"));
    allocates_nothing("a check while another is blocked", limit, || {
        limiter.at(NOW).check(limit, "ben")
    });
}

#[test]
fn several_limits_and_batches() {
    let limiter = Limiter::with_capacity(10_000);
    for limits in [compact(1 << 40), compact(5), logs(5)] {
        let checks: Vec<Check<'_>> = limits.iter().map(|it| Check::new(it, "dora")).collect();
        let peeks: Vec<Check<'_>> = checks.iter().map(|check| check.act(Act::Peek)).collect();
        // Refused where there are 5 units: they are used up first.
        for _ in 0..5 {
            let _ = limiter.at(NOW).decide(&checks);
        }
        let limit = &limits[0];
        allocates_nothing("several limits", limit, || limiter.at(NOW).decide(&checks));
        allocates_nothing("several peeks", limit, || limiter.at(NOW).decide(&peeks));
        let mut decisions: Vec<Decision> = Vec::new();
        allocates_nothing("a batch", limit, || {
            limiter.at(NOW).decide_batch(&checks, &mut decisions);
        });
    }
}

#[test]
fn new_keys_of_a_known_limit() {
    // One table has room for all, the other has to evict, sweep and overflow.
    for capacity in [20_000, 100] {
        for limit in &compact(5) {
            let limiter = Limiter::with_capacity(capacity);
            // What is made once: the limit's numbers, and the table of overflow states.
            for key in 0u64..10_000 {
                let _ = limiter.at(NOW).take(limit, &(1 << 60 | key).to_be_bytes(), 5);
            }
            let mut key = 0u64;
            allocates_nothing("a new key", limit, || {
                key += 1;
                // In time, so that what was used is back and is swept.
                let at = Micros::new(NOW.as_u64() + 7_200 * S + key * 1_000);
                limiter.at(at).check(limit, &key.to_be_bytes())
            });
            let other = Limit::per_day(9).name("other").build().unwrap();
            allocates_nothing("a new key under two limits", limit, || {
                key += 1;
                let at = Micros::new(NOW.as_u64() + 7_200 * S + key * 1_000);
                let key = key.to_be_bytes();
                limiter.at(at).decide(&[Check::new(limit, &key), Check::new(&other, &key)])
            });
        }
    }
}

/// A log allocates when it grows. In a steady stream it does not grow.
#[test]
fn a_log_in_a_steady_stream() {
    let limiter = Limiter::with_capacity(1_000);
    for limit in &logs(100) {
        let mut at = NOW.as_u64();
        let mut check = || {
            at += 40 * S;
            limiter.at(Micros::new(at)).check(limit, "steady")
        };
        for _ in 0..500 {
            assert!(check().allowed());
        }
        allocates_nothing("a check", limit, check);
    }
}
