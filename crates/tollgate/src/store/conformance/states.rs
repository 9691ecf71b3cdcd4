//! Behaviours of one state: worked cases, refusals, resets, blocks, other numbers and clocks.

use std::fmt;

use super::probe::{Probe, at, built, micros, seconds, ten_per_hour};
use super::worked_cases::WORKED_CASES;
use crate::algorithm::{Algorithm, JUMP_US_MIN};
use crate::check::{Act, Check};
use crate::decision::{Decision, Refusal};
use crate::limit::{Limit, OnChange};
use crate::store::Store;
use crate::time::{Micros, Wait};

pub(super) async fn worked_cases<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for case in WORKED_CASES {
        let (limit, key) = (case.limit(), probe.key(case.name));
        for (row, &(at, cost, allowed, left, wait)) in case.rows.iter().enumerate() {
            let decision = probe.take(&limit, &key, cost, micros(at)).await;
            let state = match limit.is_queue() {
                true => decision.delay().as_micros().unwrap_or(u64::MAX),
                false => decision.remaining(),
            };
            let waits = decision.retry_after().as_micros().map_or(-1, |wait| wait as i64);
            let got = (decision.allowed(), state, waits);
            probe.equal(
                got,
                (allowed, left, wait),
                format_args!("{} ({limit}), row {row}", case.name),
            );
        }
    }
}

pub(super) async fn refusals<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let what = |step: &str| format!("{limit}: {step}");
        let first = probe.take(&limit, &key, 7, at(1)).await;
        probe.equal((first.allowed(), first.granted()), (true, 7), what("7 of 10"));
        let refused = probe.take(&limit, &key, 5, at(1)).await;
        let got = (refused.refusal(), refused.granted(), refused.remaining());
        probe.equal(got, (Some(Refusal::OverLimit), 0, 3), what("5 of 3"));
        let never = probe.take(&limit, &key, 11, at(1)).await;
        let got = (never.refusal(), never.retry_after());
        probe.equal(got, (Some(Refusal::NeverFits), Wait::NEVER), what("11 of 10"));
        probe.equal(probe.left(&limit, &key, at(1)).await, 3, what("refusals charge nothing"));
        let ready = at(1).after(refused.retry_after());
        let early = Micros::new(ready.as_u64() - 1);
        let early = probe.take(&limit, &key, 5, early).await.allowed();
        let ready = probe.take(&limit, &key, 5, ready).await.allowed();
        probe.equal((early, ready), (false, true), what("the wait is enough and minimal"));
    }
}

pub(super) async fn resets<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let other = built(Limit::per_day(10).algorithm(limit.algorithm()));
        probe.equal(probe.reset(&limit, &key, at(1)).await, false, "nothing to reset");
        let _ = probe.take(&limit, &key, 8, at(1)).await;
        let _ = probe.take(&other, &key, 8, at(1)).await;
        probe.equal(probe.reset(&limit, &key, at(2)).await, true, format_args!("{limit}"));
        let left = (probe.left(&limit, &key, at(2)).await, probe.left(&other, &key, at(2)).await);
        probe.equal(left, (10, 2), format_args!("{limit}, and a limit that was not reset"));
        probe.equal(probe.reset(&limit, &key, at(3)).await, false, "nothing left to reset");
    }
}

pub(super) async fn balances<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        probe.equal(probe.balance(&limit, &key, at(1)).await, 10, format_args!("{limit}: unused"));
        let _ = probe.take(&limit, &key, 4, at(1)).await;
        probe.equal(probe.balance(&limit, &key, at(1)).await, 6, format_args!("{limit}: after 4"));
        let _ = probe.force(&limit, &key, 9, at(1)).await;
        probe.equal(probe.balance(&limit, &key, at(1)).await, -3, format_args!("{limit}: in debt"));
        let later = at(4 * 3_600);
        probe.equal(probe.balance(&limit, &key, later).await, 10, format_args!("{limit}: later"));
    }
}

pub(super) async fn blocks<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let limit = built(Limit::per_hour(10));
    let (blocked, free) = (probe.key("blocked"), probe.key("free"));
    let wait = |now: Micros| probe.store.blocked((&blocked).into(), now);
    probe.equal(wait(at(10)), None, "not blocked yet");
    probe.equal(probe.block(&blocked, at(70), at(10)).await, true, "there is room for a block");
    probe.equal(probe.block(&blocked, at(20), at(10)).await, true, "a shorter block");
    probe.equal(probe.store.any_block(at(10)), true, "a key is blocked");
    probe.equal(wait(at(30)), Some(seconds(40)), "a shorter block changes nothing");
    for now in [at(10), micros(69_999_999)] {
        let refused = probe.take(&limit, &blocked, 1, now).await;
        let got = (refused.refusal(), refused.retry_after());
        probe.equal(got, (Some(Refusal::Blocked), now.until(at(70))), "a take is refused");
        let both = [Check::new(&limit, &free), Check::new(&limit, &blocked)];
        let (both, _) = probe.decide_each(&both, now).await;
        probe.equal(both.refusal(), Some(Refusal::Blocked), "one of two keys is blocked");
    }
    probe.equal(probe.take(&limit, &free, 1, at(60)).await.remaining(), 9, "other keys are free");
    let forced = probe.force(&limit, &blocked, 2, at(60)).await;
    probe.equal((forced.allowed(), forced.remaining()), (true, 8), "a force is charged");
    probe.equal(wait(at(70)), None, "the block has ended");
    probe.equal(probe.take(&limit, &blocked, 1, at(70)).await.remaining(), 7, "after the block");
    probe.equal(probe.block(&blocked, at(200), at(80)).await, true, "a second block");
    probe.equal(probe.unblock(&blocked, at(90)).await, true, "a block is lifted");
    probe.equal(probe.unblock(&blocked, at(90)).await, false, "there is no block to lift");
    probe.equal(probe.take(&limit, &blocked, 1, at(90)).await.allowed(), true, "lifted");
    blocked_requests(probe).await;
}

/// Every act and option of a check, requests of two blocked keys, and batches.
async fn blocked_requests<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let limit = built(Limit::per_hour(10));
    let keys = ["soon", "late", "later free"].map(|name| probe.key(name));
    let [soon, late, free] = keys.each_ref().map(|key| Check::new(&limit, key));
    for (key, end) in [(0, 40), (0, 60), (1, 90)] {
        probe.equal(probe.block(&keys[key], at(end), at(10)).await, true, "room for a block");
    }
    let wait = probe.store.blocked((&keys[0]).into(), at(10));
    probe.equal(wait, Some(seconds(50)), "a longer block takes the place of a shorter one");
    let rows = [
        ("a take", soon),
        ("a peek", soon.act(Act::Peek)),
        ("up to 3", soon.cost(3).act(Act::UpTo)),
        ("a shadow check", soon.shadow()),
        ("a check that counts refusals", soon.count_denied()),
    ];
    let summary =
        |decision: &Decision| (decision.refusal(), decision.granted(), decision.retry_after());
    let until = |end: u64| (Some(Refusal::Blocked), 0, seconds(end - 10));
    for (what, check) in rows {
        let decision = probe.decide(check, at(10)).await;
        probe.equal(summary(&decision), until(60), format_args!("{what} of a blocked key"));
    }
    let rows = [
        ("the longer of two blocks", [soon, late], 90),
        ("the longer of two blocks, in the other order", [late, soon], 90),
        ("the block that no force ignores", [soon, late.act(Act::Force)], 60),
    ];
    for (what, checks, end) in rows {
        let (decision, _) = probe.decide_each(&checks, at(10)).await;
        probe.equal(summary(&decision), until(end), what);
    }
    let batch = [soon, late.act(Act::Peek), free];
    let got: Vec<_> = probe.decide_batch(&batch, at(10)).await.iter().map(summary).collect();
    let want = vec![until(60), until(90), (None, 1, Wait::ZERO)];
    probe.equal(got, want, "a batch with blocked keys");
    let batch = [soon, late.cost(3).act(Act::Force), free.act(Act::Peek)];
    let got: Vec<_> = probe.decide_batch(&batch, at(10)).await.iter().map(summary).collect();
    let want = vec![until(60), (None, 3, Wait::ZERO), (None, 0, Wait::ZERO)];
    probe.equal(got, want, "a batch with a force of a blocked key");
    let mut left = Vec::new();
    for key in &keys {
        left.push(probe.balance(&limit, key, at(10)).await);
    }
    probe.equal(left, vec![10, 7, 9], "blocked requests charge nothing");
}

pub(super) async fn other_numbers<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    // on a change, units before and after, left before and after
    let rows = [
        (OnChange::Keep, 100, 200, 40, 140),
        (OnChange::Keep, 100, 20, 40, 0),
        (OnChange::Keep, 10, 5, 8, 3),
        (OnChange::Reset, 100, 200, 40, 200),
        (OnChange::Reset, 100, 20, 40, 20),
        (OnChange::Scale, 100, 200, 40, 80),
        (OnChange::Scale, 100, 20, 40, 8),
    ];
    for (algorithm, (row, (on_change, old, new, before, after))) in Algorithm::ALL
        .into_iter()
        .flat_map(|each| rows.into_iter().enumerate().map(move |row| (each, row)))
    {
        let limit = |units| built(Limit::per_hour(units).algorithm(algorithm).on_change(on_change));
        let (old, new) = (limit(old), limit(new));
        let key = probe.key(format_args!("{algorithm} {row}"));
        let what = |step: &str| format!("{on_change:?}, from {old} to {new}: {step}");
        let _ = probe.take(&old, &key, old.capacity() - before, at(1)).await;
        probe.equal(probe.left(&old, &key, at(1)).await, before, what("before"));
        probe.equal(probe.left(&new, &key, at(1)).await, after, what("by the new numbers"));
        let refused = probe.take(&new, &key, after + 1, at(1)).await;
        probe.equal(refused.allowed(), false, what("one more than is left"));
        let unchanged = probe.left(&old, &key, at(1)).await;
        probe.equal(unchanged, before, what("peeks and refusals refill nothing"));
        if after > 0 {
            let taken = probe.take(&new, &key, 1, at(1)).await;
            let left = probe.left(&new, &key, at(1)).await;
            probe.equal((taken.remaining(), left), (after - 1, after - 1), what("a take converts"));
        }
    }
}

pub(super) async fn separate_keys<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let limits: Vec<Limit> = ten_per_hour()
        .chain([
            built(Limit::per_hour(10).name("named")),
            built(Limit::per_day(10)),
            built(Limit::per_hour(10).algorithm(Algorithm::FixedWindow).stagger()),
            built(Limit::per_hour(10).algorithm(Algorithm::SlidingWindowCounter).buckets(6)),
        ])
        .collect();
    let keys = ["anna", "ben", "anna\0", "Anna"].map(|key| probe.key(key));
    let mut wanted = Vec::new();
    for (index, limit) in limits.iter().enumerate() {
        for (nth, key) in keys.iter().enumerate() {
            let cost = ((index + 3 * nth) % 10) as u64;
            let _ = probe.take(limit, key, cost, at(1)).await;
            wanted.push((limit, key, 10 - cost));
        }
    }
    for (limit, key, left) in wanted {
        probe.equal(probe.left(limit, key, at(1)).await, left, format_args!("{limit} of {key:?}"));
    }
    let bytes: &[u8] = &[0xff, 0, 0x80, b'\r', b'\n'];
    let odd = Check::new(&limits[0], bytes);
    probe.equal(probe.decide(odd, at(1)).await.remaining(), 9, "a key may be any bytes");
    probe.equal(probe.decide(odd.act(Act::Peek), at(1)).await.remaining(), 9, "and has a state");
}

pub(super) async fn slow_clocks<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for algorithm in Algorithm::ALL {
        let limit = built(Limit::per_hour(10).algorithm(algorithm));
        let key = probe.key(algorithm);
        let charged = at(100);
        let _ = probe.take(&limit, &key, 10, charged).await;
        let refused = probe.take(&limit, &key, 1, charged).await;
        let late = probe.take(&limit, &key, 1, at(40)).await;
        let wait = seconds(60).as_micros().zip(refused.retry_after().as_micros());
        let wait = wait.map_or(Wait::NEVER, |(lag, wait)| Wait::from_micros(lag + wait));
        probe.equal((late.allowed(), late.retry_after()), (false, wait), format_args!("{limit}"));
        probe.equal(late.outcome().served_at, charged, format_args!("{limit}: as of the charge"));
        let again = probe.take(&limit, &key, 1, charged).await;
        probe.equal(again.retry_after(), refused.retry_after(), format_args!("{limit}: unchanged"));
    }
}

pub(super) async fn clock_jumps<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for algorithm in Algorithm::ALL {
        let limit = built(Limit::per_second(10).algorithm(algorithm));
        let key = probe.key(algorithm);
        // Further back than the least that is a jump, and than every horizon.
        let (before, after) = (at(1_000), micros(900_000_000 - JUMP_US_MIN));
        let _ = probe.take(&limit, &key, 10, before).await;
        let refused = probe.take(&limit, &key, 1, after).await;
        let outcome = refused.outcome();
        let got = (refused.allowed(), refused.remaining(), outcome.served_at);
        probe.equal(got, (false, 0, after), format_args!("{limit}: the level stays"));
        let soon = refused.retry_after() <= seconds(2);
        probe.equal(soon, true, format_args!("{limit}: the wait counts from the new time"));
        let ready = after.after(refused.retry_after());
        let early = Micros::new(ready.as_u64() - 1);
        let early = probe.take(&limit, &key, 1, early).await.allowed();
        let ready = probe.take(&limit, &key, 1, ready).await.allowed();
        probe.equal((early, ready), (false, true), format_args!("{limit}: time goes on"));
    }
}
