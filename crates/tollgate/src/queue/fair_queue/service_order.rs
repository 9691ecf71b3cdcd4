//! The order in which waiters are served if nobody leaves and nobody else comes.

use super::{FairQueue, FlowKey, QueuedCost};

impl<T> FairQueue<T> {
    /// Units of the waiters that would be served before a new one of this flow. Its time grows with their number, so it
    /// counts `waiters_max` of them and no more.
    pub fn units_ahead(&self, key: FlowKey, cost: QueuedCost, waiters_max: usize) -> u64 {
        let own = self.flow_indices.get(&key).copied();
        let tag = self.tag_of_newcomer(own, cost.stride());
        let (mut units, mut counted) = (0_u64, 0);
        for flows in self.turns.range(..=tag).map(|(_, flows)| flows) {
            let mut flow = flows.first();
            while let Some(index) = flow {
                // Of equal tags those come first that have them already: the heads.
                let mut last_tag = tag;
                let mut waiter_tag = self.flows[index].tag;
                let mut waiter = self.flows[index].waiters.first();
                while let Some(ahead) = waiter.filter(|_| waiter_tag <= last_tag) {
                    last_tag = tag.saturating_sub(u128::from(own != Some(index)));
                    if counted == waiters_max {
                        return units;
                    }
                    counted += 1;
                    units = units.saturating_add(self.waiters[ahead].units);
                    waiter = self.waiters[ahead].flow_links.next();
                    let stride = waiter.map_or(0, |next| self.waiters[next].stride);
                    waiter_tag = waiter_tag.saturating_add(stride);
                }
                flow = self.flows[index].turn_links.next();
            }
        }
        units
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
