//! A fair queue: waiting work is served in turn by flow, and each flow gets its weighted share
//! whatever the others send.
//!
//! A *flow* is everything that one caller has waiting. The queue is self-clocked (SCFQ): the head
//! of each flow has a *tag*, the virtual time at which its service would end if the flow had its
//! share all the time, and the smallest tag is served first.
//!
//! ```text
//! tag = max(virtual time, end of the flow's last service) + cost / weight
//! virtual time = tag of the head served last
//! ```
//!
//! Served tags only grow, so a flow that has nothing waiting needs no memory: it starts from the
//! virtual time when it comes back. A long absence earns no credit, and a new key no advantage.
//!
//! * **Shares.** While flows have work waiting, each is served in proportion to its weight,
//!   measured in cost and not in requests. More connections or larger costs do not buy more.
//! * **No starvation.** A head of cost `c` and weight `w` waits until it is served for at most the
//!   flows that wait with it, and of each of these for its head and `c / w` times its weight in
//!   cost. Flows that arrive later with the same cost and weight are behind it.
//! * **Work-conserving.** There is a head whenever anything waits.
//! * **First come, first served** within a flow, and among flows with equal tags.
//! * **Bounded** per flow, in total and, with [`expire`](FairQueue::expire), in age. A full queue
//!   still admits a caller who waits with less: see [`push`](FairQueue::push).
//!
//! A step takes constant time plus a search among the *distinct* tags and deadlines. Flows with
//! equal costs share their tags, so that the number of flows hardly matters.
//!
//! Deficit round robin would visit every flow again and again until a large cost is saved up.
//! Ordering by the start of a service instead of its end would let an endless stream of new keys
//! go ahead of an old one.

use std::collections::{BTreeMap, HashMap};

use super::index_list::{IndexList, ListLinks};
use super::slab::Slab;
use crate::time::Micros;

mod queue_bounds;
mod queued_cost;
mod service_order;

pub use queue_bounds::{QueueBound, QueueBounds, QueueFull};
pub use queued_cost::{QueuedCost, Weight};
pub use service_order::WaiterAhead;

/// Items of many flows that wait to be served fairly.
///
/// ```
/// use tollgate::Micros;
/// use tollgate::queue::fair_queue::{FairQueue, FlowKey, QueueBounds, QueuedCost};
///
/// let mut queue = FairQueue::new(QueueBounds { per_flow: 10, total: 1_000 });
/// let (alice, bob) = (FlowKey(1), FlowKey(2));
/// let deadline = Micros::from_secs(1_790_000_002);
/// for report in ["alice 1", "alice 2", "alice 3"] {
///     queue.push(alice, QueuedCost::ONE, deadline, report)?;
/// }
/// queue.push(bob, QueuedCost::ONE, deadline, "bob 1")?;
///
/// // Whenever there is room for one more: Bob does not wait for all that Alice sent before.
/// let served: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
/// assert_eq!(served, ["alice 1", "bob 1", "alice 2", "alice 3"]);
/// # Ok::<(), tollgate::queue::fair_queue::QueueFull<&str>>(())
/// ```
#[derive(Debug)]
pub struct FairQueue<T> {
    bounds: QueueBounds,
    /// Everything that waits. Bound: `bounds.total`.
    waiters: Slab<QueuedWaiter<T>>,
    /// Flows that have something waiting. Bound: `bounds.total`, because each has a waiter.
    flows: Slab<Flow>,
    flow_indices: HashMap<FlowKey, u32>,
    /// Flows by the tag of their head; those with equal tags in the order in which they got it.
    turns: BTreeMap<u128, IndexList>,
    /// Waiters by the millisecond in which they expire.
    expiries: BTreeMap<u64, IndexList>,
    /// Flows by the number of their waiters, from [`LISTED_LEN_MIN`]; the last list is not empty.
    /// Bound: `bounds.per_flow`.
    lengths: Vec<IndexList>,
    /// The tag of the head served last; 0 after the queue was empty.
    virtual_time: u128,
}

/// Shorter flows never make room for others, so that nobody has to find them by their length.
const LISTED_LEN_MIN: usize = 2;

/// The identity of a flow: a hash of the caller's key, or a number of your own.
///
/// Flows with equal keys share their turns. Hash names that strangers choose with a secret, so
/// that nobody can aim at another caller's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey(pub u64);

/// A place in a [`FairQueue`]. It stays valid until the waiter leaves, and is never confused with
/// a later waiter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FairTicket {
    index: u32,
    generation: u32,
}

/// A waiter that was admitted to a [`FairQueue`].
#[derive(Debug)]
pub struct QueuedItem<T> {
    /// The place of the new waiter.
    pub ticket: FairTicket,
    /// A waiter of the longest flow that had to make room; it left the queue.
    pub displaced: Option<T>,
}

#[derive(Debug)]
struct QueuedWaiter<T> {
    item: T,
    units: u64,
    stride: u128,
    expires_ms: u64,
    flow: u32,
    flow_links: ListLinks,
    expiry_links: ListLinks,
}

/// A flow with at least one waiter.
#[derive(Debug)]
struct Flow {
    key: FlowKey,
    waiters: IndexList,
    len: usize,
    /// The sum of the strides of its waiters. Fewer than 2^32 of less than 2^95 each are no overflow.
    strides: u128,
    /// Virtual time at which the service of its head would begin.
    start: u128,
    /// Virtual time at which the service of its head would end: its key in the turns.
    tag: u128,
    turn_links: ListLinks,
    length_links: ListLinks,
}

impl<T> FairQueue<T> {
    /// An empty queue. It allocates when something waits.
    pub fn new(bounds: QueueBounds) -> FairQueue<T> {
        let total = bounds.total.min(u32::MAX as usize - 1);
        FairQueue {
            bounds: QueueBounds { total, ..bounds },
            waiters: Slab::new(),
            flows: Slab::new(),
            flow_indices: HashMap::new(),
            turns: BTreeMap::new(),
            expiries: BTreeMap::new(),
            lengths: Vec::new(),
            virtual_time: 0,
        }
    }

    /// Changes the bounds for those who come from now on; nobody who waits has to leave.
    pub fn set_bounds(&mut self, bounds: QueueBounds) {
        self.bounds = FairQueue::<T>::new(bounds).bounds;
    }

    /// Number of waiters.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Returns true if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.len() == 0
    }

    /// Number of flows that have something waiting.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Number of waiters of one flow.
    pub fn flow_len(&self, key: FlowKey) -> usize {
        self.flow_indices.get(&key).map_or(0, |&flow| self.flows[flow].len)
    }

    /// Puts an item at the end of its flow.
    ///
    /// If the queue is full in total and another flow is longer than this one will be, the newest
    /// waiter of the longest flow makes room and is returned: a caller with a long queue cannot
    /// shut others out. Lengths are counted in waiters, because that is what the bound counts; a
    /// heavier flow does not get more places, but it is served faster.
    pub fn push(
        &mut self,
        key: FlowKey,
        cost: QueuedCost,
        deadline: Micros,
        item: T,
    ) -> Result<QueuedItem<T>, QueueFull<T>> {
        let flow = self.flow_indices.get(&key).copied();
        let len = flow.map_or(0, |flow| self.flows[flow].len);
        if len >= self.bounds.per_flow {
            return Err(QueueFull { bound: QueueBound::PerFlow, item });
        }
        let mut displaced = None;
        if self.len() >= self.bounds.total {
            match self.newest_of_a_longer_flow(len + 1) {
                // Its flow keeps the others, so that no index of a flow changes.
                Some(newest) => displaced = Some(self.take_out(newest)),
                None => return Err(QueueFull { bound: QueueBound::Total, item }),
            }
        }
        let flow = flow.unwrap_or_else(|| self.insert_flow(key));
        let index = self.insert(flow, cost, deadline, item);
        Ok(QueuedItem { ticket: self.ticket(index), displaced })
    }

    /// The waiter that is served next.
    pub fn head(&self) -> Option<(FairTicket, &T)> {
        let index = self.head_index()?;
        Some((self.ticket(index), &self.waiters[index].item))
    }

    /// The waiter that is served next after all of `ahead`; without those, the head. Its time grows with their number, so
    /// there should be few.
    pub fn next_after(&self, ahead: &[FairTicket]) -> Option<FairTicket> {
        let mut next: Option<(u128, u32)> = None;
        for (&tag, flows) in &self.turns {
            let mut flow = flows.first();
            while let Some(index) = flow {
                if next.is_some_and(|(earliest, _)| earliest <= tag) {
                    break;
                }
                let first = self.first_of_flow_but(index, ahead);
                next = [next, first].into_iter().flatten().min_by_key(|(tag, _)| *tag);
                flow = self.flows[index].turn_links.next();
            }
            if next.is_some_and(|(earliest, _)| earliest <= tag) {
                break;
            }
        }
        next.map(|(_, index)| self.ticket(index))
    }

    /// The first waiter of a flow that is not in `ahead`, and the tag that it has when it is the head.
    fn first_of_flow_but(&self, flow: u32, ahead: &[FairTicket]) -> Option<(u128, u32)> {
        let Flow { mut tag, waiters, .. } = self.flows[flow];
        let mut index = waiters.first()?;
        while ahead.contains(&self.ticket(index)) {
            index = self.waiters[index].flow_links.next()?;
            tag = tag.saturating_add(self.waiters[index].stride);
        }
        Some((tag, index))
    }

    /// Serves the head: it leaves, and virtual time moves on to its tag.
    pub fn pop(&mut self) -> Option<T> {
        let index = self.head_index()?;
        Some(self.serve_head_of_flow(index))
    }

    /// Serves a waiter that was next when its service began, also if another one has become
    /// the head meanwhile. `None` if it left before.
    pub fn serve(&mut self, ticket: FairTicket) -> Option<T> {
        if !self.holds(ticket) {
            return None;
        }
        let flow = self.waiters[ticket.index].flow;
        match self.flows[flow].waiters.first() {
            Some(head) if head != ticket.index => Some(self.serve_behind(head, ticket.index)),
            _ => Some(self.serve_head_of_flow(ticket.index)),
        }
    }

    /// Serves a waiter behind the head of its flow, whose turn comes later by as much.
    fn serve_behind(&mut self, head: u32, index: u32) -> T {
        let QueuedWaiter { flow, stride, .. } = self.waiters[index];
        self.take_turn(flow);
        self.flows[flow].start = self.flows[flow].start.saturating_add(stride);
        self.give_turn(flow, self.waiters[head].stride);
        self.take_out(index)
    }

    fn serve_head_of_flow(&mut self, index: u32) -> T {
        let flow = &mut self.flows[self.waiters[index].flow];
        // Virtual time may be ahead of the tag, if another waiter was served out of turn.
        self.virtual_time = self.virtual_time.max(flow.tag);
        flow.start = self.virtual_time;
        self.take_out(index)
    }

    /// Takes a waiter out that is not served, for example because its client left.
    ///
    /// Its place is free at once, and its flow is not charged: the next waiter of the flow begins
    /// where this one would have begun. `None` if it left before.
    pub fn remove(&mut self, ticket: FairTicket) -> Option<T> {
        self.holds(ticket).then(|| self.take_out(ticket.index))
    }

    /// Takes one waiter out whose deadline has passed; `None` if there is none left.
    ///
    /// Deadlines are rounded up to whole milliseconds: waiters that expire in the same millisecond
    /// share a list, so that a deadline costs little however many there are.
    pub fn expire(&mut self, now: Micros) -> Option<T> {
        let (&expires_ms, waiters) = self.expiries.first_key_value()?;
        let first = waiters.first()?;
        (expires_ms <= now.as_u64() / 1_000).then(|| self.take_out(first))
    }

    /// The instant at which the next waiter expires.
    pub fn next_expiry(&self) -> Option<Micros> {
        let (&expires_ms, _) = self.expiries.first_key_value()?;
        Some(Micros::new(expires_ms * 1_000))
    }

    /// The item of a waiter; `None` if it left.
    pub fn get(&self, ticket: FairTicket) -> Option<&T> {
        self.holds(ticket).then(|| &self.waiters[ticket.index].item)
    }

    /// The item of a waiter, to be changed; `None` if it left.
    pub fn get_mut(&mut self, ticket: FairTicket) -> Option<&mut T> {
        self.holds(ticket).then(|| &mut self.waiters[ticket.index].item)
    }

    fn holds(&self, ticket: FairTicket) -> bool {
        self.waiters.holds(ticket.index, ticket.generation)
    }

    fn ticket(&self, index: u32) -> FairTicket {
        FairTicket { index, generation: self.waiters.generation(index) }
    }

    fn head_index(&self) -> Option<u32> {
        let (_, flows) = self.turns.first_key_value()?;
        self.flows[flows.first()?].waiters.first()
    }

    /// The newest waiter of the longest flow, if that is longer than `len`.
    fn newest_of_a_longer_flow(&self, len: usize) -> Option<u32> {
        let longest = self.lengths.last().filter(|_| self.lengths.len() > len + 1)?;
        self.flows[longest.first()?].waiters.last()
    }

    /// Puts an item at the end of its flow; a new flow gets its turn.
    fn insert(&mut self, flow: u32, cost: QueuedCost, deadline: Micros, item: T) -> u32 {
        let expires_ms = deadline.as_u64().div_ceil(1_000);
        let (units, stride, links) = (cost.units, cost.stride(), ListLinks::NONE);
        let waiter = QueuedWaiter {
            item,
            units,
            stride,
            expires_ms,
            flow,
            flow_links: links,
            expiry_links: links,
        };
        let index = self.waiters.insert(waiter);
        let waiters = &mut self.flows[flow].waiters;
        waiters.push_back(&mut self.waiters, index, |all, at| &mut all[at].flow_links);
        let expiring = self.expiries.entry(expires_ms).or_insert(IndexList::EMPTY);
        expiring.push_back(&mut self.waiters, index, |all, at| &mut all[at].expiry_links);
        self.flows[flow].strides += stride;
        let len = self.flows[flow].len + 1;
        self.set_len(flow, len);
        if len == 1 {
            self.give_turn(flow, stride);
        }
        index
    }

    fn insert_flow(&mut self, key: FlowKey) -> u32 {
        let flow = self.flows.insert(Flow {
            key,
            waiters: IndexList::EMPTY,
            len: 0,
            strides: 0,
            start: self.virtual_time,
            tag: 0,
            turn_links: ListLinks::NONE,
            length_links: ListLinks::NONE,
        });
        self.flow_indices.insert(key, flow);
        flow
    }

    /// Takes a waiter out of all lists. If it was the head of its flow, the flow gets the turn of
    /// its next waiter, or is forgotten.
    fn take_out(&mut self, index: u32) -> T {
        let QueuedWaiter { flow, stride, expires_ms, .. } = self.waiters[index];
        let expiring = self.expiries.get_mut(&expires_ms).expect("a waiter is in its list");
        expiring.unlink(&mut self.waiters, index, |all, at| &mut all[at].expiry_links);
        if expiring.is_empty() {
            self.expiries.remove(&expires_ms);
        }
        let was_head = self.flows[flow].waiters.first() == Some(index);
        let waiters = &mut self.flows[flow].waiters;
        waiters.unlink(&mut self.waiters, index, |all, at| &mut all[at].flow_links);
        let next = waiters.first();
        self.flows[flow].strides -= stride;
        self.set_len(flow, self.flows[flow].len - 1);
        if was_head {
            self.take_turn(flow);
            match next {
                Some(next) => self.give_turn(flow, self.waiters[next].stride),
                None => self.forget_flow(flow),
            }
        }
        self.waiters.remove(index).item
    }

    fn forget_flow(&mut self, flow: u32) {
        let Flow { key, .. } = self.flows.remove(flow);
        self.flow_indices.remove(&key);
        if self.flows.len() == 0 {
            self.virtual_time = 0;
        }
    }

    /// Enters a flow in the turns by the stride of its head.
    fn give_turn(&mut self, index: u32, stride: u128) {
        let flow = &mut self.flows[index];
        // Not before virtual time: a head that waited long and left hands on one early turn, and
        // no right to many services in a row.
        flow.tag = flow.start.saturating_add(stride).max(self.virtual_time);
        let turn = self.turns.entry(flow.tag).or_insert(IndexList::EMPTY);
        turn.push_back(&mut self.flows, index, |all, at| &mut all[at].turn_links);
    }

    fn take_turn(&mut self, index: u32) {
        let tag = self.flows[index].tag;
        let turn = self.turns.get_mut(&tag).expect("a flow has a turn");
        turn.unlink(&mut self.flows, index, |all, at| &mut all[at].turn_links);
        if turn.is_empty() {
            self.turns.remove(&tag);
        }
    }

    /// Moves a flow to the list of its new length.
    fn set_len(&mut self, index: u32, len: usize) {
        let before = std::mem::replace(&mut self.flows[index].len, len);
        if before >= LISTED_LEN_MIN {
            let list = &mut self.lengths[before];
            list.unlink(&mut self.flows, index, |all, at| &mut all[at].length_links);
        }
        if len >= LISTED_LEN_MIN {
            if self.lengths.len() <= len {
                self.lengths.resize(len + 1, IndexList::EMPTY);
            }
            let list = &mut self.lengths[len];
            list.push_back(&mut self.flows, index, |all, at| &mut all[at].length_links);
        }
        while self.lengths.last().is_some_and(|longest| longest.is_empty()) {
            self.lengths.pop();
        }
    }
}

#[cfg(test)]
mod tests;
