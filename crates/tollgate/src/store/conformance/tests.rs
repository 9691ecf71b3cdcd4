//! The memory store conforms, and stores with a fault do not.

use std::convert::Infallible;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use super::*;
use crate::check::{Act, Check, Key};
use crate::clock::Now;
use crate::decision::{Decision, Outcome, Receipt};
use crate::store::MemoryStore;
use crate::time::Wait;

#[test]
fn the_memory_store_conforms() {
    run_at_once(|| MemoryStore::new(10_000));
}

#[test]
fn behaviours_share_a_store() {
    let store = Arc::new(MemoryStore::new(10_000));
    run_at_once(|| Arc::clone(&store));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreFault {
    ChargesLimitsOneByOne,
    ForcesAreTakes,
    RefundsIgnoreReceipts,
    ResetsNothing,
    IgnoresBlocks,
    BatchesInReverse,
    CountsNoRefusals,
    LosesMicroseconds,
    EnforcesShadows,
}

/// A memory store with one fault.
struct FaultyStore {
    memory: MemoryStore,
    fault: StoreFault,
}

impl FaultyStore {
    fn has(&self, fault: StoreFault) -> bool {
        self.fault == fault
    }

    /// The check as the faulty store understands it.
    fn misread<'a>(&self, check: &Check<'a>) -> Check<'a> {
        let mut check = *check;
        if self.has(StoreFault::ForcesAreTakes) && check.act == Act::Force {
            check.act = Act::Take;
        }
        check.count_denied &= !self.has(StoreFault::CountsNoRefusals);
        check.shadow &= !self.has(StoreFault::EnforcesShadows);
        check
    }
}

impl Store for FaultyStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        let checks: Vec<Check<'_>> = checks.iter().map(|check| self.misread(check)).collect();
        let now = match self.has(StoreFault::LosesMicroseconds) {
            true => Now::at(Micros::new(now.instant().as_u64() / 1_000 * 1_000)),
            false => now,
        };
        if self.has(StoreFault::ChargesLimitsOneByOne) && (2..=16).contains(&checks.len()) {
            for (check, outcome) in checks.iter().zip(&mut *outcomes) {
                *outcome = self.memory.decide_one(check, now).outcome();
            }
            return Ok(Decision::of_outcomes(&checks, outcomes, now.instant()));
        }
        Store::decide_each(&self.memory, &checks, now, outcomes).await
    }

    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), Infallible> {
        let mut checks = checks.to_vec();
        if self.has(StoreFault::BatchesInReverse) {
            checks.reverse();
        }
        Store::decide_batch(&self.memory, &checks, now, decisions).await
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
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
        Store::balance(&self.memory, check, now).await
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
        true
    }
}

/// Would catch: a behaviour that passes whatever a store does.
#[test]
fn faults_are_found_by_the_behaviour_that_is_about_them() {
    use Behaviour::{RandomBatches, RandomSeveralLimits, RandomTraffic};
    let rows = [
        (StoreFault::ChargesLimitsOneByOne, Behaviour::SeveralLimits, Some(RandomSeveralLimits)),
        (StoreFault::ForcesAreTakes, Behaviour::Forces, Some(RandomTraffic)),
        (StoreFault::RefundsIgnoreReceipts, Behaviour::Refunds, Some(RandomTraffic)),
        (StoreFault::ResetsNothing, Behaviour::Resets, Some(RandomTraffic)),
        (StoreFault::IgnoresBlocks, Behaviour::Blocks, None),
        (StoreFault::BatchesInReverse, Behaviour::Batches, Some(RandomBatches)),
        (StoreFault::CountsNoRefusals, Behaviour::CountDenied, Some(RandomTraffic)),
        (StoreFault::LosesMicroseconds, Behaviour::Refusals, Some(RandomTraffic)),
        (StoreFault::EnforcesShadows, Behaviour::Shadow, Some(RandomSeveralLimits)),
    ];
    for (fault, behaviour, random) in rows {
        for behaviour in [Some(behaviour), random].into_iter().flatten() {
            let store = FaultyStore { memory: MemoryStore::new(10_000), fault };
            let mut running = Box::pin(behaviour.run(&store));
            let mut context = Context::from_waker(Waker::noop());
            let run = AssertUnwindSafe(|| running.as_mut().poll(&mut context).is_ready());
            let failure = panic::catch_unwind(run).expect_err(&format!("{fault:?}, {behaviour}"));
            let text = failure.downcast_ref::<String>().expect("a message");
            assert!(text.contains(&format!("`{behaviour}`")), "{fault:?}: {text}");
        }
    }
}
