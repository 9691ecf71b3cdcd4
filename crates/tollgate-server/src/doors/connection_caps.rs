//! How many connections there may be, in total and from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts open connections.
pub(crate) struct ConnectionCaps {
    total_max: usize,
    per_ip_max: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    total: usize,
    accepted: u64,
    refused_in_total: u64,
    refused_per_ip: u64,
    /// Connections of each address. Bound: `total_max` entries, since each has a connection.
    per_ip: HashMap<IpAddr, usize>,
}

/// What has come so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionFigures {
    /// Connections that are open.
    pub(crate) open: usize,
    /// Connections that got a place.
    pub(crate) accepted: u64,
    /// Those that did not, because too many were open,
    pub(crate) refused_in_total: u64,
    /// or too many from their address.
    pub(crate) refused_per_ip: u64,
}

/// A place among the open connections; dropping it makes room.
pub(crate) struct Place {
    caps: Arc<ConnectionCaps>,
    ip: IpAddr,
}

impl ConnectionCaps {
    pub(crate) fn new(total_max: usize, per_ip_max: usize) -> Arc<ConnectionCaps> {
        Arc::new(ConnectionCaps { total_max, per_ip_max, open: Mutex::default() })
    }

    /// A place for a connection from this address, unless there are too many.
    pub(crate) fn enter(self: &Arc<ConnectionCaps>, peer: IpAddr) -> Option<Place> {
        let ip = holder(peer);
        let mut open = self.open();
        if open.total >= self.total_max {
            open.refused_in_total += 1;
            return None;
        }
        let from_ip = open.per_ip.entry(ip).or_default();
        if *from_ip >= self.per_ip_max {
            open.refused_per_ip += 1;
            return None;
        }
        *from_ip += 1;
        open.total += 1;
        open.accepted += 1;
        Some(Place { caps: self.clone(), ip })
    }

    /// What has come so far.
    pub(crate) fn figures(&self) -> ConnectionFigures {
        let open = self.open();
        ConnectionFigures {
            open: open.total,
            accepted: open.accepted,
            refused_in_total: open.refused_in_total,
            refused_per_ip: open.refused_per_ip,
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        // Both counters are changed without anything between that could panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.caps.open();
        open.total -= 1;
        let Some(from_ip) = open.per_ip.get_mut(&self.ip) else { return };
        *from_ip -= 1;
        if *from_ip == 0 {
            open.per_ip.remove(&self.ip);
        }
    }
}

/// Who holds an address: of IPv6 everybody has a /64 to choose from.
fn holder(peer: IpAddr) -> IpAddr {
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
    use super::*;

    #[test]
    fn places_are_counted_in_total_and_per_address() {
        let caps = ConnectionCaps::new(3, 2);
        let enter = |ip: &str| caps.enter(ip.parse().unwrap());
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
        let want =
            |open| ConnectionFigures { open, accepted: 4, refused_in_total: 1, refused_per_ip: 2 };
        assert_eq!(caps.figures(), want(2));
        drop((c, d));
        assert_eq!(caps.open().per_ip.len(), 0);
        assert_eq!(caps.figures(), want(0));
    }
}
