//! The watchdog: closes connections that take too long, and all of them when the server stops.
//!
//! Each connection records its state in a `ConnectionActivity`. One task per worker checks all of them at a fixed interval
//! and counts the rounds without progress. So a request sets no timer and reads no clock, and a slow connection is
//! noticed at most one round late.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Timeouts of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// Time for the complete head of a request to arrive.
    pub(crate) head: Duration,
    /// Time until the next request on an open connection.
    pub(crate) idle: Duration,
    /// Time for the complete body of a request to arrive.
    pub(crate) body: Duration,
}

impl ConnectionTimeouts {
    /// Interval of the checks.
    pub(crate) fn check_interval(&self) -> Duration {
        (self.head / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn rounds_in(&self, wait: Duration) -> u32 {
        let rounds = wait.as_micros().div_ceil(self.check_interval().as_micros());
        u32::try_from(rounds).unwrap_or(u32::MAX)
    }
}

/// Order to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOrder {
    Continue,
    /// Finish the current requests and accept no more.
    Finish,
    /// Close at once.
    Abort,
}

/// State of one connection, for the watchdog.
#[derive(Default)]
pub(crate) struct ConnectionActivity {
    /// Requests that are being answered.
    active_requests: AtomicU32,
    /// Requests of these whose body is still arriving.
    awaited_bodies: AtomicU32,
    /// At least one request has been answered.
    has_answered: AtomicBool,
    /// Bytes have arrived since the last answer: the head of a request, except in HTTP/2.
    has_new_bytes: AtomicBool,
    http2: AtomicBool,
    /// Rounds since the last change.
    idle_rounds: AtomicU32,
    /// Unsent replies, by the period in which they began to wait: the current or the previous one. A period is as long as
    /// the idle timeout.
    waiting_replies: [AtomicU32; 2],
    /// Index of the current period in `waiting_replies`.
    period: AtomicUsize,
    /// Rounds of the current period so far.
    period_rounds: AtomicU32,
    order: AtomicU8,
    /// Waker of the connection's task, which never changes.
    waker: OnceLock<Waker>,
}

impl ConnectionActivity {
    /// Records that bytes have arrived.
    #[inline]
    pub(crate) fn bytes_received(&self) {
        if !self.has_new_bytes.load(Relaxed) {
            self.has_new_bytes.store(true, Relaxed);
            self.idle_rounds.store(0, Relaxed);
        }
    }

    /// Records the start of a request.
    #[inline]
    pub(crate) fn request_started(&self, http2: bool) {
        self.active_requests.fetch_add(1, Relaxed);
        self.idle_rounds.store(0, Relaxed);
        if http2 {
            self.http2.store(true, Relaxed);
        }
    }

    /// Records that a request has been answered.
    #[inline]
    pub(crate) fn request_ended(&self) {
        self.request_answered();
        self.active_requests.fetch_sub(1, Relaxed);
    }

    /// Records a request that was answered as soon as it had arrived.
    #[inline]
    pub(super) fn request_answered(&self) {
        self.has_answered.store(true, Relaxed);
        self.has_new_bytes.store(false, Relaxed);
        self.idle_rounds.store(0, Relaxed);
    }

    /// Records that the body of a request is awaited.
    pub(super) fn body_wait_started(&self) {
        self.awaited_bodies.fetch_add(1, Relaxed);
    }

    /// Records that the wait for a body is over.
    pub(super) fn body_wait_ended(&self) {
        self.awaited_bodies.fetch_sub(1, Relaxed);
    }

    /// Records an unsent reply. Returns its period, for [`reply_sent`](ConnectionActivity::reply_sent).
    #[inline]
    pub(crate) fn reply_queued(&self) -> usize {
        let period = self.period.load(Relaxed);
        self.waiting_replies[period].fetch_add(1, Relaxed);
        period
    }

    /// Records that a reply has been sent or dropped.
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

    /// Sets the waker; only the first call counts.
    #[inline]
    pub(crate) fn set_waker(&self, waker: &Waker) {
        if self.waker.get().is_none() {
            let _ = self.waker.set(waker.clone());
            // Pairs with the fence in `send_order`: either that thread finds this waker, or this task sees the order.
            fence(SeqCst);
        }
    }

    /// Rank for eviction, the smallest first: connections that never sent a request, then the longest idle ones, then
    /// those that do not read their replies, then those with incomplete requests. `None` while a request is being
    /// answered: then it is not evicted.
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

    /// Aborts the connection if a reply waits for more than two periods, even if the peer sends more requests or reads
    /// byte by byte meanwhile.
    fn check_reply_timeout(&self, timeouts: &ConnectionTimeouts) {
        let rounds = self.period_rounds.load(Relaxed) + 1;
        if rounds <= timeouts.rounds_in(timeouts.idle) {
            return self.period_rounds.store(rounds, Relaxed);
        }
        let before = 1 - self.period.load(Relaxed);
        if self.waiting_replies[before].load(Relaxed) > 0 {
            return self.send_order(ConnectionOrder::Abort);
        }
        self.period.store(before, Relaxed);
        self.period_rounds.store(0, Relaxed);
    }

    fn check_timeouts(&self, timeouts: &ConnectionTimeouts) {
        self.check_reply_timeout(timeouts);
        if self.active_requests.load(Relaxed) > 0 {
            return;
        }
        let rounds = self.idle_rounds.fetch_add(1, Relaxed) + 1;
        let used = self.has_answered.load(Relaxed);
        let head_has_begun = self.has_new_bytes.load(Relaxed) && !self.http2.load(Relaxed);
        if !used || head_has_begun {
            if rounds > timeouts.rounds_in(timeouts.head) {
                self.send_order(ConnectionOrder::Abort);
            }
        } else if rounds > timeouts.rounds_in(timeouts.idle) {
            self.send_order(ConnectionOrder::Finish);
            // A connection cannot finish if its peer does not read.
            if rounds > timeouts.rounds_in(timeouts.idle + timeouts.head) {
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
    /// True once all connections have to finish: new ones get the same order.
    stopping: bool,
}

impl ConnectionWatchdog {
    /// Watches a connection until the guard is dropped.
    pub(crate) fn watch(
        self: &Arc<ConnectionWatchdog>,
        activity: Arc<ConnectionActivity>,
    ) -> WatchGuard {
        let mut watched = self.lock_watched();
        watched.last_id += 1;
        let id = watched.last_id;
        if watched.stopping {
            activity.send_order(ConnectionOrder::Finish);
        }
        watched.activities.insert(id, activity.clone());
        drop(watched);
        WatchGuard { watchdog: self.clone(), id, activity }
    }

    /// Checks all connections once.
    pub(crate) fn check_all(&self, timeouts: &ConnectionTimeouts) {
        for activity in self.lock_watched().activities.values() {
            activity.check_timeouts(timeouts);
        }
    }

    /// Orders HTTP/2 connections to finish: no request is lost, because `GOAWAY` names the last one.
    pub(crate) fn finish_http2(&self) {
        let watched = self.lock_watched();
        for activity in watched.activities.values().filter(|activity| activity.http2.load(Relaxed))
        {
            activity.send_order(ConnectionOrder::Finish);
        }
    }

    /// Orders all connections to finish, including later ones.
    pub(crate) fn finish_all(&self) {
        let mut watched = self.lock_watched();
        watched.stopping = true;
        for activity in watched.activities.values() {
            activity.send_order(ConnectionOrder::Finish);
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

/// A watched connection.
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
        watchdog: &ConnectionWatchdog,
        activity: &ConnectionActivity,
        wanted: ConnectionOrder,
    ) -> u32 {
        (1..=100)
            .find(|_| {
                watchdog.check_all(&TIMEOUTS);
                activity.order() == wanted
            })
            .unwrap_or(0)
    }

    #[test]
    fn slow_heads_and_idle_connections_are_closed_and_busy_ones_are_not() {
        let watchdog = Arc::new(ConnectionWatchdog::default());
        let watched = watchdog.watch(Arc::default());
        let activity = watched.activity.clone();
        assert_eq!(rounds_until(&watchdog, &activity, ConnectionOrder::Abort), 9, "says nothing");

        let watched = watchdog.watch(Arc::default());
        let activity = watched.activity.clone();
        for _ in 0..8 {
            watchdog.check_all(&TIMEOUTS);
            // More bytes do not help: the timeout began with the first.
            activity.bytes_received();
        }
        activity.request_started(false);
        assert_eq!(
            rounds_until(&watchdog, &activity, ConnectionOrder::Abort),
            0,
            "is being answered"
        );
        activity.request_ended();
        assert_eq!(rounds_until(&watchdog, &activity, ConnectionOrder::Finish), 61, "idle");
        assert_eq!(
            rounds_until(&watchdog, &activity, ConnectionOrder::Abort),
            8,
            "does not finish"
        );

        let watched = watchdog.watch(Arc::default());
        let activity = watched.activity.clone();
        activity.bytes_received();
        activity.request_started(false);
        activity.request_ended();
        activity.bytes_received();
        assert_eq!(
            rounds_until(&watchdog, &activity, ConnectionOrder::Abort),
            9,
            "a slow second head"
        );
        drop(watched);
        assert_eq!(watchdog.len(), 2);
    }

    #[test]
    fn unread_replies_end_a_connection_that_sends_more_requests() {
        // The first reply is read | rounds until the connection ends, 0: never
        for (takes, ends) in [(true, 0), (false, 122)] {
            let watchdog = Arc::new(ConnectionWatchdog::default());
            let watched = watchdog.watch(Arc::default());
            let activity = &watched.activity;
            let first = activity.reply_queued();
            if takes {
                activity.reply_sent(first);
            }
            let mut last = activity.reply_queued();
            let ended = (1..=1_000).find(|_| {
                activity.request_started(true);
                activity.reply_sent(std::mem::replace(&mut last, activity.reply_queued()));
                activity.request_ended();
                watchdog.check_all(&TIMEOUTS);
                activity.order() == ConnectionOrder::Abort
            });
            assert_eq!(ended.unwrap_or(0), ends);
        }
    }

    #[test]
    fn the_order_of_eviction() {
        let [silent, quiet, fresh, stuck, slow, busy] =
            [(); 6].map(|()| ConnectionActivity::default());
        for activity in [&quiet, &fresh, &stuck, &slow, &busy] {
            activity.request_started(false);
            activity.request_ended();
        }
        quiet.check_timeouts(&TIMEOUTS);
        stuck.reply_queued();
        stuck.check_timeouts(&TIMEOUTS);
        for activity in [&slow, &busy] {
            activity.request_started(false);
            assert_eq!(activity.eviction_rank(), None);
        }
        slow.body_wait_started();
        let order = [&silent, &quiet, &fresh, &stuck, &slow]
            .map(|activity| activity.eviction_rank().unwrap());
        assert!(order.is_sorted(), "{order:?}");
        slow.body_wait_ended();
        assert_eq!(slow.eviction_rank(), None);
    }

    #[test]
    fn a_new_connection_finishes_too_while_all_finish() {
        let watchdog = Arc::new(ConnectionWatchdog::default());
        let before = watchdog.watch(Arc::default());
        watchdog.finish_http2();
        assert_eq!(before.activity.order(), ConnectionOrder::Continue);
        watchdog.finish_all();
        assert_eq!(before.activity.order(), ConnectionOrder::Finish);
        assert_eq!(watchdog.watch(Arc::default()).activity.order(), ConnectionOrder::Finish);
    }
}
