//! Patrol: closes connections that take too long, and all of them when the server stops.
//!
//! Each connection keeps a `Pulse`: what it is doing, and for how many rounds. One task per worker
//! makes a round every so often and ages the pulses. So a request sets no timer and reads no clock,
//! and a slow connection is noticed at most one round late.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// How patient the server is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For the head of a request to arrive completely.
    pub(crate) head: Duration,
    /// For the next request on an open connection.
    pub(crate) idle: Duration,
    /// For the body of a request.
    pub(crate) body: Duration,
}

impl Patience {
    /// Between two rounds.
    pub(crate) fn round(&self) -> Duration {
        (self.head / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn rounds(&self, wait: Duration) -> u32 {
        let rounds = wait.as_micros().div_ceil(self.round().as_micros());
        u32::try_from(rounds).unwrap_or(u32::MAX)
    }
}

/// What a connection is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    CarryOn,
    /// Finish what has begun and take nothing more.
    Finish,
    /// Close at once.
    Abort,
}

/// What one connection is doing.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Requests being answered,
    active: AtomicU32,
    /// and those of them whose body is waited for.
    receiving: AtomicU32,
    /// A request has been answered before.
    used: AtomicBool,
    /// Bytes have come since the last answer: the head of a request, unless it is HTTP/2.
    heard: AtomicBool,
    http2: AtomicBool,
    /// Rounds since something changed.
    rounds: AtomicU32,
    /// Replies that the peer has not taken, by the period in which they began to wait: this one, or
    /// the one before. A period is as long as the patience for the next request.
    waiting: [AtomicU32; 2],
    /// Which of the two is this period's, and the rounds that it has had.
    period: AtomicUsize,
    period_rounds: AtomicU32,
    order: AtomicU8,
    /// Wakes the connection's task, which keeps one waker all its life.
    waker: OnceLock<Waker>,
}

impl Pulse {
    /// Bytes have come in.
    #[inline]
    pub(crate) fn hear(&self) {
        if !self.heard.load(Relaxed) {
            self.heard.store(true, Relaxed);
            self.rounds.store(0, Relaxed);
        }
    }

    /// A request has come in.
    #[inline]
    pub(crate) fn begin(&self, http2: bool) {
        self.active.fetch_add(1, Relaxed);
        self.rounds.store(0, Relaxed);
        if http2 {
            self.http2.store(true, Relaxed);
        }
    }

    /// It has been answered.
    #[inline]
    pub(crate) fn end(&self) {
        self.used.store(true, Relaxed);
        self.heard.store(false, Relaxed);
        self.rounds.store(0, Relaxed);
        self.active.fetch_sub(1, Relaxed);
    }

    /// The body of a request is waited for.
    pub(super) fn wait_for_body(&self) {
        self.receiving.fetch_add(1, Relaxed);
    }

    /// More of it has come, or nobody wants it any longer.
    pub(super) fn go_on_with_body(&self) {
        self.receiving.fetch_sub(1, Relaxed);
    }

    /// A reply begins to wait; since when, for [`taken`](Pulse::taken).
    #[inline]
    pub(crate) fn reply(&self) -> usize {
        let period = self.period.load(Relaxed);
        self.waiting[period].fetch_add(1, Relaxed);
        period
    }

    /// It has been taken, or is not wanted any longer.
    #[inline]
    pub(crate) fn taken(&self, period: usize) {
        self.waiting[period].fetch_sub(1, Relaxed);
    }

    #[inline]
    pub(crate) fn order(&self) -> Order {
        match self.order.load(Relaxed) {
            0 => Order::CarryOn,
            1 => Order::Finish,
            _ => Order::Abort,
        }
    }

    /// Remembers whom to wake; only the first time counts.
    #[inline]
    pub(crate) fn wake_with(&self, waker: &Waker) {
        if self.waker.get().is_none() {
            let _ = self.waker.set(waker.clone());
            // With the one in `give`: whoever gives an order from another thread finds this waker, or the
            // order is seen by whoever looks after this.
            fence(SeqCst);
        }
    }

    /// How soon this connection makes room for another, the smallest first: those that never asked
    /// anything, then those that were quiet for longest, then those whose replies are not taken, then those
    /// whose requests are not all there. `None`: a request is being answered, so it does not.
    pub(super) fn eviction_rank(&self) -> Option<(bool, bool, bool, Reverse<u32>)> {
        let active = self.active.load(Relaxed);
        if active > self.receiving.load(Relaxed) {
            return None;
        }
        let reply_waits = self.waiting.iter().any(|waiting| waiting.load(Relaxed) > 0);
        let used = self.used.load(Relaxed);
        Some((active > 0, reply_waits, used, Reverse(self.rounds.load(Relaxed))))
    }

    /// Closes the connection at once, from any thread.
    pub(super) fn evict(&self) {
        self.give(Order::Abort);
    }

    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Relaxed);
        fence(SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Whatever a peer does meanwhile, more requests or a reply byte by byte: no reply waits for more
    /// than two periods.
    fn age_replies(&self, patience: &Patience) {
        let rounds = self.period_rounds.load(Relaxed) + 1;
        if rounds <= patience.rounds(patience.idle) {
            return self.period_rounds.store(rounds, Relaxed);
        }
        let before = 1 - self.period.load(Relaxed);
        if self.waiting[before].load(Relaxed) > 0 {
            return self.give(Order::Abort);
        }
        self.period.store(before, Relaxed);
        self.period_rounds.store(0, Relaxed);
    }

    fn age(&self, patience: &Patience) {
        self.age_replies(patience);
        if self.active.load(Relaxed) > 0 {
            return;
        }
        let rounds = self.rounds.fetch_add(1, Relaxed) + 1;
        let used = self.used.load(Relaxed);
        let head_has_begun = self.heard.load(Relaxed) && !self.http2.load(Relaxed);
        if !used || head_has_begun {
            if rounds > patience.rounds(patience.head) {
                self.give(Order::Abort);
            }
        } else if rounds > patience.rounds(patience.idle) {
            self.give(Order::Finish);
            // A peer that does not read keeps its connection from finishing.
            if rounds > patience.rounds(patience.idle + patience.head) {
                self.give(Order::Abort);
            }
        }
    }
}

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct Patrol {
    beat: Mutex<Beat>,
}

#[derive(Default)]
struct Beat {
    last_id: u64,
    /// Bound: the cap on connections, since each entry is one.
    pulses: HashMap<u64, Arc<Pulse>>,
    /// What newcomers are told.
    stopping: bool,
}

impl Patrol {
    /// Watches a connection until the guard is dropped.
    pub(crate) fn watch(self: &Arc<Patrol>, pulse: Arc<Pulse>) -> Watched {
        let mut beat = self.beat();
        beat.last_id += 1;
        let id = beat.last_id;
        if beat.stopping {
            pulse.give(Order::Finish);
        }
        beat.pulses.insert(id, pulse.clone());
        drop(beat);
        Watched { patrol: self.clone(), id, pulse }
    }

    /// One round.
    pub(crate) fn round(&self, patience: &Patience) {
        for pulse in self.beat().pulses.values() {
            pulse.age(patience);
        }
    }

    /// Tells connections of HTTP/2 to finish: their peers lose nothing, the protocol says where
    /// it ended.
    pub(crate) fn finish_http2(&self) {
        let beat = self.beat();
        for pulse in beat.pulses.values().filter(|pulse| pulse.http2.load(Relaxed)) {
            pulse.give(Order::Finish);
        }
    }

    /// Tells all connections to finish, and those to come.
    pub(crate) fn finish_all(&self) {
        let mut beat = self.beat();
        beat.stopping = true;
        for pulse in beat.pulses.values() {
            pulse.give(Order::Finish);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.beat().pulses.len()
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection under watch.
pub(crate) struct Watched {
    patrol: Arc<Patrol>,
    id: u64,
    pub(crate) pulse: Arc<Pulse>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.patrol.beat().pulses.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(8),
        idle: Duration::from_secs(60),
        body: Duration::from_secs(8),
    };

    /// Rounds until each order is given, at most 100.
    fn rounds_until(patrol: &Patrol, pulse: &Pulse, wanted: Order) -> u32 {
        (1..=100)
            .find(|_| {
                patrol.round(&PATIENCE);
                pulse.order() == wanted
            })
            .unwrap_or(0)
    }

    #[test]
    fn slow_heads_and_idle_connections_are_closed_and_busy_ones_are_not() {
        let patrol = Arc::new(Patrol::default());
        let watched = patrol.watch(Arc::default());
        let pulse = watched.pulse.clone();
        assert_eq!(rounds_until(&patrol, &pulse, Order::Abort), 9, "says nothing");

        let watched = patrol.watch(Arc::default());
        let pulse = watched.pulse.clone();
        for _ in 0..8 {
            patrol.round(&PATIENCE);
            // Drop by drop does not help: it began with the first byte.
            pulse.hear();
        }
        pulse.begin(false);
        assert_eq!(rounds_until(&patrol, &pulse, Order::Abort), 0, "is being answered");
        pulse.end();
        assert_eq!(rounds_until(&patrol, &pulse, Order::Finish), 61, "idle");
        assert_eq!(rounds_until(&patrol, &pulse, Order::Abort), 8, "does not finish");

        let watched = patrol.watch(Arc::default());
        let pulse = watched.pulse.clone();
        pulse.hear();
        pulse.begin(false);
        pulse.end();
        pulse.hear();
        assert_eq!(rounds_until(&patrol, &pulse, Order::Abort), 9, "a slow second head");
        drop(watched);
        assert_eq!(patrol.len(), 2);
    }

    #[test]
    fn replies_that_nobody_takes_end_a_connection_that_goes_on_asking() {
        // Whether the first reply is taken | the rounds until it ends, 0: it does not
        for (takes, ends) in [(true, 0), (false, 122)] {
            let patrol = Arc::new(Patrol::default());
            let watched = patrol.watch(Arc::default());
            let pulse = &watched.pulse;
            let first = pulse.reply();
            if takes {
                pulse.taken(first);
            }
            let mut last = pulse.reply();
            let ended = (1..=1_000).find(|_| {
                pulse.begin(true);
                pulse.taken(std::mem::replace(&mut last, pulse.reply()));
                pulse.end();
                patrol.round(&PATIENCE);
                pulse.order() == Order::Abort
            });
            assert_eq!(ended.unwrap_or(0), ends);
        }
    }

    #[test]
    fn who_makes_room_first() {
        let [silent, quiet, fresh, stuck, slow, busy] = [(); 6].map(|()| Pulse::default());
        for pulse in [&quiet, &fresh, &stuck, &slow, &busy] {
            pulse.begin(false);
            pulse.end();
        }
        quiet.age(&PATIENCE);
        stuck.reply();
        stuck.age(&PATIENCE);
        for pulse in [&slow, &busy] {
            pulse.begin(false);
            assert_eq!(pulse.eviction_rank(), None);
        }
        slow.wait_for_body();
        let order =
            [&silent, &quiet, &fresh, &stuck, &slow].map(|pulse| pulse.eviction_rank().unwrap());
        assert!(order.is_sorted(), "{order:?}");
        slow.go_on_with_body();
        assert_eq!(slow.eviction_rank(), None);
    }

    #[test]
    fn who_comes_while_all_finish_finishes_too() {
        let patrol = Arc::new(Patrol::default());
        let before = patrol.watch(Arc::default());
        patrol.finish_http2();
        assert_eq!(before.pulse.order(), Order::CarryOn);
        patrol.finish_all();
        assert_eq!(before.pulse.order(), Order::Finish);
        assert_eq!(patrol.watch(Arc::default()).pulse.order(), Order::Finish);
    }
}
