//! Atomics and spinning: the standard ones, or those of loom when interleavings are explored.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Waits a moment for another thread to finish a few stores. After a hundred tries that thread is
/// probably not running, so the core is offered to it.
#[derive(Default)]
pub(crate) struct Spin(u32);

impl Spin {
    pub(crate) fn pause(&mut self) {
        self.0 += 1;
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(not(loom))]
        if self.0 > 100 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
