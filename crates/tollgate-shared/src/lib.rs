//! The parts of a shared store that do not depend on where its states are kept.
//!
//! A program brings a [`RemoteStore`]: something that several processes reach over a network. This crate adds what
//! every such store needs: an answer while the store is unavailable, a cache of refusals, leases of busy
//! keys, limits that are decided locally and synchronised afterwards, and refunds that wait until the store is
//! back. `tollgate-redis` is a remote store; a store of your own needs only this crate.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocks;
pub mod late_units;
pub mod remote_store;
pub mod shared_limiter;
pub mod shared_store;
pub mod up_to;

mod time_source;

pub use blocks::{Blocks, KeyHash};
pub use remote_store::{RemoteError, RemoteStore};
pub use shared_limiter::{SharedLimiter, SharedMoment, SharedPermit};
pub use shared_store::{SharedStats, SharedStore};
pub use time_source::TimeSource;

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TollgateSharedReadme;
