//! Behaviours of acts: peek, force, "up to", refunds, counted refusals and queues.

use std::fmt;

use super::probe::{Probe, at, built, micros, ten_per_hour};
use crate::algorithm::Algorithm;
use crate::check::{Act, Check};
use crate::decision::Refusal;
use crate::limit::Limit;
use crate::store::Store;
use crate::time::{Micros, Wait};

pub(super) async fn peeks<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let _ = probe.take(&limit, &key, 6, at(1)).await;
        // cost, allowed
        for (cost, allowed) in [(4, true), (5, false), (0, true), (11, false), (4, true)] {
            let peek =
                probe.decide(Check::new(&limit, &key).cost(cost).act(Act::Peek), at(1)).await;
            let got = (peek.allowed(), peek.granted(), peek.remaining());
            probe.equal(got, (allowed, 0, 4), format_args!("{limit}: a peek of {cost}"));
        }
        let free = probe.take(&limit, &key, 0, at(1)).await;
        let got = (free.allowed(), free.granted(), free.remaining());
        probe.equal(got, (true, 0, 4), format_args!("{limit}: a take of 0"));
        probe.equal(probe.take(&limit, &key, 4, at(1)).await.allowed(), true, "4 were left");
    }
}

pub(super) async fn forces<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let forced = probe.force(&limit, &key, 25, at(1)).await;
        let got = (forced.allowed(), forced.granted(), forced.remaining());
        probe.equal(got, (true, 25, 0), format_args!("{limit}: more than its capacity"));
        probe.equal(probe.balance(&limit, &key, at(1)).await, -15, format_args!("{limit}: debt"));
        let refused = probe.take(&limit, &key, 1, at(1)).await;
        probe.equal(refused.refusal(), Some(Refusal::OverLimit), format_args!("{limit}: in debt"));
        let ready = at(1).after(refused.retry_after());
        let early = Micros::new(ready.as_u64() - 1);
        let early = probe.take(&limit, &key, 1, early).await.allowed();
        let ready = probe.take(&limit, &key, 1, ready).await.allowed();
        probe.equal((early, ready), (false, true), format_args!("{limit}: the debt is paid"));
    }
}

pub(super) async fn up_to<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        // cost, allowed, granted, left
        let rows = [(4, true, 4, 6), (8, true, 6, 0), (3, false, 0, 0), (0, true, 0, 0)];
        for (cost, allowed, granted, left) in rows {
            let check = Check::new(&limit, &key).cost(cost).act(Act::UpTo);
            let decision = probe.decide(check, at(1)).await;
            let got = (decision.allowed(), decision.granted(), decision.remaining());
            probe.equal(got, (allowed, granted, left), format_args!("{limit}: up to {cost}"));
        }
        let fresh = probe.key(format_args!("{} above", limit.algorithm()));
        let above = Check::new(&limit, &fresh).cost(1_000).act(Act::UpTo);
        let granted = probe.decide(above, at(1)).await.granted();
        probe.equal(granted, 10, format_args!("{limit}: more than its capacity"));
    }
}

pub(super) async fn refunds<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let check = Check::new(&limit, &key);
        let first = probe.take(&limit, &key, 4, at(1)).await;
        let second = probe.take(&limit, &key, 5, at(1)).await;
        let what = |step: &str| format!("{limit}: {step}");
        probe.refund(check.cost(3), Some(first.receipt()), at(1)).await;
        probe.equal(probe.left(&limit, &key, at(1)).await, 4, what("3 of 4 are given back"));
        probe.refund(check.cost(100), Some(second.receipt()), at(1)).await;
        let left = probe.left(&limit, &key, at(1)).await;
        probe.equal(left, 9, what("no more than the receipt's 5 are given back"));
        let refused = probe.take(&limit, &key, 10, at(1)).await;
        probe.refund(check.cost(10), Some(refused.receipt()), at(1)).await;
        let left = probe.left(&limit, &key, at(1)).await;
        probe.equal(left, 9, what("a refusal has nothing to give back"));
        let old = probe.take(&limit, &key, 2, at(1)).await;
        let later = at(1 + 4 * 3_600);
        let _ = probe.take(&limit, &key, 6, later).await;
        probe.refund(check.cost(2), Some(old.receipt()), later).await;
        let left = probe.left(&limit, &key, later).await;
        probe.equal(left, 4, what("units that have returned since are not given back again"));
    }
}

pub(super) async fn grants<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let check = Check::new(&limit, &key);
        probe.refund(check.cost(5), None, at(1)).await;
        let left = probe.left(&limit, &key, at(1)).await;
        probe.equal(left, 10, format_args!("{limit}: never more than the capacity"));
        let _ = probe.take(&limit, &key, 8, at(1)).await;
        probe.refund(check.cost(3), None, at(1)).await;
        probe.equal(probe.left(&limit, &key, at(1)).await, 5, format_args!("{limit}: 3 more"));
        probe.refund(check.cost(0), None, at(1)).await;
        probe.equal(probe.left(&limit, &key, at(1)).await, 5, format_args!("{limit}: nothing"));
        probe.refund(check.cost(100), None, at(1)).await;
        probe.equal(probe.left(&limit, &key, at(1)).await, 10, format_args!("{limit}: full"));
    }
}

pub(super) async fn count_denied<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let check = Check::new(&limit, &key).count_denied();
        let what = |step: &str| format!("{limit}: {step}");
        probe.equal(probe.decide(check.cost(10), at(1)).await.allowed(), true, what("10 of 10"));
        let mut last = Wait::ZERO;
        for _ in 0..3 {
            let refused = probe.decide(check, at(1)).await;
            probe.equal((refused.allowed(), refused.granted()), (false, 0), what("refused"));
            probe.equal(refused.retry_after() >= last, true, what("waits grow"));
            last = refused.retry_after();
        }
        probe.equal(probe.balance(&limit, &key, at(1)).await, -3, what("refusals are counted"));
        let peek = probe.decide(check.act(Act::Peek), at(1)).await;
        probe.equal(peek.allowed(), false, what("a peek"));
        probe.equal(probe.balance(&limit, &key, at(1)).await, -3, what("a peek counts nothing"));
        let ready = at(1).after(peek.retry_after());
        probe.equal(probe.decide(check, ready).await.allowed(), true, what("the wait is enough"));
    }
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_bucket()) {
        let limit = built(Limit::per_hour(10).algorithm(algorithm));
        let key = probe.key(format_args!("{algorithm} for long"));
        for _ in 0..50 {
            let _ = probe.decide(Check::new(&limit, &key).count_denied(), at(1)).await;
        }
        let balance = probe.balance(&limit, &key, at(1)).await;
        probe.equal(balance, -10, format_args!("{limit}: debt from refusals has an end"));
    }
}

pub(super) async fn queues<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let queue = Limit::per_second(10).burst(4).algorithm(Algorithm::LeakyBucket).queue();
    let (limit, key) = (built(queue), probe.key("queue"));
    let tenths = |tenths: u64| Wait::from_micros(tenths * 100_000);
    // tenths of a second, cannot wait | allowed, delay, wait
    let rows = [
        (0, true, true, 0, 0),
        (0, true, false, 0, 1),
        (0, false, true, 1, 0),
        (0, false, true, 2, 0),
        (0, false, true, 3, 0),
        (0, false, false, 0, 1),
        (0, true, false, 0, 4),
        (1, false, true, 3, 0),
        (5, true, true, 0, 0),
        (5, true, false, 0, 1),
    ];
    for (row, (now, at_once, allowed, delay, wait)) in rows.into_iter().enumerate() {
        let check = Check::new(&limit, &key);
        let check = if at_once { check.at_once() } else { check };
        let decision = probe.decide(check, micros(now * 100_000)).await;
        let got = (decision.allowed(), decision.delay(), decision.retry_after());
        probe.equal(got, (allowed, tenths(delay), tenths(wait)), format_args!("row {row}"));
    }
}
