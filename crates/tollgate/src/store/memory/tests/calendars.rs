//! Windows of the calendar: the table against the pure core and against a model.

use super::*;
use crate::limit::Calendar;
use crate::limit::calendar::tests::{HOUR, HoursCalendar as Windows, MONTHS};

fn hour(hours: u64) -> Micros {
    Micros::new(hours * HOUR)
}

fn one_before(at: Micros) -> Micros {
    Micros::new(at.as_u64() - 1)
}

#[test]
fn calendars_of_different_zones_share_no_state() {
    let store = MemoryStore::new(100);
    let berlin = built(by(DAYS, 1));
    let utc = built(by(Windows { zone: "UTC", hours: &[24], ..DAYS }, 1));
    assert!(take(&store, &berlin, "anna", hour(24)).allowed());
    assert!(take(&store, &utc, "anna", hour(24)).allowed());
    // Berlin's day has 23 hours.
    assert!(take(&store, &berlin, "anna", hour(47)).allowed());
    assert!(!take(&store, &utc, "anna", one_before(hour(48))).allowed());
    assert!(take(&store, &utc, "anna", hour(48)).allowed());
}

#[test]
fn changed_numbers_keep_what_was_used_of_a_month() {
    let rows = [(OnChange::Keep, 140), (OnChange::Reset, 200), (OnChange::Scale, 80)];
    for (on_change, left) in rows {
        let store = MemoryStore::new(100);
        let limit = |units| built(by(MONTHS, units).on_change(on_change));
        let ask = |units, cost, now| {
            store.decide_one(&Check::new(&limit(units), "anna").cost(cost), now).remaining()
        };
        assert_eq!(ask(100, 60, hour(1_416)), 40);
        assert_eq!(ask(200, 0, one_before(hour(2_159))), left, "{on_change:?}");
        assert_eq!(ask(200, 0, hour(2_159)), 200, "{on_change:?}");
    }
}

/// A small generator whose seed a failure prints.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// Would catch: a path of the table (hot, slow, several, batch) that reads a calendar's window
/// otherwise than the pure core; clocks go backwards and jump.
#[test]
fn a_calendar_s_trace_has_the_same_answers_in_table_and_core() {
    use algorithm::State;
    for seed in 0..200 {
        let mut random = numbers(seed);
        let limit = built(if seed % 2 == 0 { by(DAYS, 6) } else { by(MONTHS, 6) });
        let step = if seed % 2 == 0 { HOUR } else { 24 * HOUR };
        let store = MemoryStore::new(100);
        let mut state = State::fresh(&limit, Micros::ZERO);
        let (mut now, mut receipts) = (hour(5_000), Vec::new());
        for nth in 0..200 {
            let to = now.as_u64() + random(9) * step;
            now = Micros::new(match random(12) {
                0 => to.saturating_sub(random(120) * step),
                // On the boundary, and one microsecond before it.
                1 => DAYS.window(now).end.as_u64(),
                2 => MONTHS.window(now).end.as_u64() - 1,
                _ => to,
            });
            let (check, act) = (Check::new(&limit, "anna").cost(random(8)), random(8));
            let place = format!("seed {seed}, number {nth}, act {act}, at {}", now.as_u64());
            if act == 0 && !receipts.is_empty() {
                let receipt: Receipt = receipts.remove(random(receipts.len() as u64) as usize);
                let units = check.cost.min(receipt.granted);
                algorithm::refund(&limit, &mut state, units, Some(receipt.charged_at), now);
                store.refund(&limit, check.key, Some(receipt), check.cost, now);
                continue;
            }
            let want = algorithm::take(&limit, &mut state, check.cost, now);
            let found = match act {
                1 => store.decide_now(&[check, Check::new(&limit, "ben").act(Act::Peek)], now),
                2 => {
                    let mut decisions = Vec::new();
                    store.decide_batch(&[check], now, &mut decisions);
                    decisions[0]
                }
                _ => store.decide_one(&check, now),
            };
            assert_eq!(found.allowed(), want.allowed, "{place}");
            // With two limits the other one may be binding.
            if act != 1 {
                let parts = (found.remaining(), found.retry_after(), found.reset_after());
                let parts_want = (want.remaining, want.retry_after, want.reset_after);
                assert_eq!(parts, parts_want, "{place}");
            }
            let balance = store.balance(&limit, check.key, now);
            assert_eq!(balance, state.balance(&limit, now), "{place}");
            if found.granted() > 0 {
                receipts.push(found.receipt());
            }
        }
    }
}

/// Would catch: any error that core and table have in common. The model only adds up.
#[test]
fn every_window_of_a_calendar_admits_its_units_and_no_more() {
    for seed in 0..100 {
        let mut random = numbers(seed);
        let (limit, store) = (built(by(DAYS, 9)), MemoryStore::new(100));
        let (mut now, mut charged) = (Micros::ZERO, Vec::<(Micros, u64)>::new());
        for _ in 0..300 {
            now = Micros::new(now.as_u64() + random(5) * HOUR + random(2));
            let (cost, window) = (1 + random(5), DAYS.window(now));
            let used = charged.iter().filter(|(at, _)| window.contains(at));
            let used: u64 = used.map(|(_, cost)| *cost).sum();
            let found = store.decide_one(&Check::new(&limit, "anna").cost(cost), now);
            assert_eq!(found.allowed(), used + cost <= 9, "seed {seed}, at {}", now.as_u64());
            if found.allowed() {
                charged.push((now, cost));
                assert_eq!(found.remaining(), 9 - used - cost);
            } else {
                let end = now.after(found.retry_after());
                assert_eq!(end, window.end, "seed {seed}, at {}", now.as_u64());
            }
        }
    }
}

#[test]
fn a_snapshot_keeps_a_calendar_s_count_until_its_window_ends() {
    let store = MemoryStore::new(100);
    let limit = built(by(DAYS, 5).name("reports"));
    // In a long day, from hour 143 to 168.
    let _ = store.decide_one(&Check::new(&limit, "anna").cost(3), hour(143));
    let bytes = store.to_bytes(hour(143));
    let restore = |bytes: &[u8], now| MemoryStore::new(100).restore(bytes, now).unwrap();
    let ask = |store: &MemoryStore, now| {
        let asked = store.decide_one(&Check::new(&limit, "anna").cost(0), now);
        (asked.remaining(), asked.reset_after())
    };
    let (end, last) = (hour(168), one_before(hour(168)));
    let (restored, report) = restore(&bytes, last);
    assert_eq!(report.keys, 1);
    assert_eq!(ask(&restored, last), (2, Wait::from_micros(1)));
    assert_eq!(ask(&restored, end), (5, Wait::ZERO));
    let two = store.decide_one(&Check::new(&limit, "anna").cost(2), last);
    assert!(two.allowed() && !take(&store, &limit, "anna", last).allowed());

    // Before the limit is asked for, nobody knows its calendar, but the state knows its end; and if
    // the clock has jumped back, the state does not end before its time.
    for (now, keys) in [(last, 1), (end, 0), (hour(1), 1)] {
        let (unasked, _) = restore(&bytes, last);
        let (again, report) = restore(&unasked.to_bytes(now), now);
        assert_eq!(report.keys, keys, "at {}", now.as_u64());
        assert_eq!(ask(&again, last).0, if keys == 1 { 2 } else { 5 });
    }

    // The same name in another zone is another limit.
    let elsewhere = built(by(Windows { zone: "UTC", ..DAYS }, 5).name("reports"));
    let (restored, _) = restore(&bytes, last);
    assert!(restored.decide_one(&Check::new(&elsewhere, "anna").cost(5), last).allowed());
    // Forces and refunds under other numbers happen in the calendar's window.
    let (restored, _) = restore(&bytes, last);
    let hundred = built(by(DAYS, 100).name("reports"));
    let force = Check::new(&hundred, "anna").act(Act::Force);
    let receipt = restored.decide_one(&force, last).receipt();
    assert_eq!(ask(&restored, last), (1, Wait::from_micros(1)));
    restored.refund(&hundred, "anna".into(), Some(receipt), 1, last);
    assert_eq!(ask(&restored, last), (2, Wait::from_micros(1)));
    assert_eq!(ask(&restored, end), (5, Wait::ZERO));
    // Other numbers carry over what was used, although the old ones came without their calendar.
    let (restored, _) = restore(&bytes, last);
    let ten = built(by(DAYS, 10).name("reports"));
    assert_eq!(take(&restored, &ten, "anna", last).remaining(), 6);
}

#[test]
fn strangers_do_not_push_out_a_restored_month() {
    let store = MemoryStore::new(64);
    let limit = built(by(MONTHS, 1));
    assert!(take(&store, &limit, "victim", hour(1_416)).allowed());
    let (now, bytes) = (one_before(hour(2_159)), store.to_bytes(hour(1_416)));
    let (restored, _) = MemoryStore::new(64).restore(&bytes, now).unwrap();
    let other = built(Limit::per_hour(1));
    for stranger in 0..10_000 {
        let _ = take(&restored, &other, &format!("stranger:{stranger}"), now);
    }
    assert!(!take(&restored, &limit, "victim", now).allowed());
    assert!(take(&restored, &limit, "victim", hour(2_159)).allowed());
}
