//! Where hosts were last reached: while their names cannot be looked up, they are still there.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

/// Hosts that are remembered; one more, and all others are forgotten. More than a cluster has nodes.
const HOSTS_MAX: usize = 2048;

/// The address at which each host was last reached. Bound: [`HOSTS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct HostAddresses(Mutex<HashMap<(Box<str>, u16), SocketAddr>>);

impl HostAddresses {
    /// The addresses that `lookup` finds. If it finds none within that time, the one where the host was
    /// last reached; a host that never was is looked up for as long as it takes.
    pub(crate) async fn addresses(
        &self,
        host: &str,
        port: u16,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>,
        within: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        let last = self.hosts().get(&(host.into(), port)).copied();
        let Some(last) = last else { return lookup.await };
        match timeout(within, lookup).await {
            Ok(Ok(found)) if !found.is_empty() => Ok(found),
            _ => Ok(vec![last]),
        }
    }

    /// The host was reached here.
    pub(crate) fn record_reached(&self, host: &str, port: u16, at: SocketAddr) {
        // An address is its own name.
        if host.parse::<IpAddr>().is_ok() {
            return;
        }
        let mut hosts = self.hosts();
        let name = (host.into(), port);
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(&name) {
            hosts.clear();
        }
        hosts.insert(name, at);
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<(Box<str>, u16), SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const WITHIN: Duration = Duration::from_millis(10);

    fn at(number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, number], 6379))
    }

    #[tokio::test]
    async fn a_name_that_is_not_found_leads_to_where_it_led_before() {
        let known = HostAddresses::default();
        let fails = || ready(Err(io::Error::other("no such name")));
        assert!(known.addresses("redis", 6379, fails(), WITHIN).await.is_err(), "never seen");
        known.record_reached("redis", 6379, at(1));
        let found = known.addresses("redis", 6379, fails(), WITHIN).await.unwrap();
        assert_eq!(found, [at(1)]);
        // Nobody answers, or nobody knows.
        assert_eq!(known.addresses("redis", 6379, pending(), WITHIN).await.unwrap(), [at(1)]);
        let none = ready(Ok(Vec::new()));
        assert_eq!(known.addresses("redis", 6379, none, WITHIN).await.unwrap(), [at(1)]);
        // Another port is another server.
        assert!(known.addresses("redis", 6380, fails(), WITHIN).await.is_err());
        // What is found counts more than what was.
        let moved = ready(Ok(vec![at(2), at(3)]));
        assert_eq!(known.addresses("redis", 6379, moved, WITHIN).await.unwrap(), [at(2), at(3)]);
    }

    #[test]
    fn ever_new_names_end_at_the_bound() {
        let known = HostAddresses::default();
        for n in 0..3 * HOSTS_MAX {
            known.record_reached(&format!("node-{n}"), 6379, at(1));
            known.record_reached("127.0.0.1", 6379, at(1));
            assert!(known.hosts().len() <= HOSTS_MAX);
        }
        let full = known.hosts().len();
        known.record_reached(&format!("node-{}", 3 * HOSTS_MAX - 1), 6379, at(2));
        assert_eq!(known.hosts().len(), full, "one that is known takes no place");
    }
}
