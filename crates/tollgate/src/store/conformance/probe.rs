//! A store under test, and the ways to use it that behaviours need.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;

use super::{Behaviour, START};
use crate::algorithm::Algorithm;
use crate::check::{Act, Check, Key};
use crate::clock::Now;
use crate::decision::{Decision, Outcome, Receipt};
use crate::limit::{Limit, LimitBuilder};
use crate::store::{RequestList, Store};
use crate::time::{Micros, Wait};

/// A store under test. Failures name the behaviour.
pub(super) struct Probe<'s, S> {
    pub(super) store: &'s S,
    pub(super) behaviour: Behaviour,
}

/// The instant this many seconds after the start.
pub(super) fn at(seconds: u64) -> Micros {
    micros(seconds * 1_000_000)
}

/// The instant this many microseconds after the start.
pub(super) fn micros(micros: u64) -> Micros {
    Micros::new(START.as_u64() + micros)
}

/// A wait of whole seconds.
pub(super) fn seconds(seconds: u64) -> Wait {
    Wait::from_micros(seconds * 1_000_000)
}

pub(super) fn built(builder: LimitBuilder) -> Limit {
    builder.build().expect("the numbers of behaviours are valid")
}

/// A limit of 10 per hour of each algorithm.
pub(super) fn ten_per_hour() -> impl Iterator<Item = Limit> {
    Algorithm::ALL.into_iter().map(|algorithm| built(Limit::per_hour(10).algorithm(algorithm)))
}

impl<S: Store<Error: fmt::Debug>> Probe<'_, S> {
    /// A key that no other behaviour uses.
    pub(super) fn key(&self, name: impl fmt::Display) -> String {
        format!("{}: {name}", self.behaviour)
    }

    #[track_caller]
    pub(super) fn equal<T: PartialEq + fmt::Debug>(
        &self,
        got: T,
        want: T,
        what: impl fmt::Display,
    ) {
        assert!(
            got == want,
            "the store does not conform in `{}`: {what}\n  got:  {got:?}\n  want: {want:?}",
            self.behaviour
        );
    }

    /// Waits for the answer to a call. A store that answers at once must have it at the first poll.
    async fn answer<T>(&self, call: impl Future<Output = Result<T, S::Error>>) -> T {
        let (behaviour, at_once) = (self.behaviour, self.store.answers_at_once());
        let mut call = pin!(call);
        let answer = poll_fn(|context| {
            let polled = call.as_mut().poll(context);
            assert!(
                polled.is_ready() || !at_once,
                "the store does not conform in `{behaviour}`: `answers_at_once` is true, and a future is \
                 not ready when it is first polled"
            );
            polled
        });
        answer.await.unwrap_or_else(|error| panic!("the store failed in `{behaviour}`: {error:?}"))
    }

    pub(super) async fn decide_each<const N: usize>(
        &self,
        checks: &[Check<'_>; N],
        now: Micros,
    ) -> (Decision, [Outcome; N]) {
        let mut outcomes = [Outcome::default(); N];
        let decision = self.decide_into(checks, now, &mut outcomes).await;
        (decision, outcomes)
    }

    pub(super) async fn decide_into(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Decision {
        self.answer(self.store.decide_each(checks, Now::at(now), outcomes)).await
    }

    pub(super) async fn decide_batch(&self, checks: &[Check<'_>], now: Micros) -> Vec<Decision> {
        // Not empty: the store has to empty it.
        let mut decisions = vec![Decision::unlimited(now)];
        self.answer(self.store.decide_batch(checks, Now::at(now), &mut decisions)).await;
        decisions
    }

    pub(super) async fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Vec<Decision> {
        // Not empty: the store has to empty it.
        let mut decisions = vec![Decision::unlimited(now)];
        let decided = self.store.decide_requests(requests, Now::at(now), outcomes, &mut decisions);
        self.answer(decided).await;
        decisions
    }

    pub(super) async fn decide(&self, check: Check<'_>, now: Micros) -> Decision {
        self.decide_each(&[check], now).await.0
    }

    pub(super) async fn take(&self, limit: &Limit, key: &str, cost: u64, now: Micros) -> Decision {
        self.decide(Check::new(limit, key).cost(cost), now).await
    }

    pub(super) async fn force(&self, limit: &Limit, key: &str, cost: u64, now: Micros) -> Decision {
        self.decide(Check::new(limit, key).cost(cost).act(Act::Force), now).await
    }

    /// Units left, by a peek.
    pub(super) async fn left(&self, limit: &Limit, key: &str, now: Micros) -> u64 {
        self.decide(Check::new(limit, key).act(Act::Peek), now).await.remaining()
    }

    pub(super) async fn refund(&self, check: Check<'_>, receipt: Option<Receipt>, now: Micros) {
        self.answer(self.store.refund(&check, receipt, Now::at(now))).await;
    }

    pub(super) async fn reset(&self, limit: &Limit, key: &str, now: Micros) -> bool {
        self.answer(self.store.reset(&Check::new(limit, key), now)).await
    }

    pub(super) async fn balance(&self, limit: &Limit, key: &str, now: Micros) -> i64 {
        self.answer(self.store.balance(&Check::new(limit, key), now)).await
    }

    pub(super) async fn block(&self, key: &str, until: Micros, now: Micros) -> bool {
        self.answer(self.store.block(Key::from(key), until, now)).await
    }

    pub(super) async fn unblock(&self, key: &str, now: Micros) -> bool {
        self.answer(self.store.unblock(Key::from(key), now)).await
    }
}
