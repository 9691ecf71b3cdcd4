//! Free loopback ports, below those that the kernel gives to outgoing connections, so that no client takes one
//! between our check and the server's `bind`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};

/// Ports for data; the bus of a cluster node is 10,000 above, as Redis has it.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;
const BUS_ABOVE: u16 = 10_000;

/// Finds a port that is free now and whose bus port is free too. Another process may take it first, so the
/// start of a server is checked and tried again with another port.
pub(super) fn free() -> u16 {
    /// A counter, so that the ports of servers of one process are far apart.
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let bindable = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    crate::wait::until("a free port", || {
        let chance = RandomState::new().hash_one(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + (chance % u64::from(COUNT)) as u16;
        (bindable(port) && bindable(port + BUS_ABOVE)).then_some(port)
    })
}
