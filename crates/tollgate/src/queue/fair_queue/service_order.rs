//! The order in which waiters are served if nobody leaves and nobody else comes.

use super::{FairQueue, Flow, FlowKey, QueuedCost, QueuedWaiter};
use crate::time::Micros;

/// A waiter that would be served before a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterAhead {
    /// Its cost.
    pub units: u64,
    /// The instant at which it gives up.
    pub expires_at: Micros,
}

impl<T> FairQueue<T> {
    /// Units of the waiters that would be served before a new one of this flow. Its time grows with their number, so it
    /// counts `waiters_max` of them and no more.
    pub fn units_ahead(&self, key: FlowKey, cost: QueuedCost, waiters_max: usize) -> u64 {
        let mut units = 0_u64;
        self.visit_ahead(key, cost, waiters_max, |(_, index)| {
            units = units.saturating_add(self.waiters[index].units);
        });
        units
    }

    /// The waiters of [`units_ahead`](FairQueue::units_ahead), in the order of their service.
    pub fn waiters_ahead(
        &self,
        key: FlowKey,
        cost: QueuedCost,
        waiters_max: usize,
    ) -> impl Iterator<Item = WaiterAhead> {
        let mut ahead = Vec::new();
        self.visit_ahead(key, cost, waiters_max, |waiter| ahead.push(waiter));
        ahead.sort_by_key(|(tag, _)| *tag);
        ahead.into_iter().map(|(_, index)| {
            let QueuedWaiter { units, expires_ms, .. } = self.waiters[index];
            WaiterAhead { units, expires_at: Micros::new(expires_ms * 1_000) }
        })
    }

    /// Visits the waiters ahead of a newcomer, flow by flow, with their tags.
    fn visit_ahead(
        &self,
        key: FlowKey,
        cost: QueuedCost,
        waiters_max: usize,
        mut visit: impl FnMut((u128, u32)),
    ) {
        let own = self.flow_indices.get(&key).copied();
        let tag = self.tag_of_newcomer(own, cost.stride());
        let mut room = waiters_max;
        for flows in self.turns.range(..=tag).map(|(_, flows)| flows) {
            let mut flow = flows.first();
            while let Some(index) = flow {
                // Of equal tags those come first that have them already: the heads.
                let mut last_tag = tag;
                for waiter in self.tagged_waiters(index) {
                    if waiter.0 > last_tag {
                        break;
                    }
                    if room == 0 {
                        return;
                    }
                    room -= 1;
                    visit(waiter);
                    last_tag = tag.saturating_sub(u128::from(own != Some(index)));
                }
                flow = self.flows[index].turn_links.next();
            }
        }
    }

    /// The waiters of a flow and the tags that they have when they are its head.
    fn tagged_waiters(&self, flow: u32) -> impl Iterator<Item = (u128, u32)> {
        let Flow { tag, waiters, .. } = &self.flows[flow];
        let head = waiters.first().map(|head| (*tag, head));
        std::iter::successors(head, |&(tag, index)| {
            let next = self.waiters[index].flow_links.next()?;
            Some((tag.saturating_add(self.waiters[next].stride), next))
        })
    }

    /// Units of the waiter that is served next; 0 if nothing waits.
    pub fn units_of_head(&self) -> u64 {
        self.head_index().map_or(0, |head| self.waiters[head].units)
    }

    /// The tag that a new waiter would have as the head of its flow.
    fn tag_of_newcomer(&self, flow: Option<u32>, stride: u128) -> u128 {
        let Some(flow) = flow.map(|index| &self.flows[index]) else {
            return self.virtual_time.saturating_add(stride);
        };
        // The tag counts the head already.
        let head = flow.waiters.first().map_or(0, |head| self.waiters[head].stride);
        flow.tag.saturating_add(flow.strides - head).saturating_add(stride)
    }

    /// Visits the items of all waiters: those of a flow in the order of their arrival, and one of each flow before the next
    /// of any.
    pub fn visit_items(&mut self, mut visit: impl FnMut(&mut T)) {
        let mut round = Vec::new();
        for flows in self.turns.values() {
            let mut flow = flows.first();
            while let Some(index) = flow {
                round.extend(self.flows[index].waiters.first());
                flow = self.flows[index].turn_links.next();
            }
        }
        while !round.is_empty() {
            round.retain_mut(|index| {
                let waiter = &mut self.waiters[*index];
                visit(&mut waiter.item);
                let next = waiter.flow_links.next();
                *index = next.unwrap_or(*index);
                next.is_some()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{FairTicket, QueueBounds, Weight};
    use super::*;
    use crate::queue::slab::looks_of;
    use crate::time::Micros;

    const ONE: QueuedCost = QueuedCost::ONE;

    fn push(queue: &mut FairQueue<u32>, flow: u64, cost: QueuedCost) -> Option<FairTicket> {
        let queued = queue.push(FlowKey(flow), cost, Micros::MAX, 0);
        queued.ok().map(|queued| queued.ticket)
    }

    /// Would catch: a join that visits all that its caller has waiting.
    #[test]
    fn a_newcomer_costs_as_many_steps_however_many_wait_before_it() {
        let steps = [10, 100, 10_000].map(|waiting| {
            let mut queue = FairQueue::new(QueueBounds { per_flow: 20_000, total: 20_000 });
            for _ in 0..waiting {
                push(&mut queue, 1, ONE).unwrap();
            }
            let ahead = looks_of(|| assert_eq!(queue.units_ahead(FlowKey(1), ONE, 5), 5));
            (ahead, looks_of(|| assert!(push(&mut queue, 1, ONE).is_some())))
        });
        assert_eq!((steps[1], steps[2]), (steps[0], steps[0]), "{steps:?}");
    }

    /// The tag of a newcomer, by the strides of all that its flow has waiting.
    fn tag_by_walk(queue: &FairQueue<u32>, flow: Option<u32>, stride: u128) -> u128 {
        let Some(flow) = flow else { return queue.virtual_time.saturating_add(stride) };
        let mut tag = queue.flows[flow].tag;
        let mut waiter = queue.flows[flow].waiters.first();
        while let Some(next) = waiter.and_then(|index| queue.waiters[index].flow_links.next()) {
            tag = tag.saturating_add(queue.waiters[next].stride);
            waiter = Some(next);
        }
        tag.saturating_add(stride)
    }

    proptest! {
        #[test]
        fn the_tag_of_a_newcomer_is_the_sum_of_the_strides_before_it(
            steps in vec((0_u8..6, 0_u64..5, prop_oneof![0_u64..9, Just(u64::MAX)], 1_u32..5_000), 0..200),
        ) {
            let mut queue = FairQueue::new(QueueBounds { per_flow: 12, total: 30 });
            let mut tickets = Vec::new();
            for (step, flow, units, thousandths) in steps {
                let weight = Weight::from_thousandths(thousandths).unwrap();
                let any = (!tickets.is_empty()).then(|| tickets[units as usize % tickets.len()]);
                match (step, any) {
                    (0..=2, _) => tickets.extend(push(&mut queue, flow, QueuedCost { units, weight })),
                    (3, _) => drop(queue.pop()),
                    (4, Some(any)) => drop(queue.remove(any)),
                    (_, Some(any)) => drop(queue.serve(any)),
                    (_, None) => {}
                }
                for flow in 0..5 {
                    let flow = queue.flow_indices.get(&FlowKey(flow)).copied();
                    prop_assert_eq!(queue.tag_of_newcomer(flow, 7), tag_by_walk(&queue, flow, 7));
                }
            }
            while queue.pop().is_some() {}
            prop_assert!(queue.is_empty() && queue.flow_count() == 0);
        }
    }
}
