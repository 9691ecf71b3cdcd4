//! Queues, and those who cannot wait.

use super::*;

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
        assert!(ask(at_once, at(10)).allowed(), "an empty queue delays no request");
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
    // A request that checks one queue twice is one request: it does not delay itself.
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
