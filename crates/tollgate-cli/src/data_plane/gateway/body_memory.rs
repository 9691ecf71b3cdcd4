//! Memory for bodies that are read before the decision, and for those that wait after it.
//!
//! All workers share it, and one address has a sixteenth. A body is asked for its next bytes only while there is room; if
//! not, the client feels it through its connection. The fuller it is, the less each address gets, so that
//! it takes many addresses to use all of it, and they can keep it only for the timeout of a body. The number of bodies is
//! bounded as well, because the request of each takes memory; one too many is refused.
//!
//! One body of an address that has no room may be read to its end from a reserve. Otherwise bodies that are all half read would
//! wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tollgate_tower::request_body::REQUEST_BODY_BYTES_MAX;

use crate::listeners::connection_caps::client_network;

/// The share of one address.
const ADDRESS_SHARE: usize = 16;

/// The share of the free memory that one address may have: the fuller the memory, the less each gets.
const FREE_SHARE: usize = 4;

/// Number of bodies that are read from the reserve at the same time.
const RESERVED_BODIES: usize = 16;

/// Bytes for which there may be one body: each has a request that waits with it.
const BYTES_PER_BODY: usize = 4 << 10;

/// Bytes kept free of a share for frames that arrive after the check for room: one for each worker that reads.
const FRAMES_BYTES: usize = 128 << 10;

/// Number of addresses that are looked at when room is found.
const ADDRESSES_PER_CALL: usize = 16;

/// The memory of a gateway.
#[derive(Debug)]
pub(super) struct BodyMemory {
    limits: BodyMemoryLimits,
    state: Mutex<MemoryState>,
}

#[derive(Clone, Copy, Debug)]
struct BodyMemoryLimits {
    /// Bytes of one body; of longer ones no more is read.
    each_max: usize,
    /// Bytes of all bodies that are not read from the reserve.
    all_max: usize,
    /// Bytes of those of one address.
    address_max: usize,
    /// Number of bodies.
    bodies_max: usize,
}

#[derive(Debug, Default)]
struct MemoryState {
    used: usize,
    bodies: usize,
    reserved_bodies: usize,
    /// The addresses with bodies. Bound: as many as bodies.
    addresses: HashMap<IpAddr, AddressMemory>,
    /// Addresses whose bodies wait for room, each once, the next first. Bound: as many as addresses.
    turns: BTreeMap<u64, IpAddr>,
    last_ticket: u64,
}

#[derive(Debug, Default)]
struct AddressMemory {
    used: usize,
    bodies: usize,
    /// True if one of its bodies is read from the reserve.
    has_reserved: bool,
    /// Bodies that wait for room, the first in line first. Bound: as many as bodies of the address.
    waiting: BTreeMap<u64, Waker>,
    /// The turn of the address, while bodies wait.
    turn: Option<u64>,
}

/// The memory of one body. Dropping it releases all of it.
#[derive(Debug)]
pub(super) struct HeldMemory {
    memory: Arc<BodyMemory>,
    address: IpAddr,
    bytes: usize,
    is_reserved: bool,
    /// The place in line, while it waits for room.
    ticket: Option<u64>,
}

impl BodyMemory {
    /// Divides so many bytes.
    pub(super) fn new(bytes: usize) -> Arc<BodyMemory> {
        let longest = usize::try_from(REQUEST_BODY_BYTES_MAX).unwrap_or(usize::MAX);
        let each_max = longest.min(bytes / (4 * RESERVED_BODIES));
        let share = bytes / ADDRESS_SHARE;
        let frames = FRAMES_BYTES.min(share / 8);
        let limits = BodyMemoryLimits {
            each_max,
            all_max: bytes - RESERVED_BODIES * each_max - frames,
            address_max: share - each_max - frames,
            bodies_max: bytes / BYTES_PER_BODY,
        };
        Arc::new(BodyMemory { limits, state: Mutex::default() })
    }

    /// Bytes that bodies take now.
    pub(super) fn used(&self) -> usize {
        let state = self.state();
        state.used + state.reserved_bodies * self.limits.each_max
    }

    /// Begins a body of a client with this address; `None` if there are too many. It takes no memory yet.
    pub(super) fn begin(self: &Arc<Self>, peer: IpAddr) -> Option<HeldMemory> {
        // IPv6 clients are counted per /64, because one customer usually controls all of it.
        let address = client_network(peer);
        let mut state = self.state();
        let bodies = state.addresses.get(&address).map_or(0, |one| one.bodies);
        let free = self.limits.bodies_max - state.bodies;
        if bodies >= (free / FREE_SHARE).min(self.limits.bodies_max / ADDRESS_SHARE) {
            return None;
        }
        state.bodies += 1;
        state.addresses.entry(address).or_default().bodies += 1;
        let memory = Arc::clone(self);
        Some(HeldMemory { memory, address, bytes: 0, is_reserved: false, ticket: None })
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryState {
    /// Returns true if a body of this address may read on.
    fn has_room(&self, address: IpAddr, limits: &BodyMemoryLimits) -> bool {
        let free = limits.all_max.saturating_sub(self.used);
        let used = self.addresses.get(&address).map_or(0, |one| one.used);
        used < limits.address_max.min(free / FREE_SHARE)
    }

    /// Returns true if a body of this address may be moved to the reserve.
    fn has_reserve(&self, address: IpAddr) -> bool {
        let has_reserved = self.addresses.get(&address).is_some_and(|one| one.has_reserved);
        !has_reserved && self.reserved_bodies < RESERVED_BODIES
    }

    /// Wakes a body that waits and may read on now, also from the reserve. It wakes the next.
    fn wake_next(&mut self, limits: &BodyMemoryLimits) {
        for _ in 0..self.turns.len().min(ADDRESSES_PER_CALL) {
            let Some((_, address)) = self.turns.pop_first() else { return };
            let may_read = self.has_room(address, limits) || self.has_reserve(address);
            let Some(one) = self.addresses.get_mut(&address) else { continue };
            one.turn = None;
            let woken = if may_read { one.waiting.pop_first() } else { None };
            if !one.waiting.is_empty() {
                self.give_turn(address);
            }
            if let Some((_, waker)) = woken {
                waker.wake();
                return;
            }
        }
    }

    /// Puts an address at the end of those whose bodies wait.
    fn give_turn(&mut self, address: IpAddr) {
        self.last_ticket += 1;
        let turn = self.last_ticket;
        let one = self.addresses.entry(address).or_default();
        if one.turn.is_none() {
            one.turn = Some(turn);
            self.turns.insert(turn, address);
        }
    }
}

impl HeldMemory {
    /// The most bytes of a body that are read.
    pub(super) fn bytes_max(&self) -> usize {
        self.memory.limits.each_max
    }

    /// Waits until there is room for more of the body.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_reserved {
            return Poll::Ready(());
        }
        let memory = Arc::clone(&self.memory);
        let (limits, mut state) = (&memory.limits, memory.state());
        if state.has_room(self.address, limits) {
            self.leave_line(&mut state);
            // Those behind it may have room as well.
            state.wake_next(limits);
            return Poll::Ready(());
        }
        if self.reserve(&mut state) {
            self.leave_line(&mut state);
            state.wake_next(limits);
            return Poll::Ready(());
        }
        self.join_line(&mut state, cx.waker());
        // One that was woken in vain, because others were faster, wakes those that have room.
        state.wake_next(limits);
        Poll::Pending
    }

    /// Counts bytes that the body takes.
    pub(super) fn hold(&mut self, bytes: usize) {
        let memory = Arc::clone(&self.memory);
        self.add(&mut memory.state(), bytes);
    }

    /// Counts bytes that have passed on.
    pub(super) fn release(&mut self, bytes: usize) {
        let memory = Arc::clone(&self.memory);
        let mut state = memory.state();
        self.take(&mut state, bytes.min(self.bytes));
        state.wake_next(&memory.limits);
    }

    fn add(&mut self, state: &mut MemoryState, bytes: usize) {
        self.bytes += bytes;
        if !self.is_reserved {
            state.used += bytes;
            state.addresses.entry(self.address).or_default().used += bytes;
        }
    }

    fn take(&mut self, state: &mut MemoryState, bytes: usize) {
        self.bytes -= bytes;
        if !self.is_reserved {
            state.used -= bytes;
            state.addresses.entry(self.address).or_default().used -= bytes;
        }
    }

    /// Moves the body to the reserve, if a place is free there.
    fn reserve(&mut self, state: &mut MemoryState) -> bool {
        if !state.has_reserve(self.address) {
            return false;
        }
        state.addresses.entry(self.address).or_default().has_reserved = true;
        state.reserved_bodies += 1;
        let bytes = self.bytes;
        self.take(state, bytes);
        (self.bytes, self.is_reserved) = (bytes, true);
        true
    }

    fn join_line(&mut self, state: &mut MemoryState, waker: &Waker) {
        let one = state.addresses.entry(self.address).or_default();
        if let Some(known) = self.ticket.and_then(|ticket| one.waiting.get_mut(&ticket)) {
            known.clone_from(waker);
            return;
        }
        // One that was woken in vain keeps its place.
        let ticket = self.ticket.unwrap_or(state.last_ticket + 1);
        state.last_ticket = state.last_ticket.max(ticket);
        one.waiting.insert(ticket, waker.clone());
        self.ticket = Some(ticket);
        state.give_turn(self.address);
    }

    fn leave_line(&mut self, state: &mut MemoryState) {
        let Some(ticket) = self.ticket.take() else { return };
        let Some(one) = state.addresses.get_mut(&self.address) else { return };
        one.waiting.remove(&ticket);
        if one.waiting.is_empty()
            && let Some(turn) = one.turn.take()
        {
            state.turns.remove(&turn);
        }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let memory = Arc::clone(&self.memory);
        let mut state = memory.state();
        self.leave_line(&mut state);
        let bytes = self.bytes;
        self.take(&mut state, bytes);
        state.bodies -= 1;
        if self.is_reserved {
            state.reserved_bodies -= 1;
        }
        if let Some(one) = state.addresses.get_mut(&self.address) {
            one.has_reserved &= !self.is_reserved;
            one.bodies -= 1;
            if one.bodies == 0 {
                // None of its bodies waits: its turn has ended with the last.
                state.addresses.remove(&self.address);
            }
        }
        state.wake_next(&memory.limits);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const MIB: usize = 1 << 20;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x2001_0db8_u128 << 96 | u128::from(number) << 64).to_be_bytes())
    }

    /// Reads on until there is no room. Returns the bytes.
    fn fill(held: &mut HeldMemory, frame: usize) -> usize {
        let (mut cx, before) = (Context::from_waker(Waker::noop()), held.bytes);
        while held.bytes < held.bytes_max() && held.poll_room(&mut cx).is_ready() {
            held.hold(frame);
        }
        held.bytes - before
    }

    #[test]
    fn all_bodies_together_and_those_of_one_address_are_bounded() {
        let memory = BodyMemory::new(64 * MIB);
        let frame = 16 << 10;
        let mut bodies: Vec<HeldMemory> =
            (0..400).filter_map(|_| memory.begin(address(1))).collect();
        let read: usize = bodies.iter_mut().map(|body| fill(body, frame)).sum();
        assert!((3 * MIB..=4 * MIB).contains(&read), "one address: {read}");
        for number in 2..30 {
            bodies.extend((0..40).filter_map(|_| memory.begin(address(number))));
        }
        bodies.iter_mut().for_each(|body| {
            fill(body, frame);
        });
        // Many addresses have used as much as they get, and a newcomer finds room.
        let mut newcomer = memory.begin(address(7_000)).expect("there are not too many");
        assert!(fill(&mut newcomer, 1 << 10) >= 16 << 10);
        for number in 30..300 {
            bodies.extend((0..40).filter_map(|_| memory.begin(address(number))));
        }
        bodies.iter_mut().for_each(|body| {
            fill(body, frame);
        });
        assert!(memory.used() <= 64 * MIB, "{}", memory.used());
        drop((bodies, newcomer));
        assert_eq!(memory.used(), 0);
        let state = memory.state();
        assert!(state.addresses.is_empty() && state.turns.is_empty() && state.bodies == 0);
    }

    #[test]
    fn requests_are_bounded_by_their_number_as_well() {
        let memory = BodyMemory::new(64 * MIB);
        let mut held = Vec::new();
        let mut begin = |number| std::iter::from_fn(|| memory.begin(address(number))).collect();
        let first: Vec<HeldMemory> = begin(1);
        assert_eq!(first.len(), 1_024);
        held.push(first);
        held.extend((2..30).map(&mut begin));
        let all: usize = held.iter().map(Vec::len).sum();
        assert!((15_000..=16_384).contains(&all), "{all}");
        assert!(!begin(1_000).is_empty(), "a newcomer finds room");
    }

    #[test]
    fn one_body_of_an_address_is_always_read_to_its_end() {
        for bytes in [MIB, 64 * MIB] {
            let memory = BodyMemory::new(bytes);
            let frame = 1 << 10;
            let mut bodies: Vec<HeldMemory> =
                (0..200).filter_map(|_| memory.begin(address(1))).collect();
            let mut rounds = 0;
            // All are half read and wait for each other, unless one of them is finished.
            while !bodies.is_empty() {
                for body in &mut bodies {
                    fill(body, frame);
                }
                let before = bodies.len();
                bodies.retain(|body| body.bytes < body.bytes_max());
                assert!(bodies.len() < before, "{before} bodies wait for each other");
                rounds += 1;
            }
            assert!(rounds <= 200);
            assert_eq!(memory.used(), 0);
        }
    }

    #[test]
    fn bodies_that_are_all_half_read_are_woken_one_by_one_for_the_reserve() {
        let memory = BodyMemory::new(MIB);
        let mut bodies: Vec<(Arc<WakeCount>, HeldMemory)> = (0..16)
            .map(|_| (Arc::default(), memory.begin(address(1)).expect("not too many")))
            .collect();
        let poll = |(count, held): &mut (Arc<WakeCount>, HeldMemory)| {
            let waker = Waker::from(Arc::clone(count));
            held.poll_room(&mut Context::from_waker(&waker)).is_ready()
        };
        for body in &mut bodies {
            if poll(body) {
                body.1.hold(9_000);
            }
        }
        // Only those that are woken are polled again, and none but the one in the reserve finishes.
        let mut waiting: Vec<_> = bodies
            .into_iter()
            .filter_map(|mut body| {
                let is_waiting = !poll(&mut body);
                is_waiting.then_some(body)
            })
            .collect();
        while !waiting.is_empty() {
            let next = waiting.iter().position(|(count, _)| count.0.load(Ordering::Relaxed) > 0);
            let mut body = waiting.remove(next.expect("one of them is woken"));
            assert!(poll(&mut body));
        }
    }

    #[test]
    fn a_body_that_waits_is_woken_when_there_is_room_and_wakes_the_next() {
        let memory = BodyMemory::new(64 * MIB);
        let mut holder: Vec<HeldMemory> =
            (0..16).filter_map(|_| memory.begin(address(1))).collect();
        holder.iter_mut().for_each(|body| {
            fill(body, 1 << 10);
        });
        let mut waiting: Vec<(Arc<WakeCount>, HeldMemory)> = (0..20)
            .map(|_| (Arc::default(), memory.begin(address(1)).expect("not too many")))
            .collect();
        let poll = |(count, held): &mut (Arc<WakeCount>, HeldMemory)| {
            let waker = Waker::from(Arc::clone(count));
            held.poll_room(&mut Context::from_waker(&waker)).is_ready()
        };
        assert!(waiting.iter_mut().all(|one| !poll(one)));
        drop(waiting.remove(3));
        drop(holder);
        let mut woken = 0;
        while let Some(next) =
            waiting.iter().position(|(count, _)| count.0.load(Ordering::Relaxed) > 0)
        {
            woken += 1;
            let mut one = waiting.remove(next);
            match woken % 2 {
                // It leaves although it was woken: the next must not wait for it.
                0 => drop(one),
                _ => assert!(poll(&mut one)),
            }
        }
        assert_eq!(woken, 19, "each wakes the next");
    }
}
