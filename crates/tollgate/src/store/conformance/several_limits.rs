//! Behaviours of requests with several checks, and of batches.

use std::array;
use std::fmt;
use std::time::Duration;

use super::probe::{Probe, at, built, micros, ten_per_hour};
use super::random_traffic::summary;
use crate::algorithm::Algorithm;
use crate::check::{Act, Check};
use crate::decision::{MAX_LIMITS, Outcome, Refusal};
use crate::limit::Limit;
use crate::store::Store;
use crate::time::Wait;

pub(super) async fn no_limits<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let (limit, key) = (built(Limit::per_hour(10)), probe.key("anna"));
    probe.equal(probe.decide_each(&[], at(1)).await.0.allowed(), true, "no limits");
    let named = Check::new(&limit, &key);
    let empty = Check::new(&limit, "");
    let (decision, _) = probe.decide_each(&[empty], at(1)).await;
    probe.equal(decision.refusal(), Some(Refusal::EmptyKey), "an empty key");
    let (decision, _) = probe.decide_each(&[named, empty], at(1)).await;
    probe.equal(decision.refusal(), Some(Refusal::EmptyKey), "one of two keys is empty");
    let (decision, _) = probe.decide_each(&[named; MAX_LIMITS + 1], at(1)).await;
    probe.equal(decision.refusal(), Some(Refusal::TooManyLimits), "too many limits");
    probe.equal(probe.left(&limit, &key, at(1)).await, 10, "these charge nothing");
    let limits: Vec<Limit> = (0..MAX_LIMITS)
        .map(|nth| built(Limit::per_hour(10).name(format!("limit-{nth}"))))
        .collect();
    let checks: Vec<Check<'_>> = limits.iter().map(|limit| Check::new(limit, &key)).collect();
    let mut outcomes = [Outcome::default(); MAX_LIMITS];
    let decision = probe.decide_into(&checks, at(1), &mut outcomes).await;
    let each = outcomes.map(|outcome| outcome.remaining);
    probe.equal((decision.allowed(), each), (true, [9; MAX_LIMITS]), "as many as possible");
}

pub(super) async fn all_or_none<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let limit =
        |units, period: u64| built(Limit::per(units, Duration::from_micros(period)).burst(units));
    let limits = [limit(2, 1_000_000_000), limit(5, 60_000_000_000)];
    let key = probe.key("buckets");
    // at µs | allowed, left of each, wait, the first and the second violated
    let rows = [
        (0, true, [1, 4], 0, [false, false]),
        (0, true, [0, 3], 0, [false, false]),
        (0, false, [0, 3], 500_000_000, [true, false]),
        (500_000_000, true, [0, 2], 0, [false, false]),
        (1_000_000_000, true, [0, 1], 0, [false, false]),
        (1_500_000_000, true, [0, 0], 0, [false, false]),
        (2_000_000_000, false, [1, 0], 10_000_000_000, [false, true]),
        (12_000_000_000, true, [1, 0], 0, [false, false]),
        (12_000_000_000, false, [1, 0], 12_000_000_000, [false, true]),
    ];
    for (row, (now, allowed, left, wait, violated)) in rows.into_iter().enumerate() {
        let checks = limits.each_ref().map(|limit| Check::new(limit, &key));
        let (decision, outcomes) = probe.decide_each(&checks, micros(now)).await;
        let got = (
            decision.allowed(),
            outcomes.map(|outcome| outcome.remaining),
            decision.retry_after(),
            [0, 1].map(|index| decision.violates(index)),
        );
        let want = (allowed, left, Wait::from_micros(wait), violated);
        probe.equal(got, want, format_args!("row {row}"));
    }
    // One limit of each algorithm in one request; the last one refuses, whichever it is.
    for last in 0..Algorithm::ALL.len() {
        let mut limits: Vec<Limit> = ten_per_hour().collect();
        limits.rotate_left(last + 1);
        let key = probe.key(format_args!("last is {last}"));
        let full = limits.last().expect("there are algorithms");
        let _ = probe.take(full, &key, 8, at(1)).await;
        let checks: Vec<Check<'_>> =
            limits.iter().map(|limit| Check::new(limit, &key).cost(3)).collect();
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        let outcomes = &mut outcomes[..checks.len()];
        let refused = probe.decide_into(&checks, at(1), outcomes).await;
        probe.equal(refused.allowed(), false, format_args!("{full} refuses"));
        probe.equal(refused.binding(), checks.len() - 1, format_args!("{full} is binding"));
        for (limit, outcome) in limits.iter().zip(&*outcomes) {
            let (allowed, left) = if limit.id() == full.id() { (false, 2) } else { (true, 10) };
            let got = (outcome.allowed, outcome.charged, outcome.remaining);
            probe.equal(got, (allowed, 0, left), format_args!("{limit}, when {full} refuses"));
            let stored = probe.left(limit, &key, at(1)).await;
            probe.equal(stored, left, format_args!("{limit} is not charged when {full} refuses"));
        }
    }
    receipts(probe).await;
}

/// Each limit of a request has its own receipt.
async fn receipts<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let limits: Vec<Limit> = ten_per_hour().collect();
    let key = probe.key("receipts");
    let cost = |nth: usize| 1 + nth as u64 % 5;
    let checks: Vec<Check<'_>> =
        (0..limits.len()).map(|nth| Check::new(&limits[nth], &key).cost(cost(nth))).collect();
    let mut outcomes = [Outcome::default(); MAX_LIMITS];
    let outcomes = &mut outcomes[..checks.len()];
    let decision = probe.decide_into(&checks, at(1), outcomes).await;
    probe.equal(decision.allowed(), true, "a request with all algorithms");
    for (nth, limit) in limits.iter().enumerate() {
        let left = 10 - cost(nth);
        let got = (outcomes[nth].charged, outcomes[nth].remaining);
        probe.equal(got, (cost(nth), left), format_args!("the outcome of {limit}"));
        probe.refund(checks[nth].cost(1), Some(outcomes[nth].receipt()), at(1)).await;
        let stored = probe.left(limit, &key, at(1)).await;
        probe.equal(stored, left + 1, format_args!("the receipt of {limit}"));
    }
}

pub(super) async fn shared_states<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let key = probe.key(limit.algorithm());
        let six = Check::new(&limit, &key).cost(6);
        let (refused, _) = probe.decide_each(&[six, six], at(1)).await;
        probe.equal(refused.allowed(), false, format_args!("{limit}: twice 6 of 10"));
        let (taken, _) = probe.decide_each(&[six.cost(5), six.cost(5)], at(1)).await;
        probe.equal(taken.allowed(), true, format_args!("{limit}: twice 5 of 10"));
        probe.equal(probe.left(&limit, &key, at(1)).await, 0, format_args!("{limit}: all 10"));

        let limits =
            [10, 20].map(|units| built(Limit::per_hour(units).algorithm(limit.algorithm())));
        let key = probe.key(format_args!("{} twins", limit.algorithm()));
        let checks = limits.each_ref().map(|limit| Check::new(limit, &key).cost(3));
        let (_, outcomes) = probe.decide_each(&checks, at(1)).await;
        let left = outcomes.map(|outcome| outcome.remaining);
        probe.equal(left, [7, 17], format_args!("{limit}: twins with other numbers"));
        probe.refund(checks[1].cost(2), Some(outcomes[1].receipt()), at(1)).await;
        let (_, outcomes) =
            probe.decide_each(&checks.map(|check| check.act(Act::Peek)), at(1)).await;
        let left = outcomes.map(|outcome| outcome.remaining);
        probe.equal(left, [7, 19], format_args!("{limit}: a refund finds its twin"));
    }
}

pub(super) async fn shadow<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        let (key, other) = (probe.key(limit.algorithm()), built(Limit::per_day(100).name("other")));
        let watched = Check::new(&limit, &key).shadow();
        let alone = probe.decide(watched.cost(8), at(1)).await;
        probe.equal(alone.allowed(), true, format_args!("{limit}: a shadow alone"));
        probe.equal(probe.left(&limit, &key, at(1)).await, 2, format_args!("{limit}: is charged"));
        let enforced = Check::new(&other, &key).cost(5);
        let (decision, outcomes) = probe.decide_each(&[watched.cost(5), enforced], at(1)).await;
        let got =
            (decision.allowed(), decision.violates(0), outcomes.map(|outcome| outcome.allowed));
        probe.equal(got, (true, false, [false, true]), format_args!("{limit}: would refuse"));
        let left = (probe.left(&limit, &key, at(1)).await, probe.left(&other, &key, at(1)).await);
        probe.equal(left, (2, 95), format_args!("{limit}: what it would refuse is not charged"));
        let (decision, _) = probe.decide_each(&[watched, enforced.cost(96)], at(1)).await;
        probe.equal(decision.allowed(), false, format_args!("{limit}: the other one refuses"));
        let left = probe.left(&limit, &key, at(1)).await;
        probe.equal(left, 2, format_args!("{limit}: a refused request charges no shadow"));
        probe.reset(&other, &key, at(1)).await;
    }
}

pub(super) async fn batches<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    probe.equal(probe.decide_batch(&[], at(1)).await.len(), 0, "an empty batch");
    let limits: Vec<Limit> = ten_per_hour().collect();
    let keys: Vec<String> = (0..7).map(|nth| probe.key(nth)).collect();
    let checks: Vec<Check<'_>> = (0..100)
        .map(|nth| {
            Check::new(&limits[nth % limits.len()], &keys[nth % keys.len()]).cost(nth as u64 % 5)
        })
        .collect();
    let decisions = probe.decide_batch(&checks, at(1)).await;
    probe.equal(decisions.len(), checks.len(), "one decision for each request");
    let mut used = vec![0; limits.len() * keys.len()];
    for (nth, decision) in decisions.iter().enumerate() {
        let used = &mut used[nth % limits.len() * keys.len() + nth % keys.len()];
        let cost = checks[nth].units();
        let allowed = cost == 0 || *used + cost <= 10;
        *used += if allowed { cost } else { 0 };
        let got = (decision.allowed(), decision.remaining());
        probe.equal(got, (allowed, 10 - *used), format_args!("request {nth} of the batch"));
    }
    let alone = probe.decide_batch(&[checks[1]], at(1)).await;
    probe.equal(alone.len(), 1, "a batch of one");
    mixed_batches(probe).await;
}

/// A batch of all acts and options has the answers of the same requests one by one, on keys with the same
/// history. Each request has its own key: a remote store may send them together.
async fn mixed_batches<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let queue = built(Limit::per_hour(10).algorithm(Algorithm::LeakyBucket).queue().name("queue"));
    for limit in ten_per_hour().chain([queue]) {
        let name = format!("{} {}", limit.algorithm(), limit.name());
        let together: [String; 10] = array::from_fn(|nth| probe.key(format_args!("{name} {nth}")));
        let alone = together.each_ref().map(|key| format!("{key} alone"));
        for key in together.iter().chain(&alone) {
            let _ = probe.take(&limit, key, 6, at(1)).await;
        }
        let checks = mixed_checks(&limit, &together);
        let decisions = probe.decide_batch(&checks, at(1)).await;
        probe.equal(decisions.len(), checks.len(), "one decision for each request");
        for (nth, check) in mixed_checks(&limit, &alone).into_iter().enumerate() {
            let got = summary(&decisions[nth]);
            let want = summary(&probe.decide(check, at(1)).await);
            probe.equal(got, want, format_args!("{limit}: mixed request {nth} of a batch"));
            let got = probe.balance(&limit, &together[nth], at(1)).await;
            let want = probe.balance(&limit, &alone[nth], at(1)).await;
            probe.equal(got, want, format_args!("{limit}: the charge of mixed request {nth}"));
        }
    }
}

/// Checks of all acts and options. 6 of 10 units have been taken from each key.
fn mixed_checks<'a>(limit: &'a Limit, keys: &'a [String; 10]) -> [Check<'a>; 10] {
    let [fits, refused, peeks, sees, forces, takes_some, watches, warns, counts, cannot_wait] =
        keys.each_ref().map(|key| Check::new(limit, key));
    [
        fits.cost(3),
        refused.cost(6),
        peeks.cost(3).act(Act::Peek),
        sees.cost(6).act(Act::Peek),
        forces.cost(6).act(Act::Force),
        takes_some.cost(6).act(Act::UpTo),
        watches.cost(3).shadow(),
        warns.cost(6).shadow(),
        counts.cost(6).count_denied(),
        cannot_wait.at_once(),
    ]
}
