//! Random sequences of operations on a fair queue, beside the naive model.

use proptest::prelude::*;
use tollgate::Micros;
use tollgate::queue::{
    FairQueue, FairTicket, FlowKey, QueueBound, QueueBounds, QueuedCost, Weight,
};

use super::naive_fair_queue::{NaiveFairQueue, NaiveWaiter};
use crate::properties::config;

/// One operation of a sequence.
#[derive(Clone, Debug)]
enum QueueOperation {
    Push {
        flow: u64,
        units: u64,
        thousandths: u32,
        patience_us: u64,
    },
    Pop,
    /// Serves the head of a flow, whoever is next.
    Serve {
        flow: u64,
    },
    /// Changes the bounds.
    SetBounds {
        per_flow: usize,
        total: usize,
    },
    /// Removes the waiter that joined as number `nth` from the end; it may have left already.
    Remove {
        nth: usize,
    },
    /// Moves the clock and expires everything that is due.
    Advance {
        micros: u64,
    },
}

fn operation() -> impl Strategy<Value = QueueOperation> {
    let push = (0..6u64, 0..12u64, prop_oneof![Just(1_000), 1..5_000u32], 0..20_000u64);
    prop_oneof![
        6 => push.prop_map(|(flow, units, thousandths, patience_us)| {
            QueueOperation::Push { flow, units, thousandths, patience_us }
        }),
        4 => Just(QueueOperation::Pop),
        1 => (0..6u64).prop_map(|flow| QueueOperation::Serve { flow }),
        1 => (0..6usize, 0..16usize)
            .prop_map(|(per_flow, total)| QueueOperation::SetBounds { per_flow, total }),
        2 => (0..12usize).prop_map(|nth| QueueOperation::Remove { nth }),
        1 => (0..6_000u64).prop_map(|micros| QueueOperation::Advance { micros }),
    ]
}

/// The queue and its model, side by side.
struct QueueBesideModel {
    bounds: QueueBounds,
    queue: FairQueue<u64>,
    model: NaiveFairQueue,
    tickets: Vec<FairTicket>,
    now_us: u64,
}

impl QueueBesideModel {
    fn new(bounds: QueueBounds) -> QueueBesideModel {
        let queue = FairQueue::new(bounds);
        let model = NaiveFairQueue::default();
        QueueBesideModel { bounds, queue, model, tickets: Vec::new(), now_us: 0 }
    }

    fn apply(&mut self, operation: &QueueOperation) {
        match *operation {
            QueueOperation::Push { flow, units, thousandths, patience_us } => {
                let id = self.tickets.len() as u64;
                let (thousandths, deadline_us) =
                    (u64::from(thousandths), self.now_us + patience_us);
                self.push(NaiveWaiter { id, flow, units, thousandths, deadline_us });
            }
            QueueOperation::Pop => {
                assert_eq!(self.queue.pop(), self.model.pop().map(|waiter| waiter.id));
            }
            QueueOperation::Serve { flow } => {
                let Some(id) = self.model.head_of(flow).map(|head| head.id) else { return };
                self.model.serve(id);
                assert_eq!(self.queue.serve(self.tickets[id as usize]), Some(id));
                assert_eq!(self.queue.serve(self.tickets[id as usize]), None);
            }
            QueueOperation::SetBounds { per_flow, total } => {
                self.bounds = QueueBounds { per_flow, total };
                self.queue.set_bounds(self.bounds);
            }
            QueueOperation::Remove { nth } => {
                let Some(id) = self.tickets.len().checked_sub(nth + 1) else { return };
                let removed = self.model.remove(id as u64).map(|waiter| waiter.id);
                assert_eq!(self.queue.remove(self.tickets[id]), removed);
            }
            QueueOperation::Advance { micros } => {
                self.now_us += micros;
                loop {
                    let expired = self.model.expire(self.now_us).map(|waiter| waiter.id);
                    assert_eq!(self.queue.expire(Micros::new(self.now_us)), expired);
                    if expired.is_none() {
                        break;
                    }
                }
            }
        }
        self.compare();
    }

    fn push(&mut self, waiter: NaiveWaiter) {
        let weight = Weight::from_thousandths(waiter.thousandths as u32).unwrap();
        let cost = QueuedCost { units: waiter.units, weight };
        let deadline = Micros::new(waiter.deadline_us);
        let (len, total) = (self.model.flow_len(waiter.flow), self.model.len());
        match self.queue.push(FlowKey(waiter.flow), cost, deadline, waiter.id) {
            Ok(queued) => {
                self.tickets.push(queued.ticket);
                assert!(len < self.bounds.per_flow);
                assert_eq!(queued.displaced.is_some(), total >= self.bounds.total);
                if let Some(displaced) = queued.displaced {
                    let flow = self.model.get(displaced).expect("it waited").flow;
                    assert_eq!(self.model.newest_of(flow).map(|newest| newest.id), Some(displaced));
                    assert_eq!(self.model.flow_len(flow), self.model.longest());
                    assert!(self.model.longest() > len + 1);
                    self.model.remove(displaced);
                }
                self.model.push(waiter);
            }
            Err(full) => {
                assert_eq!(full.item, waiter.id);
                match full.bound {
                    QueueBound::PerFlow => assert!(len >= self.bounds.per_flow),
                    QueueBound::Total => {
                        assert!(total >= self.bounds.total);
                        assert!(self.model.longest() <= len + 1);
                    }
                }
            }
        }
    }

    fn compare(&self) {
        let (queue, model) = (&self.queue, &self.model);
        let head = queue.head().map(|(ticket, &id)| (queue.get(ticket).copied(), id));
        assert_eq!(head, model.head().map(|waiter| (Some(waiter.id), waiter.id)));
        assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.len() == 0));
        assert_eq!(queue.flow_count(), model.flows().len());
        for flow in 0..6 {
            assert_eq!(queue.flow_len(FlowKey(flow)), model.flow_len(flow));
        }
        let next_expiry = model.next_expiry_ms().map(|ms| Micros::new(ms * 1_000));
        assert_eq!(queue.next_expiry(), next_expiry);
        for (id, &ticket) in self.tickets.iter().enumerate() {
            assert_eq!(queue.get(ticket).copied(), model.get(id as u64).map(|waiter| waiter.id));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Would catch: a wrong order within or among flows, an idle queue with waiters, a flow that
    /// waits longer than the documented bound, a bound exceeded or refused too early, a waiter
    /// that is lost, served twice or expires at the wrong instant, a ticket that finds another's
    /// waiter.
    #[test]
    fn a_fair_queue_is_the_naive_one(
        per_flow in 0..6usize,
        total in 0..16usize,
        operations in prop::collection::vec(operation(), 0..150),
    ) {
        let mut both = QueueBesideModel::new(QueueBounds { per_flow, total });
        for operation in &operations {
            both.apply(operation);
        }
        while !both.queue.is_empty() {
            both.apply(&QueueOperation::Pop);
        }
    }
}
