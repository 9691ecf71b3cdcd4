//! The atomics and locks of `unit_table.rs`, in one place so that a test can replace them and explore
//! interleavings.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
