//! How many connections there may be, in total and from one address, and which of them make room.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::watchdog::{ConnectionActivity, ConnectionOrder};

/// How long a newcomer waits for an idle connection to be closed.
const EVICTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// Counts open connections.
pub(crate) struct ConnectionCaps {
    total_max: usize,
    per_ip_max: usize,
    /// Whether idle connections make room for new ones.
    evicts_idle: bool,
    open: Mutex<OpenConnections>,
    /// Told whenever a connection has ended, where idle ones make room.
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
    /// Connections that may have to make room, the oldest first. Bound: `total_max` entries; none unless
    /// `evicts_idle`.
    evictable: BTreeMap<u64, (IpAddr, Arc<ConnectionActivity>)>,
}

/// Connections of a listener so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionCounters {
    /// Connections that are open.
    pub(crate) open: usize,
    /// Connections that got a place.
    pub(crate) accepted: u64,
    /// Idle connections that were closed to make room.
    pub(crate) evicted: u64,
    /// Connections that were turned away because too many were open.
    pub(crate) refused_in_total: u64,
    /// Connections that were turned away because too many were open from their address.
    pub(crate) refused_per_ip: u64,
}

/// A place among the open connections; dropping it makes room.
pub(crate) struct ConnectionPermit {
    caps: Arc<ConnectionCaps>,
    ip: IpAddr,
    id: u64,
    activity: Arc<ConnectionActivity>,
}

impl ConnectionPermit {
    /// What the connection is doing.
    pub(super) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }
}

/// Which cap a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapReached {
    InTotal,
    PerIp,
}

impl ConnectionCaps {
    /// Connections beyond these numbers are turned away.
    pub(crate) fn new(total_max: usize, per_ip_max: usize) -> Arc<ConnectionCaps> {
        ConnectionCaps::with_eviction(total_max, per_ip_max, false)
    }

    /// For each connection beyond these numbers an idle one is closed; if all are busy, it is turned away.
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

    /// A place for a connection from this address, as soon as there is one. `None`: there are too many.
    pub(crate) async fn admit(
        self: &Arc<ConnectionCaps>,
        peer: IpAddr,
    ) -> Option<ConnectionPermit> {
        let ip = client_network(peer);
        let full = match self.try_admit(ip) {
            Ok(place) => return Some(place),
            Err(full) => full,
        };
        if self.evicts_idle
            && let Ok(Some(place)) =
                tokio::time::timeout(EVICTION_WAIT_MAX, self.make_room(ip)).await
        {
            return Some(place);
        }
        let mut open = self.open();
        match full {
            CapReached::InTotal => open.refused_in_total += 1,
            CapReached::PerIp => open.refused_per_ip += 1,
        }
        None
    }

    /// Closes idle connections until there is a place. `None`: none is idle.
    async fn make_room(self: &Arc<ConnectionCaps>, ip: IpAddr) -> Option<ConnectionPermit> {
        loop {
            let mut ended = pin!(self.connection_ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            match self.try_admit(ip) {
                Ok(place) => return Some(place),
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
        let (id, pulse) = (open.last_id, Arc::<ConnectionActivity>::default());
        if self.evicts_idle {
            open.evictable.insert(id, (ip, pulse.clone()));
        }
        Ok(ConnectionPermit { caps: self.clone(), ip, id, activity: pulse })
    }

    /// What has come so far.
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
        // Counters are changed without anything between that could panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Closes the connection that is easiest to spare, unless one is being closed already. Whether one will
    /// end.
    fn evict_idlest(&mut self, full: CapReached, ip: IpAddr) -> bool {
        let concerned = |other: &&(IpAddr, Arc<ConnectionActivity>)| {
            full == CapReached::InTotal || other.0 == ip
        };
        let mut all = self.evictable.values().filter(concerned).map(|(_, pulse)| pulse);
        if all.clone().any(|pulse| pulse.order() == ConnectionOrder::Abort) {
            return true;
        }
        let ranked = all.by_ref().filter_map(|pulse| Some((pulse.eviction_rank()?, pulse)));
        let Some((_, pulse)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        pulse.evict();
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

/// Who holds an address: of IPv6 everybody has a /64 to choose from.
fn client_network(peer: IpAddr) -> IpAddr {
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

    /// What comes of it without waiting.
    fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn places_are_counted_in_total_and_per_address() {
        let caps = ConnectionCaps::new(3, 2);
        let enter = |ip: &str| match poll_once(caps.admit(ip.parse().unwrap())) {
            Poll::Ready(place) => place,
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
            let newcomer = newcomer.await.expect("a place");
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
