//! Estimates by the length of a request's body, for bodies that do not state it or do not keep to it.
//!
//! The estimate is charged with the decision: the length that the client states, or else the number at the end of the estimate.
//! The bytes are counted as they pass. More than was charged is charged on the way, in steps; at the end the charge is
//! what passed. A body of which nothing arrived is free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::store::join::join_all;
use tollgate::{Act, Check, Clock, KeyBuf, Limit, Now, Outcome, Terms};

use super::{ReservationId, ReservedCharge};
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::plan::{PlannedLimit, RequestPlan};

/// Bytes beyond those charged after which they are charged: each charge asks the store.
const STEP_BYTES: u64 = 64 << 10;

/// An estimate of which the bytes of a body are part.
#[derive(Debug)]
pub(super) struct CountedEstimate {
    /// The largest number of the other sources.
    floor: u64,
    /// The number for a body without bytes.
    fallback: u64,
    /// Bytes that have passed.
    passed: AtomicU64,
}

/// The limits that are charged by the bytes of one request's body, and those whose bytes are only counted, because the
/// response says what the request costs.
#[derive(Debug)]
pub struct RequestByteCharges {
    /// The charges, until they are settled. Bound: as many as a decision has limits.
    charges: Mutex<Vec<ReservedCharge>>,
    /// The estimates that are counted. Bound: the same.
    estimates: Vec<Arc<CountedEstimate>>,
    passed: AtomicU64,
    /// Bytes up to which all limits have been charged.
    charged: AtomicU64,
}

impl CountedEstimate {
    /// `None` for a limit whose cost does not depend on the length of the body, or if that is known.
    pub(super) fn of(
        plan: &RequestPlan<'_>,
        planned: &PlannedLimit<'_>,
    ) -> Option<Arc<CountedEstimate>> {
        let reserve = plan.rule(planned).reserve().filter(|reserve| reserve.counts_bytes())?;
        let facts = plan.facts?;
        if facts.request_json.is_some_and(|json| json.bytes().is_some()) {
            return None;
        }
        // The number that the upstream reads may be in the part of the body that could not be read.
        let is_unreadable = facts.request_json.is_some_and(|json| json.unreadable().is_some());
        let least = if is_unreadable { reserve.fallback() } else { 0 };
        Some(Arc::new(CountedEstimate {
            floor: reserve.largest_in_json(facts).max(least),
            fallback: reserve.fallback(),
            passed: AtomicU64::new(0),
        }))
    }

    /// The cost of a body of which so many bytes have passed.
    fn cost(&self, passed: u64, is_complete: bool) -> u64 {
        match passed.max(self.floor) {
            0 if is_complete => self.fallback,
            cost => cost,
        }
    }
}

impl RequestByteCharges {
    /// Counts bytes that pass. Returns true if they are to be [charged](Gatekeeper::charge_request_bytes) now.
    pub fn count(&self, bytes: u64) -> bool {
        let passed = self.passed.load(Ordering::Relaxed).saturating_add(bytes);
        self.passed.store(passed, Ordering::Relaxed);
        for one in &self.estimates {
            one.passed.store(passed, Ordering::Relaxed);
        }
        passed > self.charged.load(Ordering::Relaxed).saturating_add(STEP_BYTES)
    }

    fn charges(&self) -> MutexGuard<'_, Vec<ReservedCharge>> {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the bytes so far are charged. Returns their number, and that before.
    fn begin_charge(&self) -> (u64, u64) {
        let passed = self.passed.load(Ordering::Relaxed);
        (passed, self.charged.swap(passed, Ordering::Relaxed))
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Takes the charges by the bytes of the body of an admitted request; `None` if there are none. They are to be settled
    /// with [`settle_request_bytes`](Gatekeeper::settle_request_bytes) or cancelled; if not, they stand.
    pub fn take_request_bytes(&self, id: ReservationId) -> Option<RequestByteCharges> {
        let (estimates, charges) = self.reservations.table().take_counted(id);
        let least = charges.iter().map(|charge| charge.receipt.granted()).min();
        (!estimates.is_empty()).then(|| RequestByteCharges {
            charges: Mutex::new(charges),
            estimates,
            passed: AtomicU64::new(0),
            // Nothing is charged on the way where the response says what the request costs.
            charged: AtomicU64::new(least.unwrap_or(u64::MAX)),
        })
    }

    /// Charges the bytes that have passed beyond those charged, if need be into debt.
    pub async fn charge_request_bytes<'n>(
        &self,
        bytes: &RequestByteCharges,
        now: impl Into<Now<'n>>,
    ) {
        let now = self.begin_operation(now.into());
        let (passed, before) = bytes.begin_charge();
        let due: Vec<_> = bytes.charges().iter().map(|one| one.forced(before, passed)).collect();
        join_all(due.into_iter().map(|due| self.force_counted(due, now))).await;
    }

    /// Settles the charges at the end of the body: by all bytes that have passed. `is_complete` is false if the rest of the
    /// body never arrived.
    pub async fn settle_request_bytes<'n>(
        &self,
        bytes: &RequestByteCharges,
        is_complete: bool,
        now: impl Into<Now<'n>>,
    ) {
        let now = self.begin_operation(now.into());
        let (passed, before) = bytes.begin_charge();
        let charges = std::mem::take(&mut *bytes.charges());
        join_all(charges.into_iter().map(|charge| async move {
            let cost = charge.counted.as_ref().map_or(0, |one| one.cost(passed, is_complete));
            match cost > charge.receipt.granted() {
                true => self.force_counted(charge.forced(before, cost), now).await,
                false => self.settle_charge(charge, cost, now).await,
            }
        }))
        .await;
    }

    /// Gives all of the charges back: the work never began.
    pub async fn cancel_request_bytes<'n>(
        &self,
        bytes: &RequestByteCharges,
        now: impl Into<Now<'n>>,
    ) {
        let now = self.begin_operation(now.into());
        let charges = std::mem::take(&mut *bytes.charges());
        join_all(charges.into_iter().map(|charge| self.settle_charge(charge, 0, now))).await;
    }

    async fn force_counted(&self, due: ForcedBytes, now: Now<'_>) {
        if due.cost > 0 {
            let check = Check::new(&due.limit, &*due.key).terms(due.terms);
            let force = [check.cost(due.cost).act(Act::Force)];
            let Ok(_) = self.store().decide_each(&force, now, &mut [Outcome::default()]).await;
        }
    }
}

/// Units to be charged to one limit, beyond those that are.
struct ForcedBytes {
    limit: Arc<Limit>,
    key: Arc<KeyBuf>,
    terms: Terms,
    cost: u64,
}

impl ReservedCharge {
    /// Bytes of the request's body that have passed, if they are counted.
    pub(super) fn counted_bytes(&self) -> u64 {
        self.counted.as_ref().map_or(0, |counted| counted.passed.load(Ordering::Relaxed))
    }

    /// The units between the bytes charged `before` and a higher number.
    fn forced(&self, before: u64, cost: u64) -> ForcedBytes {
        ForcedBytes {
            limit: Arc::clone(&self.limit),
            key: Arc::clone(&self.key),
            terms: self.terms,
            cost: cost.saturating_sub(before.max(self.receipt.granted())),
        }
    }
}
