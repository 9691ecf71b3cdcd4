//! Bytes that HTTP/2 lets clients send before anything reads them: they are bounded like bodies that wait.
//!
//! The window of a connection cannot be smaller than 64 KiB. Larger ones make uploads faster, and are given while their sum is within
//! the bound, to each address a share of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::listeners::connection_caps::client_network;

/// The share of one address.
const ADDRESS_SHARE: usize = 16;

/// The large windows of a gateway.
#[derive(Debug)]
pub(super) struct WindowShares {
    windows_max: usize,
    state: Mutex<WindowCounts>,
}

#[derive(Debug, Default)]
struct WindowCounts {
    all: usize,
    /// Number of windows by address. Bound: `windows_max`.
    by_address: HashMap<IpAddr, usize>,
}

/// The large window of one connection, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct WindowShare {
    shares: Arc<WindowShares>,
    address: IpAddr,
}

impl WindowShares {
    /// Divides so many bytes into windows of this size.
    pub(super) fn new(bytes: usize, window_bytes: usize) -> Arc<WindowShares> {
        Arc::new(WindowShares { windows_max: bytes / window_bytes, state: Mutex::default() })
    }

    /// A large window for a connection; `None` if this address or all have enough.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<WindowShare> {
        let address = client_network(peer);
        let mut counts = self.counts();
        let of_address = counts.by_address.get(&address).copied().unwrap_or_default();
        if counts.all >= self.windows_max || of_address >= self.windows_max / ADDRESS_SHARE {
            return None;
        }
        counts.all += 1;
        counts.by_address.insert(address, of_address + 1);
        Some(WindowShare { shares: Arc::clone(self), address })
    }

    fn counts(&self) -> MutexGuard<'_, WindowCounts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WindowShare {
    fn drop(&mut self) {
        let mut counts = self.shares.counts();
        counts.all -= 1;
        if let Some(of_address) = counts.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bounded_in_all_and_by_address() {
        let shares = WindowShares::new(64 << 20, 256 << 10);
        let take = |address: u8| -> Vec<WindowShare> {
            std::iter::from_fn(|| shares.take([192, 0, 2, address].into())).collect()
        };
        let first = take(1);
        assert_eq!(first.len(), 16);
        let others: Vec<_> = (2..100).map(take).collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), 256 - 16);
        drop(first);
        assert_eq!(take(101).len(), 16);
        drop(others);
        let counts = shares.counts();
        assert!(counts.all == 0 && counts.by_address.is_empty());
    }
}
