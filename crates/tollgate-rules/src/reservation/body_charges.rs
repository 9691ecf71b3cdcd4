//! Charging the bodies of a request as they pass, under rules with `cost: bytes`.
//!
//! The request itself costs one byte, so that it is refused or delayed while earlier bodies have used up the
//! limit. After that each piece of either body is charged. A queue delays the piece, so that bodies pass at
//! its rate. Any other limit is charged into debt, and refuses later requests until the debt is paid off.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, Clock, Decision, KeyBuf, Limit, Now, Outcome, Terms};

use super::{ReservationId, ReservedCharge};
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::Cost;

/// The time that a piece takes at the rate of its limit: longer pieces are split, so that bodies pass evenly.
const PIECE_TIME: Duration = Duration::from_millis(50);

/// Pieces of up to this many bytes are not split for evenness, because each costs a decision and a timer.
const PIECE_BYTES_MIN: u64 = 512;

/// The limits that count the bytes of a request's bodies.
#[derive(Debug)]
pub struct BodyCharges {
    /// Bound: as many as a decision has limits.
    limits: Vec<ByteLimit>,
    piece_bytes_max: u64,
}

#[derive(Debug)]
struct ByteLimit {
    limit: Arc<Limit>,
    key: Arc<KeyBuf>,
    terms: Terms,
    treatment: ByteTreatment,
}

/// The treatment of bytes by a limit that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteTreatment {
    /// Each piece waits its turn.
    Delay,
    /// Each piece passes and is charged, if need be into debt.
    Force,
}

impl ByteTreatment {
    /// `None` for a limit that does not count bytes.
    pub(super) fn of(plan: &RequestPlan<'_>, planned: &PlannedLimit<'_>) -> Option<ByteTreatment> {
        if plan.rule(planned).cost != Cost::Bytes {
            return None;
        }
        let is_enforced = planned.enforcement == Enforcement::Enforced;
        Some(match is_enforced && plan.shared_limit(planned).is_queue() {
            true => ByteTreatment::Delay,
            false => ByteTreatment::Force,
        })
    }
}

impl BodyCharges {
    /// `None` if no charge is by bytes.
    pub(super) fn new(charges: &[ReservedCharge]) -> Option<BodyCharges> {
        let by_bytes = charges.iter().filter_map(|charge| {
            let (limit, key) = (Arc::clone(&charge.limit), Arc::clone(&charge.key));
            Some(ByteLimit { limit, key, terms: charge.terms, treatment: charge.by_bytes? })
        });
        let limits: Vec<ByteLimit> = by_bytes.collect();
        let delaying = limits.iter().filter(|one| one.treatment == ByteTreatment::Delay);
        let piece_bytes_max = delaying.map(|one| piece_bytes(&one.limit)).min().unwrap_or(u64::MAX);
        (!limits.is_empty()).then_some(BodyCharges { limits, piece_bytes_max })
    }

    /// The length from which a piece must be split.
    pub fn piece_bytes_max(&self) -> u64 {
        self.piece_bytes_max
    }

    fn checks(&self, bytes: u64, can_wait: bool) -> ArrayVec<Check<'_>, MAX_LIMITS> {
        let checks = self.limits.iter().map(|one| {
            let act = match one.treatment {
                ByteTreatment::Delay if can_wait => Act::Take,
                ByteTreatment::Delay | ByteTreatment::Force => Act::Force,
            };
            Check::new(&one.limit, &*one.key).terms(one.terms).cost(bytes).act(act)
        });
        checks.collect()
    }
}

/// The most bytes of one piece under a queue: never more than its capacity, which it could not hold.
fn piece_bytes(limit: &Limit) -> u64 {
    let in_piece_time =
        u128::from(limit.units()) * PIECE_TIME.as_micros() / u128::from(limit.period_us().max(1));
    let even = u64::try_from(in_piece_time).unwrap_or(u64::MAX).max(PIECE_BYTES_MIN);
    even.min(limit.capacity()).max(1)
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// The limits that count the bytes of the bodies of an open reservation; `None` if there are none.
    pub fn body_charges(&self, id: ReservationId) -> Option<BodyCharges> {
        BodyCharges::new(self.reservations.table().charges(id)?)
    }

    /// Charges a piece of a body, of at most [`BodyCharges::piece_bytes_max`]. If it is allowed, it may pass after
    /// the delay of the decision. Otherwise other bodies have used up the limit: ask again after its `retry_after`.
    /// For a caller that cannot wait it is always allowed and never delayed.
    pub async fn charge_piece<'n>(
        &self,
        charges: &BodyCharges,
        bytes: u64,
        can_wait: bool,
        now: impl Into<Now<'n>>,
    ) -> Decision {
        let mut outcomes = [Outcome::default(); MAX_LIMITS];
        let checks = charges.checks(bytes, can_wait);
        let outcomes = &mut outcomes[..checks.len()];
        let Ok(decision) = self.store().decide_each(&checks, now.into(), outcomes).await;
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Algorithm;

    #[test]
    fn pieces_take_a_20th_of_a_second_and_fit_into_the_queue() {
        // bytes a second, capacity, bytes of a piece
        let cases = [
            (262_144, 262_144, 13_107),
            (262_144, 4_096, 4_096),
            (1_000, 1_000, 512),
            (1_000, 100, 100),
            (1, 1, 1),
            (10_000_000, 10_000_000, 500_000),
        ];
        for (rate, burst, piece) in cases {
            let limit = Limit::per_second(rate).burst(burst).algorithm(Algorithm::LeakyBucket);
            let limit = limit.queue().build().unwrap();
            assert_eq!(piece_bytes(&limit), piece, "{rate} a second, capacity {burst}");
        }
    }
}
