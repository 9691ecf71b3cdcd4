//! `Shared` over a stand-in for the store that has the real meaning: states in a map, decided by the
//! very functions of the algorithms, with a switch that makes it fail.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::algorithm::{self, State};
use tollgate::{
    Act, Check, Consistency, DecidedBy, Decision, Key, Limit, Micros, Now, OnFailure, Outcome,
    Receipt, Refusal, Store, Terms, Wait,
};

use super::*;
use crate::blocks::KeyHash;
use crate::remote_store::{
    AnswerStates, CallTiming, LateUnits, LeaseGrant, LeaseRequest, RemoteError, RemoteStore,
    StateName,
};

/// The ways in which the stand-in fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandInError {
    Connect,
    BreakerOpen,
    OutOfMemory,
    Overloaded,
    Timeout,
}

impl std::fmt::Display for StandInError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "switched off: {self:?}")
    }
}

impl std::error::Error for StandInError {}

impl RemoteError for StandInError {
    fn certainly_not_executed(&self) -> bool {
        *self != StandInError::Timeout
    }
}

/// The store that instances share in these tests.
#[derive(Clone, Debug, Default)]
struct StandInStore(Arc<StandInTable>);

/// Units by instance.
type LeaseUnitsByInstance = HashMap<u64, u64>;

#[derive(Debug, Default)]
struct StandInTable {
    states: Mutex<HashMap<(u64, KeyHash), State>>,
    book: Mutex<HashMap<(u64, Vec<u8>), LeaseUnitsByInstance>>,
    blocks: Mutex<HashMap<Vec<u8>, Micros>>,
    /// How it fails, if it does. What may have been done by a store that fails so, it does.
    fails: Mutex<Option<StandInError>>,
    calls: AtomicU64,
    /// The deadlines of what it was asked.
    deadlines: Mutex<Vec<Instant>>,
    /// True while it does nothing of what it is asked.
    hangs: AtomicBool,
    /// True while its answers are on their way: what they say is done.
    holds_answers: AtomicBool,
    /// How far its clock is ahead, in microseconds.
    ahead: AtomicU64,
    /// True if it answers decisions only when they are polled a second time.
    answers_late: AtomicBool,
    /// Number of decisions that wait for their answer; one more than `IN_FLIGHT_MAX` fails.
    in_flight: AtomicU64,
}

/// Number of decisions that the stand-in answers at once, as a node of Redis does.
const IN_FLIGHT_MAX: u64 = 4_096;

type StandInResult<T> = Result<T, StandInError>;

impl StandInStore {
    fn call(&self) -> StandInResult<()> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.fails(|error| error.certainly_not_executed())
    }

    /// What was asked for is done: says so, or nothing.
    fn answer<T>(&self, answer: T) -> StandInResult<T> {
        self.fails(|error| !error.certainly_not_executed()).map(|()| answer)
    }

    fn fails(&self, so: impl Fn(StandInError) -> bool) -> StandInResult<()> {
        let error = self.0.fails.lock().unwrap().filter(|error| so(*error));
        error.map_or(Ok(()), Err)
    }

    fn fail(&self, fails: bool) {
        self.fail_as(fails.then_some(StandInError::Connect));
    }

    fn fail_as(&self, error: Option<StandInError>) {
        *self.0.fails.lock().unwrap() = error;
    }

    /// Answers late, if it is set to, and fails if too many decisions wait.
    async fn answer_late(&self) -> StandInResult<()> {
        if !self.0.answers_late.load(Ordering::Acquire) {
            return Ok(());
        }
        let before = self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        if before < IN_FLIGHT_MAX {
            tokio::task::yield_now().await;
        }
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        if before < IN_FLIGHT_MAX { Ok(()) } else { Err(StandInError::Overloaded) }
    }

    /// Waits as long as a switch is on.
    async fn wait_for(&self, switch: &AtomicBool) {
        while switch.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
    }

    fn calls(&self) -> u64 {
        self.0.calls.swap(0, Ordering::Relaxed)
    }

    fn clock(&self, now: Micros) -> Micros {
        now.after(Wait::from_micros(self.0.ahead.load(Ordering::Relaxed)))
    }

    fn on<T>(&self, check: &Check<'_>, now: Micros, act: impl FnOnce(&mut State) -> T) -> T {
        self.on_hash(check.limit(), self.hash(check.key()), now, act)
    }

    fn on_hash<T>(
        &self,
        limit: &Limit,
        key: KeyHash,
        now: Micros,
        act: impl FnOnce(&mut State) -> T,
    ) -> T {
        let mut states = self.0.states.lock().unwrap();
        act(states.entry((limit.id(), key)).or_insert_with(|| State::fresh(limit, now)))
    }

    fn judge(&self, check: &Check<'_>, now: Micros) -> Outcome {
        self.on(check, now, |state| match check.requested_act() {
            Act::Force => {
                Outcome { allowed: true, ..algorithm::judge(check.limit(), state, 0, now) }
            }
            _ => algorithm::judge(check.limit(), state, check.units(), now),
        })
    }

    /// What a key has used.
    fn used(&self, check: &Check<'_>, now: Micros) -> i64 {
        check.limit().capacity() as i64
            - self.on(check, now, |state| state.balance(check.limit(), now))
    }
}

impl Store for StandInStore {
    type Error = StandInError;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> StandInResult<Decision> {
        let when = CallTiming { now: now.instant(), deadline: Instant::now() + self.timeout() };
        let mut seen = AnswerStates::default();
        self.decide_with_states(checks, when, outcomes, &mut seen).await?;
        Ok(Decision::of_outcomes(checks, &outcomes[..checks.len()], seen.answered_at))
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> StandInResult<()> {
        self.call()?;
        let now = self.clock(now.instant());
        let units = receipt.as_ref().map_or(u64::MAX, Receipt::granted).min(check.units());
        let at = receipt.map(|receipt| receipt.charged_at());
        self.on(check, now, |state| algorithm::refund(check.limit(), state, units, at, now));
        self.answer(())
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> StandInResult<bool> {
        self.call()?;
        self.on(check, now, |state| *state = State::fresh(check.limit(), now));
        self.answer(true)
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> StandInResult<i64> {
        self.call()?;
        self.answer(check.limit().capacity() as i64 - self.used(check, now))
    }

    async fn block(&self, key: Key<'_>, until: Micros, _: Micros) -> StandInResult<bool> {
        self.call()?;
        self.0.blocks.lock().unwrap().insert(key.as_bytes().to_vec(), until);
        Ok(true)
    }

    async fn unblock(&self, key: Key<'_>, _: Micros) -> StandInResult<bool> {
        self.call()?;
        Ok(self.0.blocks.lock().unwrap().remove(key.as_bytes()).is_some())
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        let until = *self.0.blocks.lock().unwrap().get(key.as_bytes())?;
        let left = until.as_u64().checked_sub(now.as_u64()).filter(|left| *left > 0)?;
        Some(Wait::from_micros(left))
    }

    fn any_block(&self, _: Micros) -> bool {
        !self.0.blocks.lock().unwrap().is_empty()
    }
}

impl RemoteStore for StandInStore {
    fn timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn hash(&self, key: Key<'_>) -> KeyHash {
        let mut hash = [0; 16];
        for (half, bytes) in hash.chunks_mut(8).enumerate() {
            let mut hasher = DefaultHasher::new();
            (half, key.as_bytes()).hash(&mut hasher);
            bytes.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        hash
    }

    async fn apply_late_units(
        &self,
        state: StateName,
        limit: &Limit,
        late: &[LateUnits],
        when: CallTiming,
    ) -> StandInResult<Option<(State, Micros)>> {
        self.0.deadlines.lock().unwrap().push(when.deadline);
        self.call()?;
        self.wait_for(&self.0.hangs).await;
        self.wait_for(&self.0.holds_answers).await;
        let now = self.clock(when.now);
        let state = self.on_hash(limit, state.key, now, |state| {
            for one in late {
                crate::late_units::apply(limit, state, *one, now);
            }
            state.clone()
        });
        self.answer(Some((state, now)))
    }

    async fn decide_with_states(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        seen: &mut AnswerStates,
    ) -> StandInResult<()> {
        self.0.deadlines.lock().unwrap().push(when.deadline);
        self.call()?;
        self.answer_late().await?;
        self.wait_for(&self.0.hangs).await;
        let now = self.clock(when.now);
        for (check, outcome) in checks.iter().zip(&mut *outcomes) {
            *outcome = Outcome { decided_by: DecidedBy::Redis, ..self.judge(check, now) };
        }
        let admitted =
            checks.iter().zip(&*outcomes).all(|(check, one)| check.is_shadow() || one.allowed);
        for (check, outcome) in checks.iter().zip(outcomes) {
            let peeks = check.requested_act() == Act::Peek;
            if !peeks && (admitted || check.counts_denied()) {
                let charge = |state: &mut State| {
                    algorithm::charge(check.limit(), state, check.units(), now);
                };
                self.on(check, now, charge);
                outcome.charged = if admitted { check.units() } else { 0 };
                let after = self.judge(&check.cost(0), now);
                outcome.remaining = after.remaining;
                if !outcome.allowed {
                    outcome.retry_after = self.judge(check, now).retry_after;
                }
            }
            seen.states.push(self.on(check, now, |state| state.clone()));
        }
        seen.answered_at = now;
        // What it charges is charged while its answer is on its way.
        self.wait_for(&self.0.holds_answers).await;
        self.answer(())
    }

    fn refunds_lost(&self) -> u64 {
        0
    }

    async fn reserve_lease(
        &self,
        check: &Check<'_>,
        lend: LeaseRequest,
    ) -> StandInResult<LeaseGrant> {
        self.call()?;
        let name = (check.limit().id(), check.key().as_bytes().to_vec());
        let mut book = self.0.book.lock().unwrap();
        let held = book.entry(name).or_default();
        held.insert(lend.instance, 0);
        let others: u64 = held.values().sum();
        let granted = lend.wanted.min(lend.outstanding_max.saturating_sub(others + lend.held));
        let granted = if granted < lend.grant_min { 0 } else { granted };
        held.insert(lend.instance, lend.held + granted);
        Ok(LeaseGrant { granted, outstanding: held.values().sum() })
    }

    async fn take_leased_units(
        &self,
        check: &Check<'_>,
        now: Micros,
        seen: &mut AnswerStates,
    ) -> StandInResult<Outcome> {
        let mut outcome = [Outcome::default()];
        let when = CallTiming { now, deadline: Instant::now() + self.timeout() };
        self.decide_with_states(slice::from_ref(check), when, &mut outcome, seen).await?;
        Ok(outcome[0])
    }
}

const NOW: Micros = Micros::from_secs(1_795_000_000);

fn at(micros: u64) -> Micros {
    NOW.after(Wait::from_micros(micros))
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn terms(consistency: Consistency) -> Terms {
    Terms { consistency, ..Terms::default() }
}

fn failing(on_failure: OnFailure) -> Terms {
    Terms { on_failure, ..Terms::default() }
}

fn shared(stores: Vec<StandInStore>) -> (SharedStore<StandInStore>, StandInStore) {
    let first = stores[0].clone();
    (SharedStore::start(stores, 1_000, TimeSource::Server), first)
}

/// The same, with a clock that stands between questions: for waits that are not the store's own.
fn standing() -> (SharedStore<StandInStore>, StandInStore) {
    let store = StandInStore::default();
    let stores = vec![store.clone()];
    (SharedStore::start_without_passing_time(stores, 1_000, TimeSource::Server), store)
}

async fn decide(shared: &SharedStore<StandInStore>, checks: &[Check<'_>], now: Micros) -> Decision {
    let Ok(decision) = shared.decide_each(checks, now.into(), &mut [Outcome::default(); 16]).await;
    decision
}

/// Waits until something in the background has happened, at most 5 s.
async fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "it does not happen");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn what_was_asked_a_while_ago_does_not_turn_the_clock_back() {
    let pace = CallerClock::new();
    // asked at, sent at, what the asker's clock shows then; seconds
    for (asked, sent, shows) in [
        (100, 0, 100),
        (105, 5, 105),
        // The rest of a batch that was asked at 105 goes out later.
        (105, 8, 108),
        (109, 9, 109),
        (120, 10, 120),
        // It went back for good.
        (102, 12, 122),
        (112, 21, 112),
        (113, 22, 113),
    ] {
        let shown = pace.observe_at(Micros::from_secs(asked), sent * 1_000_000);
        assert_eq!(shown, Micros::from_secs(shows), "asked at {asked}, sent at {sent}");
    }
}

/// Begins something and does not wait for its end: the answer of the store is on its way meanwhile.
async fn begin_and_go<T>(store: &StandInStore, work: impl Future<Output = T>) {
    store.0.holds_answers.store(true, Ordering::Release);
    {
        let mut work = std::pin::pin!(work);
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(work.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "the store does not answer yet");
    }
    store.0.holds_answers.store(false, Ordering::Release);
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

mod batches;
mod draining;
mod dropped_callers;
mod failures;
mod leases;
mod local_syncing;
mod many_requests;
mod refusal_caching;
mod several_limits;
