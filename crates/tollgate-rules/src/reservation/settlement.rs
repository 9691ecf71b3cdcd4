//! Settling the charges of a request by its response: by the head at once, by the body when it has ended.
//!
//! What the response does not show is charged as reserved, and counted. If the upstream failed or refused (a status of
//! 400 and above), no work was done, and the reservation is given back. So is every estimate of a request that was never sent to
//! an upstream.

use std::sync::Arc;

use tollgate::store::join::join_all;
use tollgate::{Clock, Micros, Now};

use super::{ReservationId, ReservedCharge, SettleError};
use crate::cost_source::ActualCost;
use crate::facts::Headers;
use crate::gatekeeper::{Gatekeeper, InfallibleStore};
use crate::response_meter::{BodyEnd, BodyHead, MeterReading, ResponseMeter, UnreadableReason};
use crate::stripes::StripedCounters;

/// The head of a response.
#[derive(Clone, Copy)]
pub struct ResponseFacts<'a> {
    /// The status.
    pub status: u16,
    /// The header fields.
    pub headers: &'a dyn Headers,
    /// True if the connection becomes a tunnel: after a 101, or a 2xx to CONNECT.
    pub is_tunnel: bool,
    /// True if no upstream has seen the request, so that the response is not the answer to it.
    pub is_unsent: bool,
}

/// The charges that are due when the head of a response is there.
#[derive(Debug)]
pub struct ResponseCharges {
    /// The charges whose true cost is known.
    pub known: SettlementCharges,
    /// The charges whose cost is in the body.
    pub metered: Option<MeteredCharges>,
}

/// Charges whose true cost is known, for [`Gatekeeper::settle_by`]. Bound: as many as a decision
/// has limits.
#[derive(Debug)]
pub struct SettlementCharges(Vec<(ReservedCharge, u64)>);

/// Charges whose true cost is in the body of a response, and the meter to be fed with it. Bound: as many as a
/// decision has limits.
#[derive(Debug)]
pub struct MeteredCharges {
    charges: Vec<(ReservedCharge, bool)>,
    meter: ResponseMeter,
    /// True if the upstream failed or refused.
    is_failure: bool,
}

/// The way in which a cost was settled by a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettlementOutcome {
    /// Settled by a header field.
    Header,
    /// Settled by the length of the body.
    Bytes,
    /// Settled by a number in the body.
    Json,
    /// Charged as reserved, or given back: the response does not show the cost.
    Unreadable(UnreadableReason),
}

/// Counts of settlements by responses so far.
#[derive(Debug, Default)]
pub struct SettlementTally(StripedCounters<{ SettlementOutcome::ALL.len() + 1 }>);

impl SettlementOutcome {
    /// All of them.
    pub const ALL: [SettlementOutcome; 9] = [
        SettlementOutcome::Header,
        SettlementOutcome::Bytes,
        SettlementOutcome::Json,
        SettlementOutcome::Unreadable(UnreadableReason::Header),
        SettlementOutcome::Unreadable(UnreadableReason::ContentEncoding),
        SettlementOutcome::Unreadable(UnreadableReason::MediaType),
        SettlementOutcome::Unreadable(UnreadableReason::InvalidJson),
        SettlementOutcome::Unreadable(UnreadableReason::NoNumber),
        SettlementOutcome::Unreadable(UnreadableReason::Tunnel),
    ];

    /// The number of the outcome in [`ALL`](SettlementOutcome::ALL).
    fn number(self) -> usize {
        match self {
            SettlementOutcome::Header => 0,
            SettlementOutcome::Bytes => 1,
            SettlementOutcome::Json => 2,
            SettlementOutcome::Unreadable(reason) => 3 + reason as usize,
        }
    }
}

impl SettlementTally {
    /// The number of the counter of broken bodies, after the outcomes.
    const BROKEN: usize = SettlementOutcome::ALL.len();

    /// Number of settlements with this outcome.
    pub fn count(&self, outcome: SettlementOutcome) -> u64 {
        self.0.sums()[outcome.number()]
    }

    /// Number of bodies that ended early and were settled by the part that was seen.
    pub fn broken(&self) -> u64 {
        self.0.sums()[SettlementTally::BROKEN]
    }
}

impl ResponseFacts<'_> {
    /// The whole number in a header field.
    fn number(&self, name: &str) -> Option<u64> {
        let value = self.headers.header(name)?;
        let text = value.trim();
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    }

    /// Returns true if the upstream did no work: it failed, or refused.
    fn is_failure(&self) -> bool {
        self.status >= 400
    }
}

impl MeteredCharges {
    /// Reads a piece of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.meter.feed(bytes);
    }

    /// Counts bytes of the body that could not be seen.
    pub fn skip(&mut self, bytes: u64) {
        self.meter.skip(bytes);
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Takes the charges to settle when the head of the response is there: with `cost`, if given, or else with
    /// the cost in the response that a rule names. A charge without either stands, but an estimate is given back if the request
    /// was never sent. The work still counts as going on; this can be called once.
    pub fn take_due(
        &self,
        id: ReservationId,
        cost: Option<u64>,
        head: &ResponseFacts<'_>,
        now: Micros,
    ) -> Result<ResponseCharges, SettleError> {
        let charges = self.reservations.table().take_charges(id, now)?;
        let (mut known, mut metered) = (Vec::new(), Vec::new());
        let mut counted: Vec<Arc<ActualCost>> = Vec::new();
        for charge in charges {
            if let Some(cost) = cost.filter(|_| charge.settled) {
                known.push((charge, cost));
                continue;
            }
            if head.is_unsent {
                if charge.is_estimate {
                    known.push((charge, 0));
                }
                continue;
            }
            let Some(actual) = charge.actual.clone() else { continue };
            // Several limits of a rule have one cost.
            let is_first = !counted.contains(&actual);
            if is_first {
                counted.push(actual.clone());
            }
            match &*actual {
                ActualCost::Header(name) => {
                    let found = head.number(name);
                    if is_first {
                        self.settlements.count_header(found.is_some());
                    }
                    let cost = found.or(head.is_failure().then_some(0));
                    known.extend(cost.map(|cost| (charge, cost)));
                }
                ActualCost::Bytes | ActualCost::Json(_) => metered.push((charge, is_first)),
            }
        }
        let metered = (!metered.is_empty()).then(|| MeteredCharges::new(metered, head));
        Ok(ResponseCharges { known: SettlementCharges(known), metered })
    }

    /// Ends the body of a response, and returns the charges to settle by it.
    pub fn finish_body(&self, metered: MeteredCharges, end: BodyEnd) -> SettlementCharges {
        let MeteredCharges { charges, mut meter, is_failure } = metered;
        meter.finish(end);
        if end == BodyEnd::Broken {
            self.settlements.0.add(SettlementTally::BROKEN, 1);
        }
        let due = charges.into_iter().filter_map(|(charge, is_first)| {
            let actual = charge.actual.as_ref()?;
            let reading = meter.read(actual, end);
            if is_first {
                self.settlements.count_reading(actual, reading);
            }
            let cost = match reading {
                MeterReading::Cost(cost) => cost,
                MeterReading::Unreadable { .. } if is_failure => 0,
                MeterReading::Unreadable { documents, .. } => {
                    documents.max(charge.receipt.granted()).max(charge.counted_bytes())
                }
            };
            Some((charge, cost))
        });
        SettlementCharges(due.collect())
    }

    /// Gives back what was too much and charges what was too little, if need be into debt.
    pub async fn settle_by<'n>(&self, due: SettlementCharges, now: impl Into<Now<'n>>) {
        let (settled, now) = (due.0.into_iter(), self.begin_operation(now.into()));
        join_all(settled.map(|(charge, cost)| self.settle_charge(charge, cost, now))).await;
    }

    /// Counts of settlements by responses so far.
    pub fn settlements(&self) -> &SettlementTally {
        &self.settlements
    }
}

impl MeteredCharges {
    fn new(charges: Vec<(ReservedCharge, bool)>, head: &ResponseFacts<'_>) -> MeteredCharges {
        let content_type = head.headers.header("content-type");
        let content_encoding = head.headers.joined("content-encoding");
        let body = BodyHead {
            content_type: content_type.as_deref(),
            content_encoding: content_encoding.as_deref(),
            is_tunnel: head.is_tunnel,
        };
        let costs = charges.iter().filter_map(|(charge, _)| charge.actual.as_deref());
        let meter = ResponseMeter::new(costs, &body);
        MeteredCharges { charges, meter, is_failure: head.is_failure() }
    }
}

impl SettlementTally {
    fn add(&self, outcome: SettlementOutcome) {
        self.0.add(outcome.number(), 1);
    }

    fn count_header(&self, is_found: bool) {
        self.add(match is_found {
            true => SettlementOutcome::Header,
            false => SettlementOutcome::Unreadable(UnreadableReason::Header),
        });
    }

    fn count_reading(&self, actual: &ActualCost, reading: MeterReading) {
        self.add(match reading {
            MeterReading::Unreadable { reason, .. } => SettlementOutcome::Unreadable(reason),
            MeterReading::Cost(_) if *actual == ActualCost::Bytes => SettlementOutcome::Bytes,
            MeterReading::Cost(_) => SettlementOutcome::Json,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_a_counter_of_its_own() {
        for (number, outcome) in SettlementOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.number(), number, "{outcome:?}");
        }
    }
}
