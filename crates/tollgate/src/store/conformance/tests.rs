//! The memory store conforms, and stores with a fault do not.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;

use super::*;
use crate::check::{Act, Check, Key};
use crate::clock::Now;
use crate::decision::{Decision, MAX_LIMITS, Outcome, Receipt, Refusal};
use crate::store::{MemoryStore, RequestList};
use crate::time::Wait;

#[test]
fn the_memory_store_conforms() {
    run_at_once(|| MemoryStore::new(10_000));
}

#[test]
fn behaviours_share_a_store() {
    let store = Arc::new(MemoryStore::new(10_000));
    run_at_once(|| Arc::clone(&store));
    // The module's documentation says so.
    assert!(store.stats().keys <= 2_000, "{:?}", store.stats());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreFault {
    AcceptsEmptyKeys,
    BatchesCountNoRefusals,
    BatchesEnforceShadows,
    BatchesIgnoreActs,
    BatchesIgnoreBlocks,
    BatchesInReverse,
    BlocksEndWithTheFirst,
    BlocksStopOnlyTakes,
    ChargesLimitsOneByOne,
    CountsNoRefusals,
    EnforcesShadows,
    ForcesAreTakes,
    GrantsNothing,
    HidesDebt,
    IgnoresBlocks,
    IgnoresCase,
    IgnoresEarlierInstants,
    LosesMicroseconds,
    NumbersHaveOwnStates,
    PeeksAreTakes,
    QueuesEveryCaller,
    RefundsIgnoreReceipts,
    RepeatedChecksAreFree,
    RequestsInReverse,
    ResetsNothing,
    UpToIsATake,
    WaitsAndAnswersAtOnce,
    WaitsBeforeCharges,
    YieldsBeforeCharges,
}

/// A memory store with one fault.
struct FaultyStore {
    memory: MemoryStore,
    fault: StoreFault,
    /// Microseconds of the latest instant seen.
    latest: AtomicU64,
}

impl FaultyStore {
    fn new(fault: StoreFault) -> FaultyStore {
        FaultyStore { memory: MemoryStore::new(10_000), fault, latest: AtomicU64::new(0) }
    }

    fn has(&self, fault: StoreFault) -> bool {
        self.fault == fault
    }

    /// The check as the faulty store understands it.
    fn misread<'a>(&self, check: &Check<'a>) -> Check<'a> {
        let mut check = *check;
        match (self.fault, check.act) {
            (StoreFault::ForcesAreTakes, Act::Force)
            | (StoreFault::PeeksAreTakes, Act::Peek)
            | (StoreFault::UpToIsATake, Act::UpTo) => check.act = Act::Take,
            // A force passes a block.
            (StoreFault::BlocksStopOnlyTakes, Act::Peek | Act::UpTo) => {
                check = check.cost(0).act(Act::Force);
            }
            _ => {}
        }
        check.at_once &= !self.has(StoreFault::QueuesEveryCaller);
        check.count_denied &= !self.has(StoreFault::CountsNoRefusals);
        check.shadow &= !self.has(StoreFault::EnforcesShadows);
        check
    }

    /// The check of a batch as the faulty store understands it.
    fn misread_in_batch<'a>(&self, check: &Check<'a>) -> Check<'a> {
        let mut check = *check;
        match self.fault {
            StoreFault::BatchesCountNoRefusals => check.count_denied = false,
            StoreFault::BatchesEnforceShadows => check.shadow = false,
            StoreFault::BatchesIgnoreActs => check.act = Act::Take,
            // A force passes a block.
            StoreFault::BatchesIgnoreBlocks if check.act == Act::Take => check.act = Act::Force,
            _ => {}
        }
        check
    }

    /// The bytes of a check's key as the faulty store reads them.
    fn misread_key(&self, check: &Check<'_>) -> Vec<u8> {
        let mut key = check.key.as_bytes().to_vec();
        match self.fault {
            StoreFault::AcceptsEmptyKeys if key.is_empty() => key.push(b'-'),
            StoreFault::IgnoresCase => key.make_ascii_lowercase(),
            StoreFault::NumbersHaveOwnStates => {
                key.extend(check.limit.fingerprint().to_le_bytes());
            }
            _ => {}
        }
        key
    }

    fn misread_instant<'n>(&self, now: Now<'n>) -> Now<'n> {
        let instant = now.instant().as_u64();
        match self.fault {
            StoreFault::LosesMicroseconds => Now::at(Micros::new(instant / 1_000 * 1_000)),
            StoreFault::IgnoresEarlierInstants => {
                let latest = self.latest.fetch_max(instant, Ordering::Relaxed);
                Now::at(Micros::new(latest.max(instant)))
            }
            _ => now,
        }
    }

    /// Charges a take that fitted a while ago.
    async fn decide_late(&self, check: &Check<'_>, now: Now<'_>) -> Decision {
        let fits = self.memory.decide_one(&check.act(Act::Peek), now).allowed();
        match self.has(StoreFault::WaitsBeforeCharges) {
            true => wait_once().await,
            false => thread::yield_now(),
        }
        let act = if fits { Act::Force } else { Act::Peek };
        self.memory.decide_one(&check.act(act), now)
    }
}

/// Is ready at the second poll.
async fn wait_once() {
    let mut polled = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Store for FaultyStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        let keys: Vec<Vec<u8>> = checks.iter().map(|check| self.misread_key(check)).collect();
        let misread = |(check, key)| Check { key: Key::from(key), ..self.misread(check) };
        let mut checks: Vec<Check<'_>> =
            checks.iter().zip(keys.iter().map(Vec::as_slice)).map(misread).collect();
        let now = self.misread_instant(now);
        let several = (2..=MAX_LIMITS).contains(&checks.len());
        match (self.fault, &mut checks[..]) {
            (StoreFault::WaitsAndAnswersAtOnce, _) => wait_once().await,
            (StoreFault::WaitsBeforeCharges | StoreFault::YieldsBeforeCharges, [check])
                if check.act == Act::Take =>
            {
                let decision = self.decide_late(check, now).await;
                outcomes[0] = decision.outcome();
                return Ok(decision);
            }
            (StoreFault::ChargesLimitsOneByOne, checks) if several => {
                for (check, outcome) in checks.iter().zip(&mut *outcomes) {
                    *outcome = self.memory.decide_one(check, now).outcome();
                }
                return Ok(Decision::of_outcomes(checks, outcomes, now.instant()));
            }
            (StoreFault::BlocksEndWithTheFirst, checks) => {
                let stoppable = checks.iter().filter(|check| check.act != Act::Force);
                let waits = stoppable.filter_map(|check| self.blocked(check.key, now.instant()));
                if let Some(wait) = waits.min() {
                    return Ok(Decision::refused(Refusal::Blocked, wait, now.instant()));
                }
            }
            (StoreFault::RepeatedChecksAreFree, [first, others @ ..]) => {
                let is_first = |check: &&mut Check<'_>| {
                    (check.limit.id(), check.key.as_bytes())
                        == (first.limit.id(), first.key.as_bytes())
                };
                others.iter_mut().filter(is_first).for_each(|check| check.cost = 0);
            }
            _ => {}
        }
        Store::decide_each(&self.memory, &checks, now, outcomes).await
    }

    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        let mut checks: Vec<Check<'_>> =
            checks.iter().map(|check| self.misread_in_batch(check)).collect();
        if self.has(StoreFault::BatchesInReverse) {
            checks.reverse();
        }
        Store::decide_batch(&self.memory, &checks, now, decisions).await
    }

    async fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        decisions.clear();
        let mut ranges: Vec<_> = requests.ranges().collect();
        if self.has(StoreFault::RequestsInReverse) {
            ranges.reverse();
        }
        for range in ranges {
            let checks = &requests.checks()[range.clone()];
            decisions.push(self.decide_each(checks, now, &mut outcomes[range]).await?);
        }
        if self.has(StoreFault::RequestsInReverse) {
            decisions.reverse();
        }
        Ok(())
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        if self.has(StoreFault::GrantsNothing) && receipt.is_none() {
            return Ok(());
        }
        let receipt = receipt.filter(|_| !self.has(StoreFault::RefundsIgnoreReceipts));
        Store::refund(&self.memory, check, receipt, now).await
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        match self.has(StoreFault::ResetsNothing) {
            true => Ok(self.memory.balance(check.limit, check.key, now) < 10),
            false => Store::reset(&self.memory, check, now).await,
        }
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        let Ok(balance) = Store::balance(&self.memory, check, now).await;
        Ok(if self.has(StoreFault::HidesDebt) { balance.max(0) } else { balance })
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        match self.has(StoreFault::IgnoresBlocks) {
            true => Ok(true),
            false => Store::block(&self.memory, key, until, now).await,
        }
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        Store::unblock(&self.memory, key, now).await
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.memory.blocked(key, now)
    }

    fn any_block(&self, now: Micros) -> bool {
        self.memory.any_block(now)
    }

    fn answers_at_once(&self) -> bool {
        !self.has(StoreFault::WaitsBeforeCharges)
    }
}

/// Faults, each with the behaviours that find it.
const FOUND_BY: &[(StoreFault, &[Behaviour])] = {
    use Behaviour::*;
    use StoreFault::*;
    &[
        (AcceptsEmptyKeys, &[NoLimits]),
        (BatchesCountNoRefusals, &[Batches, RandomBatches]),
        (BatchesEnforceShadows, &[Batches, RandomBatches]),
        (BatchesIgnoreActs, &[Batches, RandomBatches]),
        (BatchesIgnoreBlocks, &[Blocks]),
        (BatchesInReverse, &[Batches, RandomBatches]),
        (BlocksEndWithTheFirst, &[Blocks]),
        (BlocksStopOnlyTakes, &[Blocks]),
        (ChargesLimitsOneByOne, &[SeveralLimits, RandomSeveralLimits, ManyRequests]),
        (CountsNoRefusals, &[CountDenied, RandomTraffic]),
        (EnforcesShadows, &[Shadow, RandomSeveralLimits]),
        (ForcesAreTakes, &[Forces, RandomTraffic]),
        (GrantsNothing, &[Grants, RandomTraffic]),
        (HidesDebt, &[Balances, RandomTraffic]),
        (IgnoresBlocks, &[Blocks]),
        (IgnoresCase, &[SeparateKeys]),
        (IgnoresEarlierInstants, &[SlowClocks, ClockJumps, RandomTraffic]),
        (LosesMicroseconds, &[WorkedCases, Refusals, RandomTraffic]),
        (NumbersHaveOwnStates, &[OtherNumbers, RandomTraffic]),
        (PeeksAreTakes, &[Peeks, RandomTraffic]),
        (QueuesEveryCaller, &[Queues, RandomTraffic]),
        (RefundsIgnoreReceipts, &[Refunds, RandomTraffic]),
        (RepeatedChecksAreFree, &[SharedStates, RandomSeveralLimits]),
        (RequestsInReverse, &[ManyRequests]),
        (ResetsNothing, &[Resets, RandomTraffic]),
        (UpToIsATake, &[UpTo, RandomTraffic]),
        (WaitsAndAnswersAtOnce, &[WorkedCases, RandomTraffic]),
        (WaitsBeforeCharges, &[Atomic]),
        (YieldsBeforeCharges, &[Atomic]),
    ]
};

/// Would catch: a behaviour that passes whatever a store does.
#[test]
fn faults_are_found_by_the_behaviour_that_is_about_them() {
    for (fault, behaviours) in FOUND_BY {
        for behaviour in *behaviours {
            let store = FaultyStore::new(*fault);
            let mut running = Box::pin(behaviour.run(&store));
            let mut context = Context::from_waker(Waker::noop());
            let run =
                AssertUnwindSafe(|| while running.as_mut().poll(&mut context).is_pending() {});
            let failure = panic::catch_unwind(run).expect_err(&format!("{fault:?}, {behaviour}"));
            let text = failure.downcast_ref::<String>().expect("a message");
            assert!(text.contains(&format!("`{behaviour}`")), "{fault:?}: {text}");
        }
    }
}

#[test]
fn every_behaviour_finds_a_fault() {
    for behaviour in Behaviour::ALL {
        let finds = FOUND_BY.iter().any(|(_, behaviours)| behaviours.contains(behaviour));
        assert!(finds, "no fault for `{behaviour}`");
    }
}
