//! Caps on connections, in total and per address, and the choice of idle ones to evict.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::watchdog::{ConnectionActivity, ConnectionOrder};

/// Maximum wait of a new connection for the eviction of an idle one.
const EVICTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// Counts and limits open connections.
pub(crate) struct ConnectionCaps {
    total_max: usize,
    per_ip_max: usize,
    /// True if idle connections are evicted for new ones.
    evicts_idle: bool,
    open: Mutex<OpenConnections>,
    /// Notified when a connection has ended, if `evicts_idle`.
    connection_ended: Notify,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    accepted: u64,
    evicted: u64,
    refused_in_total: u64,
    refused_per_ip: u64,
    /// Connections of each address. Bound: `total_max` entries, since each has a connection.
    per_ip: HashMap<IpAddr, usize>,
    last_id: u64,
    /// Connections that can be evicted, the oldest first. Bound: `total_max` entries; empty unless `evicts_idle`.
    evictable: BTreeMap<u64, (IpAddr, Arc<ConnectionActivity>)>,
}

/// Connections of a listener so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionCounters {
    /// Connections that are open.
    pub(crate) open: usize,
    /// Connections that were admitted.
    pub(crate) accepted: u64,
    /// Idle connections that were evicted.
    pub(crate) evicted: u64,
    /// Connections refused because too many were open.
    pub(crate) refused_in_total: u64,
    /// Connections refused because too many were open from their address.
    pub(crate) refused_per_ip: u64,
}

/// Permit of an open connection; dropping it makes room.
pub(crate) struct ConnectionPermit {
    caps: Arc<ConnectionCaps>,
    ip: IpAddr,
    id: u64,
    activity: Arc<ConnectionActivity>,
}

impl ConnectionPermit {
    /// Activity of the connection.
    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }
}

/// The cap that a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapReached {
    InTotal,
    PerIp,
}

impl ConnectionCaps {
    /// Caps that refuse further connections.
    pub(crate) fn new(total_max: usize, per_ip_max: usize) -> Arc<ConnectionCaps> {
        ConnectionCaps::with_eviction(total_max, per_ip_max, false)
    }

    /// Caps that evict an idle connection for each further one, and refuse it only if all are busy.
    pub(crate) fn evicting(total_max: usize, per_ip_max: usize) -> Arc<ConnectionCaps> {
        ConnectionCaps::with_eviction(total_max, per_ip_max, true)
    }

    fn with_eviction(total_max: usize, per_ip_max: usize, evicts: bool) -> Arc<ConnectionCaps> {
        let (open, ended) = (Mutex::default(), Notify::new());
        Arc::new(ConnectionCaps {
            total_max,
            per_ip_max,
            evicts_idle: evicts,
            open,
            connection_ended: ended,
        })
    }

    /// Waits for the permit of a connection from this address. `None` if there are too many.
    pub(crate) async fn admit(
        self: &Arc<ConnectionCaps>,
        peer: IpAddr,
    ) -> Option<ConnectionPermit> {
        let ip = client_network(peer);
        let full = match self.try_admit(ip) {
            Ok(permit) => return Some(permit),
            Err(full) => full,
        };
        if self.evicts_idle
            && let Ok(Some(permit)) =
                tokio::time::timeout(EVICTION_WAIT_MAX, self.make_room(ip)).await
        {
            return Some(permit);
        }
        let mut open = self.open();
        match full {
            CapReached::InTotal => open.refused_in_total += 1,
            CapReached::PerIp => open.refused_per_ip += 1,
        }
        None
    }

    /// Evicts idle connections until one is admitted. `None` if none is idle.
    async fn make_room(self: &Arc<ConnectionCaps>, ip: IpAddr) -> Option<ConnectionPermit> {
        loop {
            let mut ended = pin!(self.connection_ended.notified());
            // From here on every end of a connection is noticed.
            ended.as_mut().enable();
            match self.try_admit(ip) {
                Ok(permit) => return Some(permit),
                Err(full) if self.open().evict_idlest(full, ip) => ended.await,
                Err(_) => return None,
            }
        }
    }

    fn try_admit(self: &Arc<ConnectionCaps>, ip: IpAddr) -> Result<ConnectionPermit, CapReached> {
        let mut open = self.open();
        if open.total >= self.total_max {
            return Err(CapReached::InTotal);
        }
        let from_ip = open.per_ip.entry(ip).or_default();
        if *from_ip >= self.per_ip_max {
            return Err(CapReached::PerIp);
        }
        *from_ip += 1;
        open.total += 1;
        open.accepted += 1;
        open.last_id += 1;
        let (id, activity) = (open.last_id, Arc::<ConnectionActivity>::default());
        if self.evicts_idle {
            open.evictable.insert(id, (ip, activity.clone()));
        }
        Ok(ConnectionPermit { caps: self.clone(), ip, id, activity })
    }

    /// Counters for metrics.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        let open = self.open();
        ConnectionCounters {
            open: open.total,
            accepted: open.accepted,
            evicted: open.evicted,
            refused_in_total: open.refused_in_total,
            refused_per_ip: open.refused_per_ip,
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        // Nothing can panic between the changes of counters.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Evicts the idlest connection, unless one is being evicted already. Returns true if one will end.
    fn evict_idlest(&mut self, full: CapReached, ip: IpAddr) -> bool {
        let concerned = |other: &&(IpAddr, Arc<ConnectionActivity>)| {
            full == CapReached::InTotal || other.0 == ip
        };
        let mut all = self.evictable.values().filter(concerned).map(|(_, activity)| activity);
        if all.clone().any(|activity| activity.order() == ConnectionOrder::Abort) {
            return true;
        }
        let ranked =
            all.by_ref().filter_map(|activity| Some((activity.eviction_rank()?, activity)));
        let Some((_, activity)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        activity.evict();
        self.evicted += 1;
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.caps.open();
        open.total -= 1;
        open.evictable.remove(&self.id);
        if let Some(from_ip) = open.per_ip.get_mut(&self.ip) {
            *from_ip -= 1;
            if *from_ip == 0 {
                open.per_ip.remove(&self.ip);
            }
        }
        drop(open);
        if self.caps.evicts_idle {
            self.caps.connection_ended.notify_waiters();
        }
    }
}

/// The address that connections are counted by. IPv6 clients are counted per /64, because one customer usually controls
/// all of it.
pub(crate) fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls a future once.
    fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn places_are_counted_in_total_and_per_address() {
        let caps = ConnectionCaps::new(3, 2);
        let enter = |ip: &str| match poll_once(caps.admit(ip.parse().unwrap())) {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("nobody makes room here"),
        };
        let (a, b) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(a.is_some() && b.is_some());
        assert!(enter("2001:db8:0:0:ffff::3").is_none(), "the same /64");
        let c = enter("192.0.2.1");
        assert!(c.is_some());
        assert!(enter("192.0.2.2").is_none(), "three are open");
        drop(a);
        let d = enter("::ffff:192.0.2.1");
        assert!(d.is_some());
        drop(b);
        assert!(enter("192.0.2.1").is_none(), "two are open from there, one in another form");
        let want = |open| ConnectionCounters {
            open,
            accepted: 4,
            evicted: 0,
            refused_in_total: 1,
            refused_per_ip: 2,
        };
        assert_eq!(caps.counters(), want(2));
        drop((c, d));
        assert_eq!(caps.open().per_ip.len(), 0);
        assert_eq!(caps.counters(), want(0));
    }

    #[tokio::test]
    async fn idle_connections_make_room_and_busy_ones_do_not() {
        let caps = ConnectionCaps::evicting(4, 2);
        let [ours, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let busy = caps.admit(ours).await.unwrap();
        busy.activity.request_started(false);
        let idle = caps.admit(ours).await.unwrap();
        let stranger = caps.admit(other).await.unwrap();
        {
            let mut newcomer = pin!(caps.admit(ours));
            let mut context = Context::from_waker(Waker::noop());
            assert!(newcomer.as_mut().poll(&mut context).is_pending(), "until one has left");
            assert_eq!(idle.activity.order(), ConnectionOrder::Abort);
            assert_eq!(
                stranger.activity.order(),
                ConnectionOrder::Continue,
                "there is room for others in total"
            );
            assert_eq!(busy.activity.order(), ConnectionOrder::Continue);
            drop(idle);
            let newcomer = newcomer.await.expect("a permit");
            newcomer.activity.request_started(false);
            assert!(caps.admit(ours).await.is_none(), "all of them are busy");
            assert_eq!(caps.counters().open, 3);
        }
        drop((busy, stranger));
        let figures = caps.counters();
        assert_eq!((figures.open, figures.evicted, figures.refused_per_ip), (0, 1, 1));
        assert!(caps.open().evictable.is_empty() && caps.open().per_ip.is_empty());
    }
}
