//! Requests at the same time: within one task for every store, on threads for stores that answer at once.

use std::fmt;
use std::future::Future;
use std::panic;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;

use super::probe::{Probe, at, built, ten_per_hour};
use crate::algorithm::Algorithm;
use crate::check::Check;
use crate::limit::Limit;
use crate::store::Store;
use crate::store::join::join_all;

/// Requests that are in flight together in one task.
const REQUESTS: usize = 25;
const THREADS: u64 = 4;
/// Takes of each thread: enough that threads which do not start together overlap.
const TAKES: u64 = 2_000;

pub(super) async fn atomic<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    for limit in ten_per_hour() {
        takes_in_one_task(probe, &limit).await;
        several_limits_in_one_task(probe, &limit).await;
    }
    if probe.store.answers_at_once() {
        for algorithm in Algorithm::ALL {
            takes_on_threads(probe, algorithm).await;
        }
    }
}

async fn takes_in_one_task<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>, limit: &Limit) {
    let key = &probe.key(limit.algorithm());
    let takes =
        (0..REQUESTS).map(|_| async move { probe.take(limit, key, 1, at(1)).await.allowed() });
    let allowed = count_true(join_all(takes).await);
    probe.equal(allowed, 10, format_args!("{limit}: {REQUESTS} takes in flight"));
    probe.equal(probe.left(limit, key, at(1)).await, 0, format_args!("{limit}: all are charged"));
}

/// Half of the requests name the limits in the other order.
async fn several_limits_in_one_task<S: Store<Error: fmt::Debug>>(
    probe: &Probe<'_, S>,
    limit: &Limit,
) {
    let wide = &built(Limit::per_hour(20).algorithm(limit.algorithm()).name("wide"));
    let key = &probe.key(format_args!("{} and a wider limit", limit.algorithm()));
    let requests = (0..REQUESTS).map(|nth| async move {
        let mut checks = [Check::new(limit, key), Check::new(wide, key)];
        checks.rotate_left(nth % 2);
        probe.decide_each(&checks, at(1)).await.0.allowed()
    });
    let allowed = count_true(join_all(requests).await);
    probe.equal(allowed, 10, format_args!("{limit}: {REQUESTS} requests of two limits in flight"));
    let left = (probe.left(limit, key, at(1)).await, probe.left(wide, key, at(1)).await);
    probe.equal(left, (0, 10), format_args!("{limit} and {wide}: both are charged or none"));
}

async fn takes_on_threads<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>, algorithm: Algorithm) {
    let capacity = THREADS * TAKES / 2;
    let limit = &built(Limit::per_hour(capacity).algorithm(algorithm));
    let key = &probe.key(format_args!("{algorithm} on threads"));
    let start = &Barrier::new(THREADS as usize);
    let takes = || {
        start.wait();
        let takes = (0..TAKES).map(|_| ready_now(probe.take(limit, key, 1, at(1))).allowed());
        count_true(takes)
    };
    let allowed: u64 = thread::scope(|scope| {
        let threads = [(); THREADS as usize].map(|()| scope.spawn(takes));
        let counts = threads.map(|thread| thread.join());
        counts
            .map(|count| count.unwrap_or_else(|failure| panic::resume_unwind(failure)))
            .iter()
            .sum()
    });
    probe.equal(allowed, capacity, format_args!("{limit}: {} takes on threads", THREADS * TAKES));
    probe.equal(probe.left(limit, key, at(1)).await, 0, format_args!("{limit}: all are charged"));
}

fn count_true(answers: impl IntoIterator<Item = bool>) -> u64 {
    answers.into_iter().map(u64::from).sum()
}

/// The output of a future that calls a store which answers at once.
fn ready_now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the probe panics if a store that answers at once waits"),
    }
}
