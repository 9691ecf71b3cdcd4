//! The store from inside: room, victims, overflow and changed numbers; the rest by what it is about.

mod blocks;
mod calendars;
mod eviction;
mod log_blocks;
mod other_numbers;
mod queues;
mod requests;
mod several_limits;
mod snapshots;

use super::*;
use crate::algorithm::Algorithm;
use crate::limit::calendar::tests::{DAYS, by};
use crate::limit::{Align, LimitBuilder, OnChange};

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
fn the_state_that_used_least_makes_room() {
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

/// A state that equals a fresh one answers like none.
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
