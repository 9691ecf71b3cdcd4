//! The refusal cache, from outside.

use tollgate::ManualClock;

use super::*;

#[tokio::test]
async fn a_refused_key_is_refused_without_the_store_until_its_wait_is_over() {
    let (shared, store) = standing();
    let limit = limit("10/second burst 10");
    let check = Check::new(&limit, "a");
    assert!(decide(&shared, &[check.cost(10)], NOW).await.allowed());
    let first = decide(&shared, &[check.cost(2)], NOW).await;
    assert_eq!((first.allowed(), first.decided_by()), (false, DecidedBy::Redis));
    store.calls();
    // at µs, cost, wait in µs, calls of the store
    for (micros, cost, wait, calls) in [
        (0, 2, 200_000, 0),
        // More takes longer, and no call either.
        (0, 9, 900_000, 0),
        (199_999, 2, 1, 0),
        (0, 1, 100_000, 1),
        (50_000, 1, 50_000, 0),
        (100_000, 1, 0, 1),
    ] {
        let decision = decide(&shared, &[check.cost(cost)], at(micros)).await;
        let got = (decision.retry_after(), store.calls());
        assert_eq!(got, (Wait::from_micros(wait), calls), "{cost} at {micros}");
        let cached = decision.decided_by() == DecidedBy::RefusalCache;
        assert_eq!(cached, calls == 0, "{cost} at {micros}");
    }
    assert!(!decide(&shared, &[check.cost(11)], NOW).await.allowed(), "it never fits");
    let peek = decide(&shared, &[check.act(Act::Peek)], at(100_000)).await;
    assert_eq!((peek.decided_by(), store.calls()), (DecidedBy::Redis, 2));
    assert_eq!(shared.stats().refusals_cached, 4);
}

#[tokio::test]
async fn giving_back_or_forgetting_asks_the_store_again() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    let limit = limit("1/hour burst 2");
    let check = Check::new(&limit, "a");
    let charged = decide(&shared, &[check.cost(2)], NOW).await;
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    assert_eq!(decide(&shared, &[check], NOW).await.decided_by(), DecidedBy::RefusalCache);
    let Ok(()) = shared.refund(&check, Some(charged.receipt()), NOW.into()).await;
    assert!(decide(&shared, &[check], NOW).await.allowed());
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    let Ok(_) = shared.reset(&check, NOW).await;
    assert!(decide(&shared, &[check.cost(2)], NOW).await.allowed());
    assert!(!decide(&shared, &[check], NOW).await.allowed());
    store.on(&check, NOW, |state| *state = State::fresh(&limit, NOW));
    assert!(!decide(&shared, &[check], NOW).await.allowed(), "reset by another: not known yet");
    shared.forget_refusals();
    assert!(decide(&shared, &[check], NOW).await.allowed());
}

#[tokio::test]
async fn by_the_askers_clock_every_question_is_the_stores() {
    let store = StandInStore::default();
    let shared = SharedStore::start(vec![store.clone()], 1_000, TimeSource::Caller);
    let limit = limit("10/second burst 10");
    let check = Check::new(&limit, "a").terms(terms(Consistency::LocalSync { interval_ms: 10 }));
    for asked in 1..=30 {
        let _ = decide(&shared, &[check], NOW).await;
        assert_eq!(store.0.calls.load(Ordering::Relaxed), asked);
    }
}

/// Would catch: a limit that is full and was not asked counting as one that admits.
#[tokio::test]
async fn of_several_limits_all_that_refuse_are_named_and_the_longest_wait_is_told() {
    let (shared, store) = standing();
    let minute = Limit::per_minute(2).burst(2).name("minute").build().unwrap();
    let day = Limit::per_day(2).burst(2).name("day").build().unwrap();
    let [often, seldom] = [&minute, &day].map(|limit| Check::new(limit, "a").cost(2));
    for check in [seldom, often] {
        assert!(decide(&shared, &[check], NOW).await.allowed());
    }
    assert!(!decide(&shared, &[often], NOW).await.allowed());
    store.calls();
    let half_a_day = Wait::from_micros(43_200_000_000);
    for (checks, binding) in [([often, seldom.cost(1)], 1), ([seldom.cost(1), often], 0)] {
        let decision = decide(&shared, &checks, NOW).await;
        assert_eq!((decision.violates(0), decision.violates(1)), (true, true));
        assert_eq!((decision.binding(), decision.retry_after()), (binding, half_a_day));
    }
    // What is forced refuses nobody, and "up to" wants one at least.
    let forced = decide(&shared, &[often, seldom.act(Act::Force)], NOW).await;
    assert_eq!((forced.violates(1), store.calls()), (false, 0));
    let some = decide(&shared, &[often, seldom.act(Act::UpTo)], NOW).await;
    assert_eq!((some.retry_after(), store.calls()), (half_a_day, 0));
}

/// Would catch: a refusal that is told although a later charge here has made it another.
#[tokio::test]
async fn a_charge_ends_what_is_remembered_of_a_refusal() {
    let (shared, store) = standing();
    let limit = limit("1/hour burst 6");
    let check = Check::new(&limit, "a");
    assert!(decide(&shared, &[check.cost(4)], NOW).await.allowed());
    assert!(!decide(&shared, &[check.cost(3)], NOW).await.allowed());
    // what is charged, what is left then, hours until 3 fit
    for (charge, left, hours) in [(check, 1, 2), (check.cost(2).act(Act::Force), 0, 4)] {
        assert!(decide(&shared, &[charge], NOW).await.allowed());
        for decided_by in [DecidedBy::Redis, DecidedBy::RefusalCache] {
            let refused = decide(&shared, &[check.cost(3)], NOW).await;
            assert_eq!((refused.allowed(), refused.remaining()), (false, left));
            assert_eq!(refused.retry_after(), Wait::from_micros(hours * 3_600_000_000));
            assert_eq!(refused.decided_by(), decided_by);
        }
    }
    assert_eq!(store.used(&check, NOW), 7);
}

/// Would catch: waits that are counted from the question, of a store that took its time to answer.
#[tokio::test]
async fn whoever_waits_as_told_is_admitted_however_late_the_store_answered() {
    let (shared, store) = standing();
    let limit = limit("10/second burst 10");
    let check = Check::new(&limit, "a");
    assert!(decide(&shared, &[check.cost(10)], NOW).await.allowed());
    // Asked at 0, judged at 20 ms and answered at 40 ms: one more fits at 100 ms.
    store.0.hangs.store(true, Ordering::Release);
    let (clock, asked, outcomes) = (ManualClock::new(NOW), [check], &mut [Outcome::default()]);
    let asking = shared.decide_each(&asked, Now::live(&clock), outcomes);
    let (Ok(first), ()) = tokio::join!(asking, async {
        tokio::task::yield_now().await;
        store.0.ahead.store(20_000, Ordering::Release);
        clock.set(at(40_000));
        store.0.hangs.store(false, Ordering::Release);
    });
    store.0.ahead.store(0, Ordering::Release);
    assert_eq!((first.allowed(), first.retry_after()), (false, Wait::from_micros(80_000)));
    for (asked, cost) in [(40_000, 1), (60_000, 1), (60_000, 3)] {
        let told = decide(&shared, &[check.cost(cost)], at(asked)).await;
        let ready = asked + told.retry_after().as_micros().unwrap();
        assert_eq!(told.decided_by(), DecidedBy::RefusalCache);
        let (fits, used) = (store.judge(&check.cost(cost), at(ready)), cost);
        assert!(fits.allowed, "{used} at {ready} us, as told at {asked} us");
    }
}
