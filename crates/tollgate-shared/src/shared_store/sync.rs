//! What `places.rs` is made of: apart, so that its interleavings can be explored with other ones.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
