//! The bounds of a fair queue, and the item that finds no room.

use std::error::Error;
use std::fmt;

/// The most that a [`FairQueue`](super::FairQueue) holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Waiters of one flow.
    pub per_flow: usize,
    /// Waiters of all flows; more than 2^32 − 2 count as that.
    pub total: usize,
}

/// An item that found no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueFull<T> {
    /// The bound that was reached.
    pub bound: QueueBound,
    /// The item, given back.
    pub item: T,
}

/// One of the bounds of a [`FairQueue`](super::FairQueue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// [`QueueBounds::per_flow`].
    PerFlow,
    /// [`QueueBounds::total`].
    Total,
}

impl<T> fmt::Display for QueueFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.bound {
            QueueBound::PerFlow => "the queue of this caller is full",
            QueueBound::Total => "the queue of all callers is full",
        })
    }
}

impl<T: fmt::Debug> Error for QueueFull<T> {}
