//! The sequence lock of the table's slots, and the places of keys that an instance keeps units of beside
//! a shared store, under every interleaving that loom finds, including those that only a machine with
//! weaker ordering than this one would show.
//!
//! The real sources are compiled in, with loom's atomics in place of the standard ones. Run it with
//! `cargo xtask test --only loom`.

#![cfg(loom)]

#[path = "../src/algorithm"]
mod algorithm {
    pub(crate) mod token_bucket {
        #[allow(dead_code)]
        mod excess_units;
        pub(crate) use excess_units::ExcessUnits;
    }
}
#[path = "../src/store/memory/slot.rs"]
#[allow(dead_code)]
mod slot;
#[path = "../src/sync.rs"]
mod sync;
/// Here, because the runtime that `tollgate-shared` depends on cannot be built for loom from outside.
#[path = "../../tollgate-shared/src/shared_store"]
mod shared {
    #[allow(dead_code)]
    mod unit_table;
    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        pub(super) use loom::sync::{Mutex, MutexGuard};
        pub(super) use std::sync::PoisonError;
    }

    use super::{Arc, AtomicU64, KEY, Ordering, explore, thread};
    use unit_table::UnitTable;

    /// Whoever decides here adds units to a key's place while the place is given up and given to the next key.
    /// Would catch: units of one key that become another's.
    #[test]
    fn units_stay_with_the_key_they_were_added_for() {
        const STRANGER: u64 = 0xCD;
        explore(3, || {
            let places = Arc::new(UnitTable::new(1));
            places.claim(KEY, || ()).expect("there is room");
            let adding = {
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    places.find(KEY).is_some_and(|place| place.add(KEY, 1, |_| true))
                })
            };
            let released = places.release(KEY, |()| true);
            let next = released.then(|| places.claim(STRANGER, || ()).expect("there is room"));
            let added = adding.join().unwrap();
            assert_eq!(
                next.map_or(0, |place| place.drain(STRANGER)),
                0,
                "nobody added to this key"
            );
            let kept = places.find(KEY).map_or(0, |place| place.drain(KEY));
            assert_eq!(kept, u64::from(added), "what was added is kept");
        });
    }

    /// What is told by one set of facts is never added to under another.
    #[test]
    fn units_stay_with_the_facts_they_were_added_under() {
        explore(3, || {
            let places = Arc::new(UnitTable::new(1));
            let place = places.claim(KEY, || ()).expect("there is room");
            let adding = {
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    let old = |facts: &[AtomicU64; 6]| facts[0].load(Ordering::Relaxed) == 0;
                    places.find(KEY).is_some_and(|place| place.add(KEY, 1, old))
                })
            };
            let told = std::cell::Cell::new(0);
            let owner = place.owner();
            place.renew(|left, _| {
                told.set(left);
                ([1, 0, 0, 0, 0, 0], 0)
            });
            drop(owner);
            let added = adding.join().unwrap();
            assert_eq!((told.get(), place.units()), (u64::from(added), 0));
        });
    }
}

use std::sync::atomic::{AtomicU64 as Counter, Ordering::Relaxed as Uncounted};

use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use slot::{Slot, SlotRecord};

const KEY: u64 = 0xAB;
/// All writes carry one instant, so that only the version tells them apart: a frozen clock.
const MARK: u64 = 7;

/// A record whose every part says the same number.
fn record(number: u64) -> SlotRecord {
    SlotRecord { mark: MARK, a: number, b: number, tag: number as u32 }
}

/// A slot that holds `KEY` and the number 0.
fn slot() -> Arc<Slot> {
    let slot = Slot::empty();
    slot.lock().replace(KEY, record(0));
    Arc::new(slot)
}

/// Explores every interleaving with at most this many preemptions of a running thread: three where
/// two threads meet, two or one where three do, so that each model takes seconds.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Would catch: a missing fence or a version that does not move.
#[test]
fn two_writers_never_show_a_reader_a_torn_record() {
    explore(2, || {
        let slot = slot();
        let writers = [1, 2].map(|number| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.lock().write(record(number)))
        });
        let seen = slot.read();
        let number = seen.record().a;
        assert_eq!((seen.key, seen.record()), (KEY, record(number)));
        for writer in writers {
            writer.join().unwrap();
        }
        let last = slot.read().record();
        assert!(last == record(1) || last == record(2), "{last:?}");
    });
}

/// The hot path: read, judge, lock if unchanged, write. Would catch: a lock that is given although
/// somebody has charged since the read, so that two callers get the last unit; and a lost charge.
#[test]
fn the_last_unit_goes_to_one_of_three() {
    explore(1, || {
        let (slot, admitted) = (slot(), Arc::new(Counter::new(0)));
        let take = |slot: Arc<Slot>, admitted: Arc<Counter>| {
            loop {
                let seen = slot.read();
                if seen.record().a >= 1 {
                    return;
                }
                if let Some(mut locked) = slot.lock_if_unchanged(&seen) {
                    locked.write(record(seen.record().a + 1));
                    admitted.fetch_add(1, Uncounted);
                    return;
                }
            }
        };
        let others = [(); 2].map(|()| {
            let (slot, admitted) = (Arc::clone(&slot), Arc::clone(&admitted));
            thread::spawn(move || take(slot, admitted))
        });
        take(Arc::clone(&slot), Arc::clone(&admitted));
        for other in others {
            other.join().unwrap();
        }
        assert_eq!((admitted.load(Uncounted), slot.read().record()), (1, record(1)));
    });
}

/// Would catch: `lock_if_unchanged` that trusts a stale copy.
#[test]
fn lock_if_fails_after_a_write() {
    explore(3, || {
        let slot = slot();
        let seen = slot.read();
        let writer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.lock().write(record(1)))
        };
        if let Some(mut locked) = slot.lock_if_unchanged(&seen) {
            assert_eq!(locked.snapshot().record(), record(0), "locked although it was written");
            locked.write(record(2));
        }
        writer.join().unwrap();
        assert!(slot.lock_if_unchanged(&seen).is_none());
        assert!(!slot.is_unchanged(&seen));
    });
}

/// A slow path that locks and finds nothing to write must not make others fail.
#[test]
fn a_lock_without_a_write_changes_nothing() {
    explore(3, || {
        let slot = slot();
        let seen = slot.read();
        let looker = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || assert_eq!(slot.lock().snapshot().record(), record(0)))
        };
        assert_eq!(slot.read(), seen);
        looker.join().unwrap();
        assert!(slot.lock_if_unchanged(&seen).is_some());
    });
}

/// Ten bits of version come round after 1,024 writes. Would catch: `lock_if_unchanged` that compares the
/// head alone.
#[test]
fn a_version_that_came_round_does_not_deceive_a_charge() {
    explore(0, || {
        let slot = slot();
        let seen = slot.read();
        for number in 1..=1_024 {
            slot.lock().write(record(number));
        }
        assert!(slot.is_unchanged(&seen), "1,024 writes at one instant bring the head round");
        assert!(slot.lock_if_unchanged(&seen).is_none());
        // And a state that is the same in every word may be charged, whatever lies between.
        for number in (1..=1_024).rev() {
            slot.lock().write(record(number - 1));
        }
        assert!(slot.lock_if_unchanged(&seen).is_some());
    });
}

/// The entries of a log are in a block beside the slot, written under its lock and checked by its
/// version. Would catch: a block's word that is seen although the lock is not.
#[test]
fn an_unchanged_slot_vouches_for_its_block() {
    explore(2, || {
        let slot = slot();
        let block = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writers = [1, 2].map(|number| {
            let (slot, block) = (Arc::clone(&slot), Arc::clone(&block));
            thread::spawn(move || {
                let mut locked = slot.lock();
                for word in &*block {
                    word.store(number, Ordering::Relaxed);
                }
                locked.write(record(number));
            })
        });
        let seen = slot.read();
        let words = block.each_ref().map(|word| word.load(Ordering::Relaxed));
        if slot.is_unchanged(&seen) {
            assert_eq!(words, [seen.record().a; 2]);
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// A block changes hands: its slot gives it back to the free list under its lock, and another slot
/// takes it from there, gives its page another size of blocks, as it may when nobody else has a block
/// there, and writes its own entries. `fenced` is whether whoever takes it then puts a release fence
/// before its first store. The fence of its own lock is too early: a reader of the first slot that sees
/// a store of the second must also see the lock of the first.
fn a_block_changes_hands(fenced: bool) {
    explore(3, move || {
        let (first, second) = (slot(), slot());
        // The size of the page, and a word of the block.
        let page = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        first.lock().write(record(1));
        let free = Arc::new(Mutex::new(false));
        let giver = {
            let (first, free) = (Arc::clone(&first), Arc::clone(&free));
            thread::spawn(move || {
                let mut locked = first.lock();
                *free.lock().unwrap() = true;
                locked.write(record(0));
            })
        };
        let taker = {
            let (second, free) = (Arc::clone(&second), Arc::clone(&free));
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let mut locked = second.lock();
                let mut free = free.lock().unwrap();
                if std::mem::take(&mut *free) {
                    if fenced {
                        fence(Ordering::Release);
                    }
                    page[0].store(2, Ordering::Relaxed);
                    drop(free);
                    page[1].store(2, Ordering::Relaxed);
                    locked.write(record(2));
                }
            })
        };
        let seen = first.read();
        if seen.record() == record(1) {
            let words = page.each_ref().map(|word| word.load(Ordering::Relaxed));
            if first.is_unchanged(&seen) {
                assert_eq!(words, [1, 1], "a stranger's entry was believed");
            }
        }
        giver.join().unwrap();
        taker.join().unwrap();
    });
}

/// Would catch: entries of a stranger's log that are believed.
#[test]
fn a_block_that_changes_hands_is_noticed() {
    a_block_changes_hands(true);
}

/// Why the arena fences after it takes a block: without that, loom finds a reader that is deceived.
#[test]
#[should_panic(expected = "a stranger's entry was believed")]
fn a_block_that_changes_hands_without_a_fence_is_not_noticed() {
    a_block_changes_hands(false);
}

/// An evicted key's slot is given to a stranger while somebody decides about it. Would catch: a
/// charge written into the stranger's state, and a stranger's state taken for one's own.
#[test]
fn a_decision_never_lands_on_the_next_key() {
    const STRANGER: u64 = 0xCD;
    explore(3, || {
        let slot = slot();
        let evictor = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let seen = slot.read();
                // Claims it only as it was judged, as the table does.
                let Some(mut locked) = slot.lock_if_unchanged(&seen) else { return false };
                locked.replace(STRANGER, record(5));
                true
            })
        };
        let seen = slot.read();
        let own = seen.key == KEY;
        assert_eq!(seen.record(), record(if own { 0 } else { 5 }), "key and state are of a pair");
        let charged = own
            && slot.lock_if_unchanged(&seen).is_some_and(|mut locked| {
                assert_eq!(locked.snapshot().key, KEY);
                locked.write(record(1));
                true
            });
        let evicted = evictor.join().unwrap();
        let last = slot.read();
        let want = match (evicted, charged) {
            (true, _) => (STRANGER, record(5)),
            (false, true) => (KEY, record(1)),
            (false, false) => unreachable!("one of the two found the slot unchanged"),
        };
        assert_eq!((last.key, last.record()), want);
    });
}

/// Several limits at once. Would catch: a deadlock, which loom reports, and a charge of one slot
/// without the other.
#[test]
fn two_requests_lock_two_slots_in_the_order_of_addresses() {
    explore(3, || {
        let slots = Arc::new([Slot::empty(), Slot::empty()]);
        let charge_both = |slots: &[Slot; 2], names: [usize; 2]| {
            // However the request names them, they are locked by address.
            let mut order = names;
            order.sort_by_key(|&index| std::ptr::from_ref(&slots[index]) as usize);
            let mut locked = order.map(|index| slots[index].lock());
            let [first, second] = locked.each_ref().map(|one| one.snapshot().record().a);
            assert_eq!(first, second, "both or none");
            for one in &mut locked {
                one.write(record(first + 1));
            }
        };
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || charge_both(&slots, [1, 0]))
        };
        charge_both(&slots, [0, 1]);
        other.join().unwrap();
        assert_eq!(slots.each_ref().map(|slot| slot.read().record()), [record(2); 2]);
    });
}

/// Two callers read a clock that runs, and charge a slot with what they read. One that finds a mark
/// ahead of its reading takes that for a clock that went back, unless it reads it again: under the lock,
/// or just before it takes the lock.
fn a_clock_runs(read_again_under_the_lock: bool) {
    explore(3, move || {
        let (slot, clock) = (slot(), Arc::new(AtomicU64::new(MARK)));
        let charge = move |slot: Arc<Slot>, clock: Arc<AtomicU64>| {
            clock.fetch_add(1, Ordering::Relaxed);
            let mut now = clock.load(Ordering::Relaxed);
            if !read_again_under_the_lock && slot.read().record().mark > now {
                now = clock.load(Ordering::Relaxed);
            }
            let mut locked = slot.lock();
            let mark = locked.snapshot().record().mark;
            if read_again_under_the_lock && mark > now {
                now = clock.load(Ordering::Relaxed);
            }
            assert!(mark <= now, "the clock went back");
            locked.write(SlotRecord { mark: now, ..record(1) });
        };
        let other = {
            let (slot, clock) = (Arc::clone(&slot), Arc::clone(&clock));
            thread::spawn(move || charge(slot, clock))
        };
        charge(slot, clock);
        other.join().unwrap();
    });
}

/// Would catch: a thread that was paused and is taken for a clock that went back.
#[test]
fn a_clock_read_again_under_the_lock_is_not_behind() {
    a_clock_runs(true);
}

#[test]
#[should_panic = "the clock went back"]
fn a_clock_read_again_before_the_lock_may_be_behind() {
    a_clock_runs(false);
}
