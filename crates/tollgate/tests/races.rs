//! Many threads, one limiter, a clock that stands still: what passes in total is exact.
//!
//! A lost update, a check apart from its charge, a key inserted twice, a torn read or a window
//! that is reset in two steps all show up as one unit too many or too few. More threads than cores
//! run on purpose: a thread that is interrupted inside a step is what makes races happen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::{
    Algorithm, Align, Check, Clock, Decision, Limit, LimitBuilder, Limiter, MemoryStore, Micros,
    Receipt, Refusal, SystemClock, Wait, algorithm,
};

const THREADS: usize = 8;
const S: u64 = 1_000_000;
const HOUR: u64 = 3_600 * S;
/// Ten minutes into an hour, so that no window of an hour ends during a test.
const NOW: Micros = Micros::new(497_222 * HOUR + 600 * S);

fn after(micros: u64) -> Micros {
    Micros::new(NOW.as_u64() + micros)
}

/// `units` per hour, counted in every way there is.
fn every(units: u64) -> Vec<Limit> {
    let of = |algorithm| Limit::per_hour(units).algorithm(algorithm);
    let window = || of(Algorithm::FixedWindow);
    let more = [
        of(Algorithm::LeakyBucket).queue().name("queue"),
        of(Algorithm::SlidingWindowCounter).buckets(6),
        window().align(Align::FirstHit),
        window().stagger(),
    ];
    let all = Algorithm::ALL.map(of).into_iter().chain(more);
    all.map(|limit: LimitBuilder| limit.build().unwrap()).collect()
}

/// Starts `threads` at one moment and returns what each found.
fn race<T: Send>(threads: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (barrier, run) = (&Barrier::new(threads), &run);
    thread::scope(|scope| {
        let start = |index| {
            scope.spawn(move || {
                barrier.wait();
                run(index)
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Ends the process if a test hangs: a deadlock must fail, not block the run. Dropping it calls
/// it off.
struct Watchdog(#[expect(dead_code, reason = "dropped with the test")] Sender<()>);

impl Watchdog {
    fn new(test: &'static str) -> Watchdog {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test}: no end after 60 s, probably a deadlock");
                std::process::abort();
            }
        });
        Watchdog(sender)
    }
}

/// Calls `stop` when dropped, so that a failed assertion ends the threads that wait for it.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Would catch: a lost update (more pass), a charge without an admission (fewer pass), and an
/// answer that is not of the moment of its charge (a `remaining` twice or missing).
#[test]
fn exactly_the_capacity_passes() {
    const UNITS: u64 = 500;
    let limiter = Limiter::with_capacity(1_000);
    for (kind, limit) in every(UNITS).into_iter().enumerate() {
        for round in 0..20 {
            let key = format!("{kind}:{round}");
            let mut remaining: Vec<u64> = race(THREADS, |_| {
                let answers = (0..UNITS / 4).map(|_| limiter.at(NOW).check(&limit, &key));
                let allowed = answers.filter(Decision::allowed);
                allowed.map(|decision| decision.remaining()).collect::<Vec<u64>>()
            })
            .concat();
            remaining.sort_unstable();
            assert!(remaining.into_iter().eq(0..UNITS), "{limit}: not each of 0..{UNITS} once");
            assert_eq!(limiter.at(NOW).peek(&limit, &key, 1).remaining(), 0, "{limit}");
        }
    }
}

/// A hundred keys, each asked five times at once by different threads, whatever shares the table with them. Would
/// catch: a key whose units are lost to another, or to a state of its own that it forgets.
#[test]
fn of_five_at_once_each_key_admits_its_four() {
    const KEYS: usize = 100;
    let _dog = Watchdog::new("of_five_at_once_each_key_admits_its_four");
    for limit in every(4) {
        for round in 0..20 {
            let limiter = Limiter::with_capacity(10_000);
            let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            race(THREADS, |thread| {
                for ask in (thread..5 * KEYS).step_by(THREADS) {
                    // Neighbours in time are of one key in some rounds, and far apart in others.
                    let key = if round % 2 == 0 { ask / 5 } else { ask % KEYS };
                    let decision = limiter.at(NOW).check(&limit, &key.to_be_bytes());
                    admitted[key].fetch_add(decision.granted(), SeqCst);
                }
            });
            let admitted: Vec<u64> = admitted.into_iter().map(AtomicU64::into_inner).collect();
            assert_eq!(admitted, [4; KEYS], "{limit}, round {round}");
        }
    }
}

/// Would catch: a part of a cost that is charged, or a cost that is compared with a stale rest.
#[test]
fn a_cost_passes_as_often_as_it_fits() {
    const UNITS: u64 = 1_000;
    let limiter = Limiter::with_capacity(1_000);
    for limit in every(UNITS) {
        for cost in [2, 3, 7, 64, 333, 500, 501, 1_000, 1_001] {
            let key = format!("cost {cost}");
            let tries = (UNITS / cost / 4).max(2);
            let passed = race(THREADS, |_| {
                let answers = (0..tries).map(|_| limiter.at(NOW).take(&limit, &key, cost));
                answers.filter(Decision::allowed).count() as u64
            });
            assert_eq!(passed.iter().sum::<u64>(), UNITS / cost, "{limit}, cost {cost}");
            let left = limiter.at(NOW).peek(&limit, &key, 0).remaining();
            assert_eq!(left, UNITS - UNITS / cost * cost, "{limit}, cost {cost}");
        }
    }
}

/// The mission's own case: 10 threads, 200 requests, limit 100.
#[test]
fn ten_threads_with_200_requests_pass_100() {
    let limiter = Limiter::with_capacity(10_000);
    for limit in every(100) {
        for round in 0..100 {
            let key = format!("m12:{round}");
            let passed = race(10, |_| {
                (0..20).filter(|_| limiter.at(NOW).check(&limit, &key).allowed()).count()
            });
            assert_eq!(passed.iter().sum::<usize>(), 100, "{limit}, round {round}");
        }
    }
}

/// One thread takes in this way; returns the units it got.
fn take_somehow(limiter: &Limiter, way: usize, limit: &Limit, wide: &Limit, key: &str) -> u64 {
    let moment = limiter.at(NOW);
    match way % 5 {
        0 => moment.check(limit, key).granted(),
        1 => moment.take_up_to(limit, key, 3).granted(),
        2 => {
            let mut decisions = Vec::new();
            moment.decide_batch(&[Check::new(limit, key); 5], &mut decisions);
            decisions.iter().map(Decision::granted).sum()
        }
        3 => moment.decide(&[Check::new(wide, key), Check::new(limit, key)]).granted(),
        _ => {
            // Taken, given back, taken again: neither a unit more nor less.
            let decision = moment.check(limit, key);
            let granted = decision.granted();
            moment.refund(limit, key, decision.receipt(), granted);
            moment.check(limit, key).granted()
        }
    }
}

/// Would catch: a path of its own (batch, several limits, up to, refund) that does not exclude the
/// hot path, so that both charge the same unit.
#[test]
fn every_way_to_take_takes_from_the_same_units() {
    const UNITS: u64 = 2_000;
    let _dog = Watchdog::new("every_way_to_take_takes_from_the_same_units");
    let limiter = Limiter::with_capacity(1_000);
    let wide = Limit::per_day(1 << 40).name("wide").build().unwrap();
    for limit in every(UNITS) {
        let taken = race(10, |way| {
            let tries = (0..UNITS / 4).map(|_| take_somehow(&limiter, way, &limit, &wide, "all"));
            tries.sum::<u64>()
        });
        // Units in the hands of a refunding thread may be missed by the others' last tries.
        let rest = limiter.at(NOW).take_up_to(&limit, "all", UNITS).granted();
        assert_eq!(taken.iter().sum::<u64>() + rest, UNITS, "{limit}");
    }
}

/// What strangers do meanwhile. Their limits are refilled soon, so they are first to make room.
fn disturb(limiter: &Limiter, how: usize, done: &AtomicBool) {
    let soon = Limit::per_second(1_000).burst(1_000).name("soon").build().unwrap();
    let log =
        Limit::per_second(50).algorithm(Algorithm::SlidingWindowLog).name("log").build().unwrap();
    let numbers: Vec<Limit> = (1..50)
        .map(|units| Limit::per_second(units * 100).burst(1_000).name("soon").build().unwrap())
        .collect();
    let mut decisions = Vec::new();
    for step in 0.. {
        if done.load(SeqCst) {
            return;
        }
        let moment = limiter.at(after(step % 1_000));
        let own = format!("{how}:{}", step % 97);
        match how {
            // New keys without end: insertions, evictions, sweeps.
            0 => _ = moment.check(&soon, &format!("stranger {step}")),
            // The same later, so that what others wrote has become fresh: sweeps remove it.
            1 => {
                _ = limiter.at(after(5 * S + step)).check(&soon, &format!("sweeper {step}"));
            }
            // Forgets others.
            2 => {
                _ = moment.check(&log, &own);
                moment.reset(&log, &own);
            }
            // Changes others' numbers.
            3 => _ = moment.check(&numbers[step as usize % numbers.len()], &own),
            // Blocks and unblocks others.
            4 => {
                moment.block(&own, after(step % 2_000));
                _ = moment.check(&soon, &own);
                if step % 3 == 0 {
                    moment.unblock(&own);
                }
            }
            // Logs that grow and are forgotten: their blocks change hands.
            5 => {
                for instant in 0..20 {
                    _ = limiter.at(after(instant)).check(&log, &own);
                }
                moment.reset(&log, &own);
            }
            // Several limits, and batches, of others.
            _ => {
                let checks = [Check::new(&soon, &own), Check::new(&log, &own)];
                _ = moment.decide(&checks);
                moment.decide_batch(&checks, &mut decisions);
            }
        }
    }
}

const DISTURBERS: usize = 7;

/// Runs `test` while strangers do everything they can to the same small table.
fn disturbed(limiter: &Limiter, test: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for how in 0..DISTURBERS {
            let done = &done;
            scope.spawn(move || disturb(limiter, how, done));
        }
        let _at_end = StopOnDrop(&done);
        test();
    });
}

/// Would catch: a state that is swept, evicted or renumbered away between a read and its charge, a
/// slot given to another key in that moment, a stranger's block or reset that hits the wrong key.
#[test]
fn strangers_change_nothing() {
    const UNITS: u64 = 300;
    let _dog = Watchdog::new("strangers_change_nothing");
    let limiter = Limiter::with_capacity(400);
    disturbed(&limiter, || {
        for (kind, limit) in every(UNITS).into_iter().enumerate() {
            for round in 0..12 {
                let key = format!("{kind} {round}");
                let passed = race(THREADS, |_| {
                    let answers = (0..UNITS / 4).map(|_| limiter.at(NOW).check(&limit, &key));
                    answers.filter(Decision::allowed).count() as u64
                });
                assert_eq!(passed.iter().sum::<u64>(), UNITS, "{limit}, round {round}");
            }
        }
    });
}

/// Units held at this moment, never more than true: counted after they are taken and uncounted
/// before they are given back.
struct UnitsHeld {
    units: AtomicU64,
    capacity: u64,
}

impl UnitsHeld {
    fn take(&self, units: u64) {
        let held = self.units.fetch_add(units, SeqCst) + units;
        assert!(held <= self.capacity, "{held} units are out of {}", self.capacity);
    }
    fn give_back(&self, units: u64) {
        self.units.fetch_sub(units, SeqCst);
    }
}

/// Would catch: a refund that races with a charge and is lost (units vanish) or counted twice
/// (more than the capacity is out at some moment), and a refund into somebody else's slot.
#[test]
fn refunds_conserve_units_at_every_moment() {
    const UNITS: u64 = 60;
    let _dog = Watchdog::new("refunds_conserve_units_at_every_moment");
    let limiter = Limiter::with_capacity(400);
    disturbed(&limiter, || {
        for limit in every(UNITS) {
            let held = UnitsHeld { units: AtomicU64::new(0), capacity: UNITS };
            race(THREADS, |thread| {
                let mut receipts: Vec<Receipt> = Vec::new();
                for step in 0..1_000 {
                    let cost = 1 + (step + thread as u64) % 7;
                    let decision = limiter.at(NOW).take(&limit, "conserved", cost);
                    if decision.allowed() {
                        held.take(cost);
                        receipts.push(decision.receipt());
                    }
                    if step % 3 != 0
                        && let Some(receipt) = receipts.pop()
                    {
                        let units = receipt.granted();
                        held.give_back(units);
                        limiter.at(NOW).refund(&limit, "conserved", receipt, units);
                    }
                }
            });
            let kept = held.units.load(SeqCst);
            let left = limiter.at(NOW).peek(&limit, "conserved", 0).remaining();
            assert_eq!(kept + left, UNITS, "{limit}: units vanished or appeared");
        }
    });
}

/// Peeks see a state of one moment: at least what was granted before they began, at most what was
/// begun before they ended. Would catch: torn reads of a slot or of a log's block.
#[test]
fn peeks_are_of_one_moment() {
    const UNITS: u64 = 2_000;
    let _dog = Watchdog::new("peeks_are_of_one_moment");
    let limiter = Limiter::with_capacity(400);
    disturbed(&limiter, || {
        for limit in every(UNITS) {
            let (begun, granted) = (AtomicU64::new(0), AtomicU64::new(0));
            race(THREADS, |thread| {
                for step in 0..UNITS / 4 {
                    // Different instants, so that logs grow through every size of block and merge.
                    let moment = limiter.at(after(step * 40 + thread as u64));
                    if thread % 2 == 0 {
                        begun.fetch_add(1, SeqCst);
                        let decision = moment.check(&limit, "watched");
                        granted.fetch_add(decision.granted(), SeqCst);
                        continue;
                    }
                    let before = granted.load(SeqCst);
                    let left = limiter.at(after(20_000)).peek(&limit, "watched", 1).remaining();
                    let refilled = u64::from(limit.algorithm().is_bucket());
                    let least = UNITS - begun.load(SeqCst);
                    let most = (UNITS - before + refilled).min(UNITS);
                    assert!((least..=most).contains(&left), "{limit}: {least} ≤ {left} ≤ {most}");
                }
            });
            let left = limiter.at(after(20_000)).peek(&limit, "watched", 0).remaining();
            let granted = granted.load(SeqCst);
            let exact =
                UNITS - granted..=UNITS - granted + u64::from(limit.algorithm().is_bucket());
            assert!(exact.contains(&left), "{limit}: {left} left after {granted}");
        }
    });
}

/// Logs of many keys that grow at once. Would catch: a block given to two logs, a block that is
/// freed while it is read, entries lost when a log moves to a larger block.
#[test]
fn logs_that_grow_at_once_keep_their_entries() {
    const UNITS: u64 = 1_100;
    let _dog = Watchdog::new("logs_that_grow_at_once_keep_their_entries");
    let limiter = Limiter::with_capacity(1_000);
    let limit = Limit::per_hour(UNITS).algorithm(Algorithm::SlidingWindowLog).build().unwrap();
    for round in 0..4 {
        let keys: Vec<String> = (0..6).map(|key| format!("{round}:{key}")).collect();
        let passed = race(THREADS, |thread| {
            let mut passed = vec![0; keys.len()];
            for step in 0..UNITS / 4 {
                for (key, passed) in keys.iter().zip(&mut passed) {
                    let at = after(step * 1_000 + thread as u64 * 7);
                    *passed += limiter.at(at).check(&limit, key).granted();
                }
            }
            passed
        });
        for (index, key) in keys.iter().enumerate() {
            let total: u64 = passed.iter().map(|passed| passed[index]).sum();
            assert_eq!(total, UNITS, "{key}");
            // Every entry is still there and expires when its time comes, not before.
            let last = after(UNITS / 4 * 1_000);
            let peek = limiter.at(last).peek(&limit, key, UNITS);
            assert_eq!(peek.remaining(), 0);
            let all_gone = last.after(peek.reset_after());
            assert_eq!(limiter.at(all_gone).peek(&limit, key, 0).remaining(), UNITS);
        }
    }
    assert!(limiter.store().stats().log_bytes <= 64 << 20);
}

/// Worked schedule 4: everybody arrives at the instant at which all that was used is back. Would
/// catch: a reset and a count that are two steps, so that a count is lost or counted in both.
#[test]
fn at_the_boundary_exactly_the_new_units_pass() {
    const UNITS: u64 = 100;
    let limiter = Limiter::with_capacity(20_000);
    for limit in every(UNITS) {
        // Fewer requests than units, as many, and more.
        for each in [5, 12, 13, 40] {
            for round in 0..12 {
                let key = format!("{each}:{round}");
                let full = limiter.at(NOW).take(&limit, &key, UNITS);
                let boundary = NOW.after(full.reset_after());
                let passed = race(THREADS, |_| {
                    let answers = (0..each).map(|_| limiter.at(boundary).check(&limit, &key));
                    answers.filter(Decision::allowed).count() as u64
                });
                let want = UNITS.min(THREADS as u64 * each);
                assert_eq!(passed.iter().sum::<u64>(), want, "{limit}, {each} each");
            }
        }
    }
}

/// Half of the threads are still in the old window. Would catch: a late caller that takes the
/// count back to the old window, or one that is counted in neither.
#[test]
fn late_callers_do_not_bring_the_old_window_back() {
    const UNITS: u64 = 50;
    let limiter = Limiter::with_capacity(10_000);
    let window = Limit::per_hour(UNITS).algorithm(Algorithm::FixedWindow).build().unwrap();
    let boundary = Micros::new((NOW.as_u64() / HOUR + 1) * HOUR);
    let before = Micros::new(boundary.as_u64() - 1);
    for round in 0..400 {
        let key = format!("late {round}");
        let charged: Vec<Micros> = race(THREADS, |thread| {
            let at = if thread % 2 == 0 { before } else { boundary };
            let answers = (0..UNITS).map(|_| limiter.at(at).check(&window, &key));
            let allowed = answers.filter(Decision::allowed);
            allowed.map(|decision| decision.receipt().charged_at()).collect::<Vec<Micros>>()
        })
        .concat();
        let new = charged.iter().filter(|at| **at >= boundary).count() as u64;
        let old = charged.len() as u64 - new;
        assert_eq!(new, UNITS, "the new window, round {round}");
        assert!(old <= UNITS, "{old} in the old window, round {round}");
        assert_eq!(limiter.at(boundary).peek(&window, &key, 0).remaining(), 0);
    }
}

/// Would catch: a deadlock between requests that name the same limits in another order, and a
/// request that charges some of its limits.
#[test]
fn several_limits_are_charged_together_in_any_order() {
    let _dog = Watchdog::new("several_limits_are_charged_together_in_any_order");
    const KEYS: [&str; 3] = ["anna", "ben", "cleo"];
    let limits = every(400);
    let limiter = Limiter::with_capacity(400);
    disturbed(&limiter, || {
        // Every thread asks for a window of 4 neighbours out of all pairs of limit and key, which
        // overlaps with the windows of others; every other thread names them backwards.
        let pairs: Vec<(&Limit, &str)> =
            KEYS.iter().flat_map(|key| limits.iter().map(move |limit| (limit, *key))).collect();
        let admitted: Vec<AtomicU64> = pairs.iter().map(|_| AtomicU64::new(0)).collect();
        race(THREADS, |thread| {
            for step in 0..600 {
                let first = (step * 5 + thread * 11) % pairs.len();
                let mut window: Vec<usize> =
                    (first..first + 4).map(|index| index % pairs.len()).collect();
                if thread % 2 == 1 {
                    window.reverse();
                }
                let checks: Vec<Check<'_>> = window
                    .iter()
                    .map(|&index| Check::new(pairs[index].0, pairs[index].1))
                    .collect();
                if limiter.at(NOW).decide(&checks).allowed() {
                    for index in window {
                        admitted[index].fetch_add(1, SeqCst);
                    }
                }
            }
        });
        for ((limit, key), admitted) in pairs.iter().zip(&admitted) {
            let used = limit.capacity() - limiter.at(NOW).peek(limit, *key, 0).remaining();
            assert_eq!(used, admitted.load(SeqCst), "{limit} for {key}");
        }
    });
}

/// The same few states, named forwards and backwards as fast as can be, always with room so that
/// they have to be locked. Would catch: locks that are not taken in one order for all.
#[test]
fn opposite_orders_do_not_deadlock() {
    const STEPS: u64 = 20_000;
    let _dog = Watchdog::new("opposite_orders_do_not_deadlock");
    let limiter = Limiter::with_capacity(400);
    let limits = every(1 << 40);
    let checks: Vec<Check<'_>> = limits.iter().map(|limit| Check::new(limit, "hot")).collect();
    let backwards: Vec<Check<'_>> = checks.iter().rev().copied().collect();
    race(THREADS, |thread| {
        let checks = if thread % 2 == 0 { &checks } else { &backwards };
        for _ in 0..STEPS {
            assert!(limiter.at(NOW).decide(checks).allowed());
        }
    });
    for limit in &limits {
        let used = limit.capacity() - limiter.at(NOW).peek(limit, "hot", 0).remaining();
        assert_eq!(used, STEPS * THREADS as u64, "{limit}");
    }
}

/// A full table in which the new states of one request can only take the place of others. Would
/// catch: states of one request that evict each other, for ever; it once did.
#[test]
fn new_limits_of_one_request_do_not_evict_each_other() {
    let _dog = Watchdog::new("new_limits_of_one_request_do_not_evict_each_other");
    let limits = every(5);
    for round in 0..200 {
        let limiter = Limiter::with_capacity(if round % 2 == 0 { 1 } else { 100 });
        let slots = limiter.store().stats().slots;
        for stranger in 0..4 * slots {
            // Not fresh, and not limited: it makes room when asked.
            let _ =
                limiter.at(NOW).check(&limits[stranger % limits.len()], &stranger.to_be_bytes());
        }
        for size in [2, limits.len()] {
            let key = format!("{size} new");
            let checks: Vec<Check<'_>> =
                limits[..size].iter().map(|limit| Check::new(limit, &key)).collect();
            let decision = limiter.at(NOW).decide(&checks);
            assert!(decision.allowed(), "{decision:?}");
        }
        let stats = limiter.store().stats();
        assert!(stats.keys <= stats.slots, "{stats:?}");
    }
}

/// Everybody meets a new key at once, in different ways. Would catch: a key that is inserted twice
/// (two states, more than the capacity) or whose first charge is lost.
#[test]
fn a_new_key_is_inserted_once() {
    const KEYS: usize = 20_000;
    const UNITS: u64 = 3;
    let _dog = Watchdog::new("a_new_key_is_inserted_once");
    let limits = every(UNITS);
    let wide = Limit::per_day(1 << 40).name("wide").build().unwrap();
    let limiter = Limiter::with_capacity(3 * KEYS);
    let barrier = Barrier::new(THREADS);
    let passed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    race(THREADS, |thread| {
        for (index, passed) in passed.iter().enumerate() {
            if index % 8 == 0 {
                barrier.wait();
            }
            let (limit, key) = (&limits[index % limits.len()], index.to_be_bytes());
            let moment = limiter.at(NOW);
            let decision = match (thread + index) % 4 {
                0 => moment.decide(&[Check::new(limit, &key), Check::new(&wide, &key)]),
                _ => moment.check(limit, &key),
            };
            passed.fetch_add(decision.granted(), SeqCst);
        }
    });
    for (index, passed) in passed.iter().enumerate() {
        let limit = &limits[index % limits.len()];
        assert_eq!(passed.load(SeqCst), UNITS, "{limit}, key {index}");
    }
    let stats = limiter.store().stats();
    assert_eq!((stats.overflowed, stats.evicted), (0, 0), "there was room for all");
}

/// Would catch: a count of keys that wraps or drifts when insertions race with sweeps.
#[test]
fn the_table_is_never_more_than_full() {
    let _dog = Watchdog::new("the_table_is_never_more_than_full");
    let limiter = Limiter::with_capacity(100);
    let soon = Limit::per_second(1_000).burst(10).build().unwrap();
    let slower = Limit::per_second(1_000).burst(10).name("slower").build().unwrap();
    let working = AtomicUsize::new(THREADS);
    race(THREADS + 1, |thread| {
        if thread == THREADS {
            while working.load(SeqCst) > 0 {
                let stats = limiter.store().stats();
                assert!(stats.keys <= stats.slots, "{stats:?}");
                thread::yield_now();
            }
            return;
        }
        for step in 0..20_000 {
            // Keys are shared and time moves, so every key is inserted and swept all the time.
            let key = format!("{}", step % 500);
            let moment = limiter.at(after(step * 20));
            let _ = match thread % 2 {
                0 => moment.check(&soon, &key),
                _ => moment.decide(&[Check::new(&soon, &key), Check::new(&slower, &key)]),
            };
        }
        working.fetch_sub(1, SeqCst);
    });
    let stats = limiter.store().stats();
    assert!(0 < stats.keys && stats.keys <= stats.slots, "{stats:?}");
}

/// Worked schedule 5 with racing attackers: whoever is refused stays refused, whatever others do.
#[test]
fn a_limited_key_stays_limited_under_a_flood() {
    let _dog = Watchdog::new("a_limited_key_stays_limited_under_a_flood");
    let limiter = Limiter::with_capacity(200);
    let limits = every(5);
    for limit in &limits {
        assert!(limiter.at(NOW).take(limit, "victim", 5).allowed());
    }
    race(THREADS, |thread| {
        for step in 0..4_000 {
            let limit = &limits[step % limits.len()];
            let stranger = format!("{thread}:{step}");
            // Some fill their quota too, so that the table is full of limited states.
            let _ = limiter.at(NOW).take(limit, &stranger, if step % 2 == 0 { 5 } else { 1 });
            let victim = limiter.at(NOW).check(limit, "victim");
            assert!(!victim.allowed(), "{limit}: set free by strangers");
        }
    });
    let stats = limiter.store().stats();
    assert!(stats.keys <= stats.slots && stats.overflowed > 0, "{stats:?}");
}

/// Would catch: a block that is stored and not asked, because another thread counted the blocks at
/// the same time.
#[test]
fn a_block_holds_while_others_come_and_go() {
    let limiter = Limiter::with_capacity(100);
    let limit = Limit::per_second(1 << 40).build().unwrap();
    let until = after(HOUR);
    race(THREADS, |thread| {
        let key = format!("blocked {thread}");
        for step in 0..100_000 {
            assert!(limiter.at(NOW).block(&key, until));
            let refusal = limiter.at(NOW).check(&limit, &key).refusal();
            assert_eq!(refusal, Some(Refusal::Blocked), "thread {thread}, step {step}");
            assert!(limiter.at(NOW).unblock(&key));
            assert!(limiter.at(NOW).check(&limit, &key).allowed());
        }
    });
}

/// Would catch: whoever finds a block run out removes it although it has just been renewed.
#[test]
fn a_block_renewed_as_it_runs_out_holds() {
    const ROUNDS: u64 = 60_000;
    let limiter = Limiter::with_capacity(100);
    let limit = Limit::per_second(1 << 40).build().unwrap();
    let barrier = Barrier::new(2);
    race(2, |thread| {
        for round in 0..ROUNDS {
            let now = after(round * 10);
            if thread == 0 {
                assert!(limiter.at(now).block("renewed", after(round * 10 + 5)));
            }
            barrier.wait();
            let now = after(round * 10 + 5);
            if thread == 0 {
                limiter.at(now).block("renewed", after(round * 10 + 9));
                let refusal = limiter.at(now).check(&limit, "renewed").refusal();
                assert_eq!(refusal, Some(Refusal::Blocked), "round {round}");
            } else {
                let _ = limiter.at(now).check(&limit, "renewed");
            }
            barrier.wait();
        }
    });
}

/// New numbers for the key that is being taken from, at one instant: what is used stays used.
/// Would catch: a state that two threads carry over at once, losing the charges of one.
#[test]
fn numbers_change_under_load_and_what_is_used_stays_used() {
    let limiter = Limiter::with_capacity(1_000);
    for (index, small) in every(100).into_iter().enumerate() {
        let large = every(300).swap_remove(index);
        let granted: HashMap<u64, u64> = race(THREADS, |thread| {
            let limit = if thread % 2 == 0 { &small } else { &large };
            let granted: u64 = (0..150).map(|_| limiter.at(NOW).check(limit, "n").granted()).sum();
            (limit.capacity(), granted)
        })
        .into_iter()
        .fold(HashMap::new(), |mut sums, (capacity, granted)| {
            *sums.entry(capacity).or_default() += granted;
            sums
        });
        // Carrying over to the smaller forgets what is used above it: semantics, "Keys".
        assert!(granted[&100] <= 100, "{small}: {granted:?}");
        let used = 300 - limiter.at(NOW).peek(&large, "n", 0).remaining();
        assert!(used <= granted[&100] + granted[&300], "{large}: {used} used, {granted:?} granted");
    }
}

/// A queue refuses a caller who cannot wait, again and again, while another takes the last unit of
/// a limit asked beside it. Would catch: a charge that is taken back because of the delay, and that
/// refuses the other meanwhile.
#[test]
fn who_cannot_wait_takes_nothing_from_others() {
    let _dog = Watchdog::new("who_cannot_wait_takes_nothing_from_others");
    let queue = Limit::per_hour(1).burst(5).algorithm(Algorithm::LeakyBucket).queue().name("line");
    let queue = queue.build().unwrap();
    for companion in every(2) {
        let limiter = Limiter::with_capacity(1_000);
        let moment = limiter.at(NOW);
        assert!(moment.check(&queue, "line").allowed());
        assert!(moment.check(&companion, "all").allowed());
        let stop = AtomicBool::new(false);
        race(2, |thread| {
            if thread == 0 {
                let both = [Check::new(&queue, "line").at_once(), Check::new(&companion, "all")];
                while !stop.load(SeqCst) {
                    let refused = moment.decide(&both);
                    assert!(!refused.allowed() && refused.violates(0), "{refused:?}");
                }
                return;
            }
            let _end = StopOnDrop(&stop);
            for nth in 0..20_000 {
                let taken = moment.check(&companion, "all");
                assert!(taken.allowed(), "{companion}: {nth} refused although a unit is free");
                moment.refund(&companion, "all", taken.receipt(), 1);
            }
        });
        assert_eq!(moment.peek(&companion, "all", 0).remaining(), 1, "{companion}");
        assert_eq!(moment.peek(&queue, "line", 0).remaining(), 4, "{companion}");
    }
}

/// How every kind of limit counts in a few milliseconds: much shorter than a thread may be paused.
fn short() -> Vec<Limit> {
    let of = |text: &str, algorithm| -> Limit {
        tollgate::limit::parse_rate(text).unwrap().algorithm(algorithm).build().unwrap()
    };
    vec![
        of("1000/second burst 10", Algorithm::TokenBucket),
        of("10/second burst 1", Algorithm::TokenBucket),
        of("100/second burst 1", Algorithm::LeakyBucket),
        of("5/10ms", Algorithm::SlidingWindowCounter),
        of("5/10ms", Algorithm::FixedWindow),
        of("5/10ms", Algorithm::SlidingWindowLog),
        Limit::per(5, Duration::from_millis(10)).buckets(5).build().unwrap(),
    ]
}

/// Takes from one key as fast as `threads` can, on the machine's clock, for 150 ms. Whatever passed
/// must pass again, one after the other at the instants that the charges carry.
fn admits_no_more_than_alone(limit: &Limit, threads: usize) {
    let limiter = Limiter::with_capacity(1_000);
    let end = SystemClock.now().after(Wait::from_micros(150_000));
    let mut charged: Vec<Micros> = race(threads, |_| {
        let mut charged = Vec::new();
        loop {
            let decision = limiter.check(limit, "one");
            if decision.allowed() {
                charged.push(decision.receipt().charged_at());
            }
            if decision.at() >= end {
                return charged;
            }
        }
    })
    .concat();
    charged.sort_unstable();
    let mut alone = algorithm::State::fresh(limit, Micros::ZERO);
    let passes = |at: &&Micros| algorithm::take(limit, &mut alone, 1, **at).allowed;
    let passed = charged.iter().filter(passes).count();
    assert_eq!(charged.len(), passed, "{limit} ({}), {threads} threads", limit.algorithm());
}

/// Would catch: a thread that was paused for longer than a limit remembers, and that sets its clock
/// back to before the pause, so that the next caller finds it refilled.
#[test]
fn eight_threads_admit_no_more_than_one() {
    short().iter().for_each(|limit| admits_no_more_than_alone(limit, 8));
}

#[test]
fn sixty_four_threads_admit_no_more_than_one() {
    short().iter().for_each(|limit| admits_no_more_than_alone(limit, 64));
}

/// A clock whose next reader is paused after reading it, while others do what `meanwhile` says.
#[derive(Default)]
struct PausingClock {
    now: AtomicU64,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for PausingClock {
    fn now(&self) -> Micros {
        let now = Micros::new(self.now.load(SeqCst));
        let meanwhile = self.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|others| others());
        now
    }
}

type PausingLimiter = Limiter<MemoryStore, Arc<PausingClock>>;

/// Every way to ask that may move a state.
fn ask(limiter: &PausingLimiter, how: usize, limit: &Limit) -> Micros {
    let check = Check::new(limit, "one");
    let alone = Limit::per_hour(1_000).name("alone").build().unwrap();
    match how {
        0 => limiter.check(limit, "one").at(),
        1 => limiter.peek(limit, "one", 1).at(),
        2 => limiter.take_up_to(limit, "one", 2).at(),
        3 => limiter.decide(&[check, Check::new(&alone, "one")]).at(),
        4 => limiter.decide(&[check.shadow()]).at(),
        5 => {
            let mut decisions = Vec::new();
            limiter.decide_batch(&[check; 20], &mut decisions);
            decisions[19].at()
        }
        // A batch whose instant was read long before the last of it is decided.
        6 => {
            let (moment, mut last) = (limiter.now(), Micros::ZERO);
            for _ in 0..20 {
                last = moment.check(limit, "one").at();
            }
            last
        }
        _ => limiter.force(limit, "one", 1).at(),
    }
}

/// A thread reads the clock and is paused; others use up the limit five seconds later. Would catch:
/// a state that follows the old reading, and is fresh again for whoever reads the clock next.
#[test]
fn a_paused_thread_sets_no_clock_back() {
    for (limit, how) in short().iter().flat_map(|limit| (0..8).map(move |how| (limit, how))) {
        let clock = Arc::new(PausingClock::default());
        clock.now.store(NOW.as_u64(), SeqCst);
        let limiter = Arc::new(Limiter::new(MemoryStore::new(100), Arc::clone(&clock)));
        let later = NOW.as_u64() + 5 * S;
        let (theirs, of_theirs) = (Arc::clone(&limiter), limit.clone());
        *clock.meanwhile.lock().unwrap() = Some(Box::new(move || {
            theirs.clock().now.store(later, SeqCst);
            let capacity = of_theirs.capacity();
            assert!(theirs.take(&of_theirs, "one", capacity).allowed());
        }));
        let name = format!("{limit} ({}), {how}", limit.algorithm());
        assert_eq!(ask(&limiter, how, limit), Micros::new(later), "{name}: the instant");
        let next = limiter.check(limit, "one");
        assert!(!next.allowed(), "{name}: refilled");
        // It was the thread that was late, not the clock; where the clock is, states follow it.
        clock.now.store(NOW.as_u64(), SeqCst);
        let back = limiter.check(limit, "one");
        let longest = 3 * limit.memory_us();
        assert!(back.retry_after() <= Wait::from_micros(longest), "{name}: {back:?}");
    }
}
