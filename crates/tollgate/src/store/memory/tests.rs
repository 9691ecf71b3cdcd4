//! The store from inside: room, victims, overflow, blocks, changed numbers, snapshots.

use super::*;
use crate::algorithm::Algorithm;
use crate::limit::calendar::tests::{DAYS, HOUR, MONTHS, Table as Windows, by};
use crate::limit::{Align, Calendar, LimitBuilder, OnChange};

const S: u64 = 1_000_000;

fn at(seconds: u64) -> Micros {
    Micros::from_secs(seconds)
}

fn built(builder: LimitBuilder) -> Limit {
    builder.build().unwrap()
}

/// One limit of every kind of state.
fn kinds() -> Vec<Limit> {
    let one = |algorithm| built(Limit::per_minute(5).algorithm(algorithm));
    let named = |name: &str, algorithm| Limit::per_minute(5).name(name).algorithm(algorithm);
    let mut limits = Algorithm::ALL.map(one).to_vec();
    limits.push(built(named("buckets", Algorithm::SlidingWindowCounter).buckets(6)));
    limits.push(built(named("queue", Algorithm::LeakyBucket).queue()));
    limits.push(built(named("first-hit", Algorithm::FixedWindow).align(Align::FirstHit)));
    limits.push(built(named("staggered", Algorithm::FixedWindow).stagger()));
    limits.push(built(by(DAYS, 5)));
    limits
}

fn take(store: &MemoryStore, limit: &Limit, key: &str, now: Micros) -> Decision {
    store.decide_one(&Check::new(limit, key), now)
}

#[test]
fn every_kind_admits_its_capacity_and_forgets_nothing() {
    let store = MemoryStore::new(1_000);
    for limit in kinds() {
        for nth in 0..5 {
            let decision = take(&store, &limit, "anna", at(600 + nth));
            assert!(decision.allowed(), "{limit}: take {nth}");
        }
        let refused = take(&store, &limit, "anna", at(604));
        assert_eq!(refused.refusal(), Some(Refusal::OverLimit), "{limit}");
        assert!(take(&store, &limit, "ben", at(604)).allowed(), "{limit}");
        let ready = at(604).after(refused.retry_after());
        let early = Micros::new(ready.as_u64() - 1);
        assert!(!take(&store, &limit, "anna", early).allowed(), "{limit}");
        assert!(take(&store, &limit, "anna", ready).allowed(), "{limit}");
    }
}

#[test]
fn a_limited_key_stays_while_strangers_flood() {
    let store = MemoryStore::new(64);
    let limit = built(Limit::per_hour(1));
    assert!(take(&store, &limit, "victim", at(1)).allowed());
    for stranger in 0..100_000 {
        let _ = take(&store, &limit, &format!("stranger:{stranger}"), at(2));
        assert!(!take(&store, &limit, "victim", at(2)).allowed());
    }
    let stats = store.stats();
    assert!(stats.keys <= stats.slots, "{stats:?}");
    assert!(stats.overflowed > 0, "{stats:?}");
}

#[test]
fn strangers_without_room_share_the_limit() {
    let store = MemoryStore::new(16);
    let limit = built(Limit::per_hour(10).burst(10));
    // Fill the table with limited keys, which never make room.
    for key in 0..1_000 {
        let _ = store.decide_one(&Check::new(&limit, &format!("limited:{key}")).cost(10), at(1));
    }
    let stranger = |n: u64| take(&store, &limit, &format!("stranger:{n}"), at(1));
    let decisions: Vec<Decision> = (0..100_000).map(stranger).collect();
    assert!(decisions.iter().all(|decision| decision.decided_by() == DecidedBy::Overflow));
    let admitted = decisions.iter().filter(|decision| decision.allowed()).count() as u64;
    assert!(
        admitted <= OVERFLOW_STATES * 10,
        "{admitted} admitted by {OVERFLOW_STATES} states of 10"
    );
}

#[test]
fn the_state_closest_to_fresh_makes_room() {
    let store = MemoryStore::new(16);
    let limit = built(Limit::per_hour(100).burst(100));
    let spend = |key: &str, cost| store.decide_one(&Check::new(&limit, key).cost(cost), at(1));
    for key in 0..store.stats().slots {
        let _ = spend(&format!("spender:{key}"), 50);
    }
    for key in 0..1_000 {
        let _ = spend(&format!("taster:{key}"), 1);
    }
    let kept = (0..store.stats().slots)
        .filter(|key| {
            let check = Check::new(&limit, "").cost(0);
            let key = format!("spender:{key}");
            let check = Check { key: Key::from(&key), ..check };
            store.decide_one(&check, at(1)).remaining() == 50
        })
        .count();
    // Tasters push each other out; once a taster is in a bucket no spender has to go any more.
    assert!(kept * 2 > store.stats().slots, "{kept} spenders kept");
    assert!(store.stats().evicted > 500);
}

#[test]
fn fresh_states_are_swept() {
    let store = MemoryStore::new(1_000);
    let limit = built(Limit::per_second(1));
    for key in 0..1_000 {
        let _ = take(&store, &limit, &format!("early:{key}"), at(1));
    }
    assert!(store.stats().keys > 900);
    for key in 0..1_000 {
        let _ = take(&store, &limit, &format!("late:{key}"), at(100 + key));
    }
    // Swept down to half of the slots; below that sweeping would gain nothing.
    let stats = store.stats();
    assert!(stats.keys <= stats.slots / 2 + 1, "{stats:?}");
    assert_eq!((stats.evicted, stats.overflowed), (0, 0), "{stats:?}");
}

#[test]
fn changed_numbers_keep_what_was_used() {
    let rows = [
        (OnChange::Keep, 100, 200, 40, 140),
        (OnChange::Keep, 100, 20, 40, 0),
        (OnChange::Keep, 10, 5, 8, 3),
        (OnChange::Reset, 100, 20, 40, 20),
        (OnChange::Scale, 100, 200, 40, 80),
        (OnChange::Scale, 100, 20, 40, 8),
    ];
    for algorithm in Algorithm::ALL {
        for (on_change, old, new, before, after) in rows {
            let store = MemoryStore::new(100);
            let limit =
                |units| built(Limit::per_minute(units).algorithm(algorithm).on_change(on_change));
            let check = |limit: &Limit, cost| {
                store.decide_one(&Check::new(limit, "anna").cost(cost), at(600)).remaining()
            };
            assert_eq!(check(&limit(old), old - before), before);
            assert_eq!(check(&limit(new), 0), after, "{algorithm}: {on_change:?} {old} to {new}");
        }
    }
}

#[test]
fn a_block_is_above_all_limits_and_ends() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_minute(100));
    assert!(store.block(Key::from("anna"), at(70), at(10)));
    assert!(store.block(Key::from("anna"), at(20), at(10)), "a shorter block changes nothing");
    for limit in kinds() {
        let refused = take(&store, &limit, "anna", at(60));
        assert_eq!(refused.refusal(), Some(Refusal::Blocked));
        assert_eq!(refused.decided_by(), DecidedBy::Block);
        assert_eq!(refused.retry_after(), Wait::from_micros(10 * S));
    }
    let both = [Check::new(&limit, "ben"), Check::new(&limit, "anna")];
    assert_eq!(store.decide_now(&both, at(60)).refusal(), Some(Refusal::Blocked));
    assert!(take(&store, &limit, "ben", at(60)).allowed());
    assert!(take(&store, &limit, "anna", at(70)).allowed());
    assert!(
        store.block(Key::from("anna"), at(99), at(80)) && store.unblock(Key::from("anna"), at(81))
    );
    assert!(take(&store, &limit, "anna", at(82)).allowed());
}

#[test]
fn how_long_a_key_is_blocked_can_be_asked() {
    let store = MemoryStore::new(100);
    let blocked = |key: &str, now| store.blocked(Key::from(key), now);
    let left = |us| Some(Wait::from_micros(us));
    assert_eq!(blocked("anna", at(10)), None);
    assert!(store.blocks.get().is_none(), "asking makes no table");
    assert!(store.block(Key::from("anna"), at(70), at(10)));
    assert!(store.block(Key::from("ben"), at(90), at(10)));
    // key, at µs | left
    let rows = [
        ("anna", 10 * S, left(60 * S)),
        ("anna", 70 * S - 1, left(1)),
        ("anna", 70 * S, None),
        ("ben", 70 * S, left(20 * S)),
        ("ben", 90 * S, None),
        ("carla", 20 * S, None),
        ("", 20 * S, None),
    ];
    for (key, at, want) in rows {
        assert_eq!(blocked(key, Micros::new(at)), want, "{key} at {at}");
    }
    assert!(store.unblock(Key::from("ben"), at(20)));
    assert_eq!(blocked("ben", at(20)), None);
    assert_eq!(blocked("anna", at(20)), left(50 * S));
    assert_eq!(store.stats().keys, 0, "a question leaves no state");
}

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

#[test]
fn what_is_wrong_with_the_question_is_said() {
    let store = MemoryStore::new(100);
    let limit = built(Limit::per_minute(5));
    let many = vec![Check::new(&limit, "anna"); MAX_LIMITS + 1];
    assert_eq!(take(&store, &limit, "", at(1)).refusal(), Some(Refusal::EmptyKey));
    assert_eq!(
        store.decide_now(&[many[0], Check::new(&limit, "")], at(1)).refusal(),
        Some(Refusal::EmptyKey)
    );
    assert_eq!(store.decide_now(&many, at(1)).refusal(), Some(Refusal::TooManyLimits));
    assert!(store.decide_now(&[], at(1)).allowed());
    assert_eq!(store.stats().keys, 0);
}

#[test]
fn refunds_find_overflow_states_too() {
    let store = MemoryStore::new(16);
    let limit = built(Limit::per_hour(10).burst(10));
    for key in 0..1_000 {
        let _ = store.decide_one(&Check::new(&limit, &format!("limited:{key}")).cost(10), at(1));
    }
    let stranger = Check::new(&limit, "stranger").cost(4);
    let first = store.decide_one(&stranger, at(1));
    assert_eq!(first.decided_by(), DecidedBy::Overflow);
    let before = store.decide_one(&stranger.cost(0), at(1)).remaining();
    store.refund(&limit, stranger.key, Some(first.receipt()), 4, at(1));
    assert_eq!(store.decide_one(&stranger.cost(0), at(1)).remaining(), before + first.granted());
}

/// A store with every kind of state in it, some of them logs of many entries.
fn furnished() -> (MemoryStore, Vec<Limit>) {
    let store = MemoryStore::new(10_000);
    let mut limits = kinds();
    limits.push(built(Limit::per_hour(1_000).algorithm(Algorithm::SlidingWindowLog)));
    for limit in &limits {
        for key in 0..100u64 {
            for nth in 0..key {
                let _ = take(&store, limit, &format!("user:{key}"), at(600 + nth));
            }
        }
    }
    store.block(Key::from("blocked"), at(5_000), at(1));
    (store, limits)
}

#[test]
fn a_snapshot_changes_no_decision() {
    let (store, limits) = furnished();
    let now = at(700);
    let (restored, report) = MemoryStore::new(10_000).restore(&store.to_bytes(now), now).unwrap();
    assert_eq!(report.dropped, 0);
    assert!(report.keys > 400, "{report:?}");
    for limit in &limits {
        for key in 0..100 {
            for later in [0, 1, 7, 40, 4_000] {
                let key = format!("user:{key}");
                let [old, new] =
                    [&store, &restored].map(|store| take(store, limit, &key, at(700 + later)));
                assert_eq!(old, new, "{limit}, {key}, {later} s later");
            }
        }
    }
    assert_eq!(take(&restored, &limits[0], "blocked", now).refusal(), Some(Refusal::Blocked));
}

#[test]
fn a_snapshot_survives_a_file_and_says_what_is_wrong_with_it() {
    let directory = std::env::temp_dir().join(format!("tollgate-snapshot-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("state");
    let (store, limits) = furnished();
    store.save(&path, at(700)).unwrap();
    store.save(&path, at(700)).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
    let (restored, _) = MemoryStore::new(10_000).load(&path, at(700)).unwrap();
    assert_eq!(
        take(&restored, &limits[0], "user:99", at(700)),
        take(&store, &limits[0], "user:99", at(700))
    );

    let bytes = std::fs::read(&path).unwrap();
    let said = |bytes: &[u8]| MemoryStore::new(10).restore(bytes, at(1)).unwrap_err().to_string();
    assert!(said(b"").contains("not a Tollgate snapshot"));
    assert!(said(b"something else").contains("not a Tollgate snapshot"));
    assert!(said(&bytes[..bytes.len() / 2]).contains("damaged"));
    let mut older = bytes.clone();
    older[8] = 1;
    assert!(said(&older).contains("has format 1, this version reads format 2"));
    for position in (8..bytes.len()).step_by(997) {
        let mut flipped = bytes.clone();
        flipped[position] ^= 0x10;
        assert!(said(&flipped).contains("start fresh"), "byte {position}");
    }
    assert!(MemoryStore::new(10).load(&directory.join("missing"), at(1)).is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_smaller_store_restores_what_fits() {
    let (store, _) = furnished();
    let (small, report) = MemoryStore::new(16).restore(&store.to_bytes(at(700)), at(700)).unwrap();
    assert!(report.dropped > 0);
    assert!(small.stats().keys <= small.stats().slots);
}

#[test]
fn logs_live_under_their_cap_and_never_admit_more() {
    let page = 256 * 1_024;
    let store = MemoryStore::with_log_bytes(10_000, page);
    let limit = built(Limit::per_hour(100).algorithm(Algorithm::SlidingWindowLog));
    let mut admitted = vec![0; 1_000];
    for second in 0..300 {
        for (key, admitted) in admitted.iter_mut().enumerate() {
            *admitted += u64::from(
                take(&store, &limit, &format!("user:{key}"), at(10_000 + second)).allowed(),
            );
        }
        assert!(store.stats().log_bytes <= page);
    }
    assert!(admitted.iter().all(|admitted| *admitted == 100), "{admitted:?}");
}

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
            // Of two limits the other may be the binding one.
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
    // What is forced or given back under other numbers is so in the calendar's window.
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

/// Two limits of each kind that share a state.
fn pairs() -> Vec<[Limit; 2]> {
    let of = |algorithm| move |units| Limit::per_day(units).algorithm(algorithm);
    let pair = |limit: &dyn Fn(u64) -> LimitBuilder| [100, 1_000].map(|units| built(limit(units)));
    let mut pairs: Vec<_> = Algorithm::ALL.into_iter().map(|one| pair(&of(one))).collect();
    pairs.push(pair(&|units| of(Algorithm::LeakyBucket)(units).queue()));
    pairs.push(pair(&|units| of(Algorithm::SlidingWindowCounter)(units).buckets(6)));
    pairs.push(pair(&|units| of(Algorithm::FixedWindow)(units).align(Align::FirstHit)));
    pairs.push(pair(&|units| of(Algorithm::FixedWindow)(units).stagger()));
    pairs.push(pair(&|units| of(Algorithm::SlidingWindowLog)(units).on_change(OnChange::Scale)));
    pairs
}

/// Everything in the table: records, and the entries of logs.
fn contents(store: &MemoryStore, limit: &Limit) -> Vec<(u64, Record, State)> {
    let each = store.keys.each().map(|(_, seen)| (seen.key, seen.record()));
    let of = |record| Held::open(limit, record, &store.arena).unwrap().copy(limit, at(600));
    each.map(|(key, record)| (key, record, of(record))).collect()
}

#[test]
fn questions_under_other_numbers_write_nothing() {
    for [free, pro] in pairs() {
        let store = MemoryStore::new(100);
        let other = built(Limit::per_hour(1_000).name("other").burst(1_000));
        for second in 0..7 {
            let _ = store.decide_one(&Check::new(&pro, "anna").cost(100), at(590 + second));
        }
        let free_anna = Check::new(&free, "anna");
        let zero = free_anna.cost(0);
        let before = contents(&store, &pro);
        let questions = [
            zero,
            zero.act(Act::Force),
            zero.act(Act::UpTo),
            zero.count_denied(),
            zero.shadow(),
            free_anna.act(Act::Peek).cost(7),
        ];
        for (nth, question) in questions.into_iter().enumerate() {
            let beside = Check::new(&other, "anna").cost(0);
            let _ = store.decide_one(&question, at(600));
            assert_eq!(contents(&store, &pro), before, "{pro}: {nth} alone");
            let _ = store.decide_now(&[question, question], at(600));
            assert_eq!(contents(&store, &pro), before, "{pro}: {nth} twice");
            let _ = store.decide_now(&[question, beside], at(600));
            let after = contents(&store, &pro);
            assert!(before.iter().all(|one| after.contains(one)), "{pro}: {nth} with another");
            store.reset(&other, "anna".into(), at(600));
        }
        let receipt = store.decide_one(&zero, at(600)).receipt();
        store.refund(&free, "anna".into(), Some(receipt), 5, at(600));
        store.refund(&free, "anna".into(), None, 0, at(600));
        let _ = store.balance(&free, "anna".into(), at(600));
        let _ = store.wait_in_line(&free_anna, &[1, 2], at(600));
        assert_eq!(contents(&store, &pro), before, "{pro}");
        // A question sees the state as its own numbers would have it.
        let left = store.decide_one(&zero, at(600)).remaining();
        assert!(left <= 30, "{pro}: {left} left of {free}");
    }
}

#[test]
fn settling_keeps_the_numbers_of_the_state() {
    for [free, pro] in pairs() {
        if free.on_change() != OnChange::Keep {
            continue;
        }
        let left = |store: &MemoryStore| {
            store.decide_one(&Check::new(&pro, "anna").cost(0), at(600)).remaining()
        };
        let start = || {
            let store = MemoryStore::new(100);
            let receipt = store.decide_one(&Check::new(&free, "anna").cost(10), at(600)).receipt();
            assert!(store.decide_one(&Check::new(&pro, "anna").cost(500), at(600)).allowed());
            assert_eq!(left(&store), 490, "{pro}");
            (store, receipt)
        };
        let (store, receipt) = start();
        store.refund(&free, "anna".into(), Some(receipt), 1, at(600));
        assert_eq!(left(&store), 491, "{pro}: a refund");
        store.refund(&free, "anna".into(), None, 3, at(600));
        assert_eq!(left(&store), 494, "{pro}: a grant");

        let (store, _) = start();
        let force = Check::new(&free, "anna").act(Act::Force).cost(2);
        let forced = store.decide_one(&force, at(600));
        assert_eq!((forced.allowed(), forced.granted()), (true, 2), "{pro}");
        assert_eq!((forced.capacity(), forced.remaining()), (100, 0), "{pro}");
        assert_eq!(left(&store), 488, "{pro}: a force");
        // Its receipt gives it back.
        store.refund(&free, "anna".into(), Some(forced.receipt()), 9, at(600));
        assert_eq!(left(&store), 490, "{pro}: a force taken back");

        let other = built(Limit::per_hour(1_000).name("other").burst(1_000));
        for beside in [Check::new(&other, "anna"), force.cost(1), force.cost(0)] {
            let (store, _) = start();
            let mut outcomes = [Outcome::default(); 2];
            let forced = store.decide_each(&[force, beside], at(600), &mut outcomes);
            assert!(forced.allowed(), "{pro}");
            assert_eq!((outcomes[0].charged, outcomes[0].remaining), (2, 0), "{pro}");
            let more = if beside.limit.id() == free.id() { outcomes[1].charged } else { 0 };
            assert_eq!(left(&store), 488 - more, "{pro}: a force with another");
        }
    }
}

/// The one thing that a question writes: the state follows a clock that jumped, by its own numbers.
#[test]
fn a_question_under_other_numbers_follows_the_clock() {
    let bucket = |units| built(Limit::per_second(10).burst(units));
    let (free, pro) = (bucket(5), bucket(50));
    for together in [false, true] {
        let store = MemoryStore::new(100);
        let _ = store.decide_one(&Check::new(&pro, "anna").cost(40), at(10_000));
        let peek = Check::new(&free, "anna").act(Act::Peek);
        let told = match together {
            true => store.decide_now(&[peek, peek], at(10)),
            false => store.decide_one(&peek, at(10)),
        };
        assert_eq!(told.retry_after(), Wait::from_micros(S / 10));
        let ask = Check::new(&pro, "anna").cost(0);
        assert_eq!(store.decide_one(&ask, at(10)).remaining(), 10);
        assert_eq!(store.decide_one(&ask, at(11)).remaining(), 20);
    }
}

/// Ten a second, up to 5 at once, one every tenth of a second.
fn queue() -> Limit {
    built(Limit::per_second(10).burst(5).algorithm(Algorithm::LeakyBucket).queue())
}

#[test]
fn who_cannot_wait_is_refused_by_a_queue() {
    let (queue, other) = (queue(), built(Limit::per_hour(100).burst(100)));
    let wait = |tenths: u64| Wait::from_micros(tenths * S / 10);
    for together in [false, true] {
        let store = MemoryStore::new(100);
        let beside = Check::new(&other, "anna");
        let ask = |check: Check<'_>, now| match together {
            true => store.decide_now(&[check, beside], now),
            false => store.decide_one(&check, now),
        };
        let check = Check::new(&queue, "anna");
        let at_once = check.at_once();
        let left = |limit: &Limit, now| {
            store.decide_one(&Check::new(limit, "anna").cost(0), now).remaining()
        };
        assert!(ask(at_once, at(10)).allowed(), "an empty queue delays nobody");
        assert_eq!(ask(check, at(10)).delay(), wait(1));
        let others = left(&other, at(10));
        // act | allowed, wait in tenths
        let rows = [
            (at_once, false, 2),
            (at_once.cost(5), false, 2),
            (at_once.act(Act::UpTo).cost(4), false, 2),
            (at_once.act(Act::Peek), false, 2),
            (at_once.cost(0), true, 0),
            (at_once.act(Act::Peek).cost(0), true, 0),
        ];
        for (nth, (check, allowed, tenths)) in rows.into_iter().enumerate() {
            let decision = ask(check, at(10));
            let told = (decision.allowed(), decision.retry_after(), decision.delay());
            assert_eq!(told, (allowed, wait(tenths), Wait::ZERO), "row {nth}");
            if !allowed {
                let state = (decision.remaining(), decision.reset_after(), decision.granted());
                assert_eq!(state, (3, wait(2), 0), "row {nth}");
                assert_eq!(decision.binding(), 0, "row {nth}");
            }
            assert_eq!(left(&queue, at(10)), 3, "row {nth}: nothing is charged");
        }
        // The questions took one unit each beside a take of the other limit, no refusal did.
        assert_eq!(others - left(&other, at(10)), if together { 2 } else { 0 });
        assert!(ask(at_once.cost(6), at(10)).retry_after().is_never());

        let forced = ask(at_once.act(Act::Force).cost(1), at(10));
        assert!(forced.allowed() && left(&queue, at(10)) == 2, "it has happened");
        let told = ask(at_once.count_denied(), at(10));
        assert_eq!((told.allowed(), told.retry_after()), (false, wait(4)), "refused, and counted");
        assert_eq!(left(&queue, at(10)), 1);
        let ready = at(10).after(told.retry_after());
        let early = Micros::new(ready.as_u64() - 1);
        assert!(!ask(at_once.act(Act::Peek), early).allowed());
        assert!(ask(at_once.count_denied(), ready).allowed());
    }
}

#[test]
fn who_cannot_wait_and_is_not_asked_to_passes() {
    let store = MemoryStore::new(100);
    // No other limit delays: they answer as always.
    for limit in kinds().into_iter().filter(|limit| !limit.is_queue()) {
        let [plain, at_once] = ["anna", "ben"].map(|key| Check::new(&limit, key));
        let at_once = Check { key: plain.key, ..at_once.at_once() };
        let other = MemoryStore::new(100);
        for nth in 0..7 {
            let answer = other.decide_one(&at_once, at(600 + nth));
            assert_eq!(answer, store.decide_one(&plain, at(600 + nth)), "{limit}");
        }
    }
    // One request that asks one queue twice is one request: it does not delay itself.
    let queue = queue();
    let two = [Check::new(&queue, "anna").at_once(), Check::new(&queue, "anna").at_once().cost(2)];
    let mut outcomes = [Outcome::default(); 2];
    for _ in 0..2 {
        let decision = store.decide_each(&two, at(700), &mut outcomes);
        if decision.allowed() {
            assert_eq!((outcomes[0].charged, outcomes[1].charged), (1, 2));
        }
        assert_eq!(store.decide_one(&two[0].cost(0), at(700)).remaining(), 2);
    }
    assert!(!store.decide_now(&two, at(700)).allowed());
}

#[test]
fn a_queue_in_shadow_refuses_nobody_who_cannot_wait() {
    let (queue, other) = (queue(), built(Limit::per_hour(100).burst(100)));
    let shadow = Check::new(&queue, "anna").at_once().shadow();
    for checks in [vec![shadow], vec![shadow, Check::new(&other, "anna")]] {
        let store = MemoryStore::new(100);
        let mut outcomes = [Outcome::default(); 2];
        for nth in 0..4 {
            let decision = store.decide_each(&checks, at(10), &mut outcomes);
            assert!(decision.allowed() && decision.delay().is_zero(), "{nth}");
            let would = (outcomes[0].allowed, outcomes[0].charged, outcomes[0].remaining);
            assert_eq!(would, if nth == 0 { (true, 1, 4) } else { (false, 0, 4) }, "{nth}");
            let retry = if nth == 0 { 0 } else { S / 10 };
            assert_eq!(outcomes[0].retry_after, Wait::from_micros(retry), "{nth}");
        }
        if let [_, other] = checks[..] {
            assert_eq!(store.decide_one(&other.cost(0), at(10)).remaining(), 96);
        }
    }
}

/// Whether a state that equals a fresh one is still there is not to be seen.
#[test]
fn what_is_forced_on_a_fresh_state_is_as_on_none() {
    for [free, pro] in pairs() {
        let [free, pro] = [free, pro].map(|limit| {
            let numbers = Limit::per_day(limit.units()).algorithm(limit.algorithm());
            built(numbers.on_change(OnChange::Scale))
        });
        let force = |store: &MemoryStore| {
            let check = Check::new(&pro, "anna").act(Act::Force).cost(50);
            store.decide_one(&check, at(86_400 * 9)).remaining()
        };
        let store = MemoryStore::new(100);
        for second in 0..5 {
            let _ = store.decide_one(&Check::new(&free, "anna").cost(20), at(600 + second));
        }
        assert_eq!(force(&store), force(&MemoryStore::new(100)), "{pro}");
    }
}

/// A state that was charged elsewhere answers here as it does there, in every algorithm, also where a
/// key has a state of its own under other numbers.
#[test]
fn a_seeded_state_answers_as_where_it_came_from() {
    let now = Micros::from_secs(1_000);
    let later = Micros::from_secs(1_002);
    for algorithm in Algorithm::ALL {
        let limit =
            crate::limit::parse_rate("10/5s").unwrap().algorithm(algorithm).build().unwrap();
        let other = crate::limit::parse_rate("7/5s").unwrap().algorithm(algorithm).build().unwrap();
        let mut elsewhere = State::fresh(&limit, now);
        for (at, cost) in [(now, 3), (Micros::from_secs(1_001), 4)] {
            assert!(algorithm::take(&limit, &mut elsewhere, cost, at).allowed);
        }
        let store = MemoryStore::new(100);
        let _ = store.decide_one(&Check::new(&other, "b"), now);
        for key in ["a", "b"] {
            store.seed(&limit, key.into(), &elsewhere, later);
            let here = store.decide_one(&Check::new(&limit, key).cost(4).act(Act::Peek), later);
            let there = algorithm::judge(&limit, &elsewhere, 4, later);
            assert_eq!(here.outcome().retry_after, there.retry_after, "{limit}");
            assert_eq!(store.balance(&limit, key.into(), later), elsewhere.balance(&limit, later));
        }
        let fresh = State::fresh(&limit, later);
        store.seed(&limit, "a".into(), &fresh, later);
        assert_eq!(store.balance(&limit, "a".into(), later), 10, "{limit}");
        store.seed(&limit, "".into(), &elsewhere, later);
    }
}
