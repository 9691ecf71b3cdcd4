//! Questions under numbers other than those that wrote the state.

use super::*;

/// Everything in the table: records, and the entries of logs.
fn contents(store: &MemoryStore, limit: &Limit) -> Vec<(u64, SlotRecord, State)> {
    let each = store.keys.each().map(|(_, seen)| (seen.key, seen.record()));
    let of = |record| SlotState::from_record(limit, record, &store.arena).unwrap().copy();
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

/// Used units stay used, whatever smaller numbers are checked meanwhile, and whether they admit.
#[test]
fn numbers_that_were_asked_in_between_change_nothing() {
    for [small, large] in pairs() {
        if small.on_change() != OnChange::Keep {
            continue;
        }
        let store = MemoryStore::new(100);
        let left = |limit: &Limit| {
            store.decide_one(&Check::new(limit, "anna").cost(0), at(600)).remaining()
        };
        assert!(store.decide_one(&Check::new(&large, "anna").cost(60), at(600)).allowed());
        assert_eq!((left(&large), left(&small)), (940, 40), "{large}");
        // Admitted, under the smaller.
        assert!(store.decide_one(&Check::new(&small, "anna"), at(600)).allowed(), "{small}");
        assert_eq!((left(&large), left(&small)), (939, 39), "{large}");
        assert!(store.decide_one(&Check::new(&large, "anna").cost(500), at(600)).allowed());
        for how in 0..4 {
            let check = Check::new(&small, "anna");
            let refused = match how {
                0 => store.decide_one(&check, at(600)),
                1 => store.decide_one(&check.act(Act::UpTo).cost(9), at(600)),
                2 => store.decide_now(&[check, check.cost(2)], at(600)),
                _ => store.decide_now(&[check.shadow(), check], at(600)),
            };
            assert!(!refused.allowed(), "{small}");
            assert_eq!((left(&large), left(&small)), (439, 0), "{large}: {how}");
        }
        // A counted refusal is charged under the numbers that wrote the state.
        let counting = Check::new(&small, "anna").count_denied().cost(3);
        assert!(!store.decide_one(&counting, at(600)).allowed(), "{small}");
        assert_eq!(left(&large), 436, "{large}: counted");
    }
}

/// Refusals that a bucket counts make a debt of one capacity at most.
#[test]
fn a_bucket_owes_one_capacity_for_refusals() {
    for limit in kinds().iter().filter(|limit| limit.algorithm().is_bucket()) {
        for together in [false, true] {
            let store = MemoryStore::new(100);
            let check = Check::new(limit, "anna").count_denied();
            let other = built(Limit::per_hour(1_000_000).name("other"));
            let ask = |cost| match together {
                true => store.decide_now(&[Check::new(&other, "anna"), check.cost(cost)], at(600)),
                false => store.decide_one(&check.cost(cost), at(600)),
            };
            let balance = || store.balance(limit, "anna".into(), at(600));
            for used in 1..=10 {
                assert_eq!(ask(1).allowed(), used <= 5, "{limit}");
                assert_eq!(balance(), 5 - used, "{limit}");
            }
            for cost in [1, 1, 3, 1_000, u64::MAX] {
                assert!(!ask(cost).allowed(), "{limit}");
                assert_eq!(balance(), -5, "{limit}: {cost}");
            }
            // Forced debt beyond that stays.
            let _ = store.decide_one(&check.act(Act::Force).cost(7), at(600));
            assert_eq!(balance(), -12, "{limit}");
            assert!(!ask(1).allowed(), "{limit}");
            assert_eq!(balance(), -12, "{limit}");
        }
    }
}
