//! The fair queue as its documentation has it, without any structure: each question looks at all
//! waiters.

use std::collections::BTreeMap;

/// A waiter of the model.
#[derive(Clone, Debug)]
pub(crate) struct NaiveWaiter {
    pub(crate) id: u64,
    pub(crate) flow: u64,
    pub(crate) units: u64,
    pub(crate) thousandths: u64,
    pub(crate) deadline_us: u64,
}

impl NaiveWaiter {
    /// Virtual time of its service, in 2^−32 units.
    fn stride(&self) -> u128 {
        let exact = u128::from(self.units.max(1)) * 1_000 * (1 << 32);
        let rounded_down = exact / u128::from(self.thousandths);
        rounded_down + u128::from(!exact.is_multiple_of(u128::from(self.thousandths)))
    }

    fn expires_ms(&self) -> u64 {
        self.deadline_us / 1_000 + u64::from(!self.deadline_us.is_multiple_of(1_000))
    }
}

/// The turn of a flow's head.
#[derive(Clone, Debug)]
struct NaiveTurn {
    start: u128,
    tag: u128,
    /// Number of turns given before this one: of equal tags the earlier is served first.
    order: u64,
    /// Virtual time that each other flow was served since then, without its first service.
    passed_by: BTreeMap<u64, u128>,
}

/// The model.
#[derive(Default)]
pub(crate) struct NaiveFairQueue {
    /// In order of arrival.
    waiters: Vec<NaiveWaiter>,
    turns: BTreeMap<u64, NaiveTurn>,
    virtual_time: u128,
    turns_given: u64,
}

impl NaiveFairQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn flow_len(&self, flow: u64) -> usize {
        self.waiters.iter().filter(|waiter| waiter.flow == flow).count()
    }

    pub(crate) fn flows(&self) -> Vec<u64> {
        self.turns.keys().copied().collect()
    }

    pub(crate) fn longest(&self) -> usize {
        self.flows().into_iter().map(|flow| self.flow_len(flow)).max().unwrap_or(0)
    }

    pub(crate) fn newest_of(&self, flow: u64) -> Option<&NaiveWaiter> {
        self.waiters.iter().rev().find(|waiter| waiter.flow == flow)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&NaiveWaiter> {
        self.waiters.iter().find(|waiter| waiter.id == id)
    }

    pub(crate) fn next_expiry_ms(&self) -> Option<u64> {
        self.waiters.iter().map(NaiveWaiter::expires_ms).min()
    }

    pub(crate) fn head_of(&self, flow: u64) -> Option<&NaiveWaiter> {
        self.waiters.iter().find(|waiter| waiter.flow == flow)
    }

    pub(crate) fn head(&self) -> Option<&NaiveWaiter> {
        let first = self.turns.iter().min_by_key(|(_, turn)| (turn.tag, turn.order));
        first.and_then(|(&flow, _)| self.head_of(flow))
    }

    pub(crate) fn push(&mut self, waiter: NaiveWaiter) {
        let (flow, is_new) = (waiter.flow, self.flow_len(waiter.flow) == 0);
        self.waiters.push(waiter);
        if is_new {
            self.give_turn(flow, self.virtual_time);
        }
    }

    fn give_turn(&mut self, flow: u64, start: u128) {
        let stride = self.head_of(flow).expect("the flow has a head").stride();
        let tag = (start + stride).max(self.virtual_time);
        let turn = NaiveTurn { start, tag, order: self.turns_given, passed_by: BTreeMap::new() };
        self.turns_given += 1;
        self.turns.insert(flow, turn);
    }

    /// Serves the head, and checks what the others had to wait for.
    pub(crate) fn pop(&mut self) -> Option<NaiveWaiter> {
        let head = self.head()?.clone();
        self.check_nobody_starves(&head);
        self.serve(head.id)
    }

    /// Serves the head of a flow, also if another flow is next.
    pub(crate) fn serve(&mut self, id: u64) -> Option<NaiveWaiter> {
        let tag = self.turns[&self.get(id)?.flow].tag;
        self.virtual_time = self.virtual_time.max(tag);
        self.leave(id, Some(self.virtual_time))
    }

    /// The bound of the documentation: of each other flow one service, and then as much virtual
    /// time as the waiting head itself takes.
    fn check_nobody_starves(&mut self, served: &NaiveWaiter) {
        let own: BTreeMap<u64, u128> =
            self.turns.keys().map(|&flow| (flow, self.head_of(flow).unwrap().stride())).collect();
        for (flow, turn) in self.turns.iter_mut().filter(|(flow, _)| **flow != served.flow) {
            match turn.passed_by.get_mut(&served.flow) {
                None => _ = turn.passed_by.insert(served.flow, 0),
                Some(passed) => {
                    *passed += served.stride();
                    assert!(*passed <= own[flow], "flow {flow} waits too long for {served:?}");
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<NaiveWaiter> {
        self.leave(id, None)
    }

    pub(crate) fn expire(&mut self, now_us: u64) -> Option<NaiveWaiter> {
        let first = self.waiters.iter().min_by_key(|waiter| waiter.expires_ms())?;
        (first.expires_ms() * 1_000 <= now_us).then_some(first.id).and_then(|id| self.remove(id))
    }

    /// Takes a waiter out; its successor begins where it ended, or would have begun.
    fn leave(&mut self, id: u64, ended: Option<u128>) -> Option<NaiveWaiter> {
        let at = self.waiters.iter().position(|waiter| waiter.id == id)?;
        let flow = self.waiters[at].flow;
        let was_head = self.head_of(flow).is_some_and(|head| head.id == id);
        let waiter = self.waiters.remove(at);
        if was_head {
            let turn = self.turns.remove(&flow).expect("a flow has a turn");
            if self.flow_len(flow) > 0 {
                self.give_turn(flow, ended.unwrap_or(turn.start));
            }
        }
        if self.waiters.is_empty() {
            self.virtual_time = 0;
        }
        Some(waiter)
    }
}
