//! Long random sequences of operations on a small table, compared with a map of pure states.
//!
//! The comparison is the fuzz target's own (`fuzz/src/core/table.rs`); here sequences are long,
//! so that tables fill, logs grow and blocks change hands. A failure prints its seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bodies;
use crate::seeded::random::SplitMix64;
use tollgate::{Algorithm, DecidedBy, Limit, Limiter, Micros};

/// Runs a body on so many sequences of `length` bytes, about 4 bytes an operation.
fn sequences(count: u64, length: usize, body: fn(&[u8])) {
    for seed in 0..count {
        let mut random = SplitMix64::new(seed);
        let bytes: Vec<u8> = (0..length).map(|_| random.word() as u8).collect();
        if let Err(failure) = catch_unwind(AssertUnwindSafe(|| body(&bytes))) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(failure);
        }
    }
}

/// Would catch: any difference between the table's paths (hot, slow, several, batch, log blocks)
/// and the pure algorithms they all stand for.
#[test]
fn with_room_every_answer_is_the_map_s() {
    sequences(200, 40_000, bodies::table_with_room);
}

/// Would catch: a limited state that makes room for a stranger, a state that makes room although
/// others have used less, a state mixed up with another's, a table that holds more than it has slots.
#[test]
fn under_pressure_whoever_used_most_stays_and_others_are_themselves_or_fresh() {
    sequences(150, 40_000, bodies::table_under_pressure);
}

const S: u64 = 1_000_000;
const NOW: u64 = 1_790_000_000 * S + 300_000;

fn every(units: u64) -> impl Iterator<Item = Limit> {
    let plain = Algorithm::ALL.into_iter().map(move |it| Limit::per_second(units).algorithm(it));
    let more = [
        Limit::per_second(units).buckets(4),
        Limit::per_second(units).algorithm(Algorithm::LeakyBucket).queue().name("queue"),
    ];
    plain.chain(more).map(|limit| limit.build().unwrap())
}

/// Cost 0 is a peek, forced or not: it once moved the only entry of a log to the present.
#[test]
fn forcing_nothing_changes_nothing() {
    for limit in every(4) {
        let limiter = Limiter::with_capacity(50);
        let at = |micros: u64| limiter.at(Micros::new(NOW + micros));
        let _ = at(0).take(&limit, "key", 2);
        let before = at(1_000).peek(&limit, "key", 4);
        let forced = at(1_000).force(&limit, "key", 0);
        assert_eq!((forced.granted(), forced.reset_after()), (0, before.reset_after()), "{limit}");
        assert_eq!(at(1_000).peek(&limit, "key", 4), before, "{limit}");
    }
}

/// Staggered windows are each key's own, and as exact as others.
#[test]
fn staggered_windows_end_when_they_say() {
    let limiter = Limiter::with_capacity(500);
    let limit = Limit::per_second(3).algorithm(Algorithm::FixedWindow).stagger().build().unwrap();
    let at = |micros: u64| limiter.at(Micros::new(NOW + micros));
    for user in 0..100 {
        let key = format!("user {user}");
        assert!(at(0).take(&limit, &key, 3).allowed());
        let retry = at(0).check(&limit, &key).retry_after().as_micros().unwrap();
        assert!(!at(retry - 1).check(&limit, &key).allowed());
        assert!(at(retry).take(&limit, &key, 3).allowed());
        let next = at(retry).check(&limit, &key).retry_after().as_micros();
        assert_eq!(next, Some(S), "a whole window begins");
    }
}

/// Worked schedule 5. A table of plain LRU fails this.
#[test]
fn a_victim_stays_refused_until_its_own_time() {
    for limit in every(3) {
        let limiter = Limiter::with_capacity(50);
        let at = |micros: u64| limiter.at(Micros::new(NOW + micros));
        assert!(at(0).take(&limit, "victim", 3).allowed());
        let retry = at(0).check(&limit, "victim").retry_after().as_micros().unwrap();
        let mut stranger = 0u64;
        let mut flood = |micros: u64| {
            for _ in 0..2_000 {
                stranger += 1;
                let cost = 1 + stranger % 3;
                let _ = at(micros).take(&limit, &stranger.to_be_bytes(), cost);
            }
        };
        for micros in [0, retry / 3, retry / 2, retry - 1] {
            flood(micros);
            let victim = at(micros).check(&limit, "victim");
            assert!(!victim.allowed(), "{limit}: free after {micros} of {retry} us");
            assert_eq!(victim.decided_by(), DecidedBy::Memory, "{limit}");
            assert_eq!(victim.retry_after().as_micros(), Some(retry - micros), "{limit}");
        }
        assert!(at(retry).check(&limit, "victim").allowed(), "{limit}: not back in time");
        let stats = limiter.store().stats();
        assert!(stats.keys <= stats.slots && stats.overflowed > 0, "{stats:?}");
    }
}

/// An attacker who fills the table with limited keys of its own gets no fresh quota by coming
/// back: its keys are refused, or share the overflow states with all others like it.
#[test]
fn an_attacker_gains_nothing_by_coming_back() {
    for limit in every(2) {
        let limiter = Limiter::with_capacity(50);
        let now = limiter.at(Micros::new(NOW));
        let mut admitted = 0;
        for _round in 0..5 {
            for key in 0u64..2_000 {
                admitted += now.take(&limit, &key.to_be_bytes(), 2).granted();
            }
        }
        // Every slot once, every overflow state once.
        let most = 2 * (limiter.store().stats().slots as u64 + 64);
        assert!(admitted <= most, "{limit}: {admitted} of at most {most}");
    }
}
