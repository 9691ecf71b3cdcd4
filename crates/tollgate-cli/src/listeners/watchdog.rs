//! Patrol: closes connections that take too long, and all of them when the server stops.
//!
//! Each connection keeps a `ConnectionActivity`: what it is doing, and for how many rounds. One task per worker
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
pub(crate) struct ConnectionTimeouts {
    /// For the head of a request to arrive completely.
    pub(crate) head: Duration,
    /// For the next request on an open connection.
    pub(crate) idle: Duration,
    /// For the body of a request.
    pub(crate) body: Duration,
}

impl ConnectionTimeouts {
    /// Between two rounds.
    pub(crate) fn check_interval(&self) -> Duration {
        (self.head / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn rounds_in(&self, wait: Duration) -> u32 {
        let rounds = wait.as_micros().div_ceil(self.check_interval().as_micros());
        u32::try_from(rounds).unwrap_or(u32::MAX)
    }
}

/// What a connection is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOrder {
    Continue,
    /// Finish what has begun and take nothing more.
    Finish,
    /// Close at once.
    Abort,
}

/// What one connection is doing.
#[derive(Default)]
pub(crate) struct ConnectionActivity {
    /// Requests being answered,
    active_requests: AtomicU32,
    /// and those of them whose body is waited for.
    awaited_bodies: AtomicU32,
    /// A request has been answered before.
    has_answered: AtomicBool,
    /// Bytes have come since the last answer: the head of a request, unless it is HTTP/2.
    has_new_bytes: AtomicBool,
    http2: AtomicBool,
    /// Rounds since something changed.
    idle_rounds: AtomicU32,
    /// Replies that the peer has not taken, by the period in which they began to wait: this one, or
    /// the one before. A period is as long as the patience for the next request.
    waiting_replies: [AtomicU32; 2],
    /// Which of the two is this period's, and the rounds that it has had.
    period: AtomicUsize,
    period_rounds: AtomicU32,
    order: AtomicU8,
    /// Wakes the connection's task, which keeps one waker all its life.
    waker: OnceLock<Waker>,
}

impl ConnectionActivity {
    /// Bytes have come in.
    #[inline]
    pub(crate) fn bytes_received(&self) {
        if !self.has_new_bytes.load(Relaxed) {
            self.has_new_bytes.store(true, Relaxed);
            self.idle_rounds.store(0, Relaxed);
        }
    }

    /// A request has come in.
    #[inline]
    pub(crate) fn request_started(&self, http2: bool) {
        self.active_requests.fetch_add(1, Relaxed);
        self.idle_rounds.store(0, Relaxed);
        if http2 {
            self.http2.store(true, Relaxed);
        }
    }

    /// It has been answered.
    #[inline]
    pub(crate) fn request_ended(&self) {
        self.has_answered.store(true, Relaxed);
        self.has_new_bytes.store(false, Relaxed);
        self.idle_rounds.store(0, Relaxed);
        self.active_requests.fetch_sub(1, Relaxed);
    }

    /// The body of a request is waited for.
    pub(super) fn body_wait_started(&self) {
        self.awaited_bodies.fetch_add(1, Relaxed);
    }

    /// More of it has come, or nobody wants it any longer.
    pub(super) fn body_wait_ended(&self) {
        self.awaited_bodies.fetch_sub(1, Relaxed);
    }

    /// A reply begins to wait; since when, for [`reply_sent`](ConnectionActivity::reply_sent).
    #[inline]
    pub(crate) fn reply_queued(&self) -> usize {
        let period = self.period.load(Relaxed);
        self.waiting_replies[period].fetch_add(1, Relaxed);
        period
    }

    /// It has been taken, or is not wanted any longer.
    #[inline]
    pub(crate) fn reply_sent(&self, period: usize) {
        self.waiting_replies[period].fetch_sub(1, Relaxed);
    }

    #[inline]
    pub(crate) fn order(&self) -> ConnectionOrder {
        match self.order.load(Relaxed) {
            0 => ConnectionOrder::Continue,
            1 => ConnectionOrder::Finish,
            _ => ConnectionOrder::Abort,
        }
    }

    /// Remembers whom to wake; only the first time counts.
    #[inline]
    pub(crate) fn set_waker(&self, waker: &Waker) {
        if self.waker.get().is_none() {
            let _ = self.waker.set(waker.clone());
            // With the one in `send_order`: whoever gives an order from another thread finds this waker, or the
            // order is seen by whoever looks after this.
            fence(SeqCst);
        }
    }

    /// How soon this connection makes room for another, the smallest first: those that never asked
    /// anything, then those that were quiet for longest, then those whose replies are not taken, then those
    /// whose requests are not all there. `None`: a request is being answered, so it does not.
    pub(super) fn eviction_rank(&self) -> Option<(bool, bool, bool, Reverse<u32>)> {
        let active = self.active_requests.load(Relaxed);
        if active > self.awaited_bodies.load(Relaxed) {
            return None;
        }
        let reply_waits = self.waiting_replies.iter().any(|waiting| waiting.load(Relaxed) > 0);
        let used = self.has_answered.load(Relaxed);
        Some((active > 0, reply_waits, used, Reverse(self.idle_rounds.load(Relaxed))))
    }

    /// Closes the connection at once, from any thread.
    pub(super) fn evict(&self) {
        self.send_order(ConnectionOrder::Abort);
    }

    fn send_order(&self, order: ConnectionOrder) {
        self.order.fetch_max(order as u8, Relaxed);
        fence(SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Whatever a peer does meanwhile, more requests or a reply byte by byte: no reply waits for more
    /// than two periods.
    fn check_reply_timeout(&self, patience: &ConnectionTimeouts) {
        let rounds = self.period_rounds.load(Relaxed) + 1;
        if rounds <= patience.rounds_in(patience.idle) {
            return self.period_rounds.store(rounds, Relaxed);
        }
        let before = 1 - self.period.load(Relaxed);
        if self.waiting_replies[before].load(Relaxed) > 0 {
            return self.send_order(ConnectionOrder::Abort);
        }
        self.period.store(before, Relaxed);
        self.period_rounds.store(0, Relaxed);
    }

    fn check_timeouts(&self, patience: &ConnectionTimeouts) {
        self.check_reply_timeout(patience);
        if self.active_requests.load(Relaxed) > 0 {
            return;
        }
        let rounds = self.idle_rounds.fetch_add(1, Relaxed) + 1;
        let used = self.has_answered.load(Relaxed);
        let head_has_begun = self.has_new_bytes.load(Relaxed) && !self.http2.load(Relaxed);
        if !used || head_has_begun {
            if rounds > patience.rounds_in(patience.head) {
                self.send_order(ConnectionOrder::Abort);
            }
        } else if rounds > patience.rounds_in(patience.idle) {
            self.send_order(ConnectionOrder::Finish);
            // A peer that does not read keeps its connection from finishing.
            if rounds > patience.rounds_in(patience.idle + patience.head) {
                self.send_order(ConnectionOrder::Abort);
            }
        }
    }
}

/// The connections of one worker.
#[derive(Default)]
pub(crate) struct ConnectionWatchdog {
    watched: Mutex<WatchedConnections>,
}

#[derive(Default)]
struct WatchedConnections {
    last_id: u64,
    /// Bound: the cap on connections, since each entry is one.
    activities: HashMap<u64, Arc<ConnectionActivity>>,
    /// What newcomers are told.
    stopping: bool,
}

impl ConnectionWatchdog {
    /// Watches a connection until the guard is dropped.
    pub(crate) fn watch(
        self: &Arc<ConnectionWatchdog>,
        pulse: Arc<ConnectionActivity>,
    ) -> WatchGuard {
        let mut beat = self.lock_watched();
        beat.last_id += 1;
        let id = beat.last_id;
        if beat.stopping {
            pulse.send_order(ConnectionOrder::Finish);
        }
        beat.activities.insert(id, pulse.clone());
        drop(beat);
        WatchGuard { watchdog: self.clone(), id, activity: pulse }
    }

    /// One round.
    pub(crate) fn check_all(&self, patience: &ConnectionTimeouts) {
        for pulse in self.lock_watched().activities.values() {
            pulse.check_timeouts(patience);
        }
    }

    /// Tells connections of HTTP/2 to finish: their peers lose nothing, the protocol says where
    /// it ended.
    pub(crate) fn finish_http2(&self) {
        let beat = self.lock_watched();
        for pulse in beat.activities.values().filter(|pulse| pulse.http2.load(Relaxed)) {
            pulse.send_order(ConnectionOrder::Finish);
        }
    }

    /// Tells all connections to finish, and those to come.
    pub(crate) fn finish_all(&self) {
        let mut beat = self.lock_watched();
        beat.stopping = true;
        for pulse in beat.activities.values() {
            pulse.send_order(ConnectionOrder::Finish);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock_watched().activities.len()
    }

    fn lock_watched(&self) -> MutexGuard<'_, WatchedConnections> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection under watch.
pub(crate) struct WatchGuard {
    watchdog: Arc<ConnectionWatchdog>,
    id: u64,
    pub(crate) activity: Arc<ConnectionActivity>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.watchdog.lock_watched().activities.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        head: Duration::from_secs(8),
        idle: Duration::from_secs(60),
        body: Duration::from_secs(8),
    };

    /// Rounds until each order is given, at most 100.
    fn rounds_until(
        patrol: &ConnectionWatchdog,
        pulse: &ConnectionActivity,
        wanted: ConnectionOrder,
    ) -> u32 {
        (1..=100)
            .find(|_| {
                patrol.check_all(&TIMEOUTS);
                pulse.order() == wanted
            })
            .unwrap_or(0)
    }

    #[test]
    fn slow_heads_and_idle_connections_are_closed_and_busy_ones_are_not() {
        let patrol = Arc::new(ConnectionWatchdog::default());
        let watched = patrol.watch(Arc::default());
        let pulse = watched.activity.clone();
        assert_eq!(rounds_until(&patrol, &pulse, ConnectionOrder::Abort), 9, "says nothing");

        let watched = patrol.watch(Arc::default());
        let pulse = watched.activity.clone();
        for _ in 0..8 {
            patrol.check_all(&TIMEOUTS);
            // Drop by drop does not help: it began with the first byte.
            pulse.bytes_received();
        }
        pulse.request_started(false);
        assert_eq!(rounds_until(&patrol, &pulse, ConnectionOrder::Abort), 0, "is being answered");
        pulse.request_ended();
        assert_eq!(rounds_until(&patrol, &pulse, ConnectionOrder::Finish), 61, "idle");
        assert_eq!(rounds_until(&patrol, &pulse, ConnectionOrder::Abort), 8, "does not finish");

        let watched = patrol.watch(Arc::default());
        let pulse = watched.activity.clone();
        pulse.bytes_received();
        pulse.request_started(false);
        pulse.request_ended();
        pulse.bytes_received();
        assert_eq!(rounds_until(&patrol, &pulse, ConnectionOrder::Abort), 9, "a slow second head");
        drop(watched);
        assert_eq!(patrol.len(), 2);
    }

    #[test]
    fn replies_that_nobody_takes_end_a_connection_that_goes_on_asking() {
        // Whether the first reply is taken | the rounds until it ends, 0: it does not
        for (takes, ends) in [(true, 0), (false, 122)] {
            let patrol = Arc::new(ConnectionWatchdog::default());
            let watched = patrol.watch(Arc::default());
            let pulse = &watched.activity;
            let first = pulse.reply_queued();
            if takes {
                pulse.reply_sent(first);
            }
            let mut last = pulse.reply_queued();
            let ended = (1..=1_000).find(|_| {
                pulse.request_started(true);
                pulse.reply_sent(std::mem::replace(&mut last, pulse.reply_queued()));
                pulse.request_ended();
                patrol.check_all(&TIMEOUTS);
                pulse.order() == ConnectionOrder::Abort
            });
            assert_eq!(ended.unwrap_or(0), ends);
        }
    }

    #[test]
    fn who_makes_room_first() {
        let [silent, quiet, fresh, stuck, slow, busy] =
            [(); 6].map(|()| ConnectionActivity::default());
        for pulse in [&quiet, &fresh, &stuck, &slow, &busy] {
            pulse.request_started(false);
            pulse.request_ended();
        }
        quiet.check_timeouts(&TIMEOUTS);
        stuck.reply_queued();
        stuck.check_timeouts(&TIMEOUTS);
        for pulse in [&slow, &busy] {
            pulse.request_started(false);
            assert_eq!(pulse.eviction_rank(), None);
        }
        slow.body_wait_started();
        let order =
            [&silent, &quiet, &fresh, &stuck, &slow].map(|pulse| pulse.eviction_rank().unwrap());
        assert!(order.is_sorted(), "{order:?}");
        slow.body_wait_ended();
        assert_eq!(slow.eviction_rank(), None);
    }

    #[test]
    fn who_comes_while_all_finish_finishes_too() {
        let patrol = Arc::new(ConnectionWatchdog::default());
        let before = patrol.watch(Arc::default());
        patrol.finish_http2();
        assert_eq!(before.activity.order(), ConnectionOrder::Continue);
        patrol.finish_all();
        assert_eq!(before.activity.order(), ConnectionOrder::Finish);
        assert_eq!(patrol.watch(Arc::default()).activity.order(), ConnectionOrder::Finish);
    }
}
