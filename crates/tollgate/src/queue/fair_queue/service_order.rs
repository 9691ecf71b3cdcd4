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
        let Some(flow) = flow else { return self.virtual_time.saturating_add(stride) };
        let mut tag = self.flows[flow].tag;
        let mut waiter = self.flows[flow].waiters.first();
        while let Some(next) = waiter.and_then(|index| self.waiters[index].flow_links.next()) {
            tag = tag.saturating_add(self.waiters[next].stride);
            waiter = Some(next);
        }
        tag.saturating_add(stride)
    }
}
