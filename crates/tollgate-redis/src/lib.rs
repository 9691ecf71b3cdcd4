//! Rate limits that several processes share, in Redis or Redis Cluster.
//!
//! [`SharedLimiter`] has the operations of [`tollgate::Limiter`], to be awaited:
//!
//! ```
//! use tollgate::{DecidedBy, Limit};
//! use tollgate_redis::{RedisOptions, RedisStore, SharedLimiter, StoreUrl};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Usually `redis://127.0.0.1:6379`. Nothing listens on this port, so the fallback decides.
//! let url = StoreUrl::parse("redis://127.0.0.1:1")?;
//! let store = RedisStore::at(&url, &RedisOptions::default());
//! let limiter = SharedLimiter::start(store, 100_000);
//!
//! let limit = Limit::per_minute(100).burst(20).build()?;
//! let decision = limiter.check(&limit, "user:42").await;
//! assert!(decision.allowed());
//! assert_eq!(decision.remaining(), 19);
//! assert_eq!(decision.decided_by(), DecidedBy::Local);
//!
//! // Before the program ends:
//! limiter.drain().await;
//! # Ok(())
//! # }
//! ```
//!
//! `check`, `take` and the like go by the default [`Terms`](tollgate::Terms): the store decides, and while it is
//! unavailable, this process does. A check can have other terms:
//!
//! ```
//! use tollgate::{Check, Consistency, Limit, OnFailure, Terms};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Limit::per_minute(100).name("api").build()?;
//! let terms = Terms {
//!     // This process decides, and informs the store every 100 ms.
//!     consistency: Consistency::LocalSync { interval_ms: 100 },
//!     // Refuse while the store is unavailable.
//!     on_failure: OnFailure::Closed,
//!     ..Terms::default()
//! };
//! let check = Check::new(&limit, "user:42").terms(terms);
//! // let decision = limiter.decide(&[check]).await;
//! # let _ = check;
//! # Ok(())
//! # }
//! ```
//!
//! [`SharedLimiter::block`] blocks a key in this process only, unless the processes join:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tollgate::SystemClock;
//! use tollgate_redis::instances::{SharedOverride, SharedRules};
//! use tollgate_redis::{InstanceSink, RedisOptions, RedisStore, SharedLimiter, SharedStore, StoreUrl};
//!
//! struct InstanceCounter(SharedStore<RedisStore>);
//!
//! impl InstanceSink for InstanceCounter {
//!     fn live_instances(&self, count: u32) {
//!         self.0.set_live_instances(count);
//!     }
//!     fn overrides_changed(&self, _: Vec<SharedOverride>) {}
//!     fn rules_changed(&self, _: Option<SharedRules>) {}
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = StoreUrl::parse("redis://127.0.0.1:6379")?;
//! let store = RedisStore::at(&url, &RedisOptions::default());
//! let limiter = SharedLimiter::start(store.clone(), 100_000);
//! let sink = Arc::new(InstanceCounter(limiter.store().clone()));
//! let _channel = store.join_instances(sink, SystemClock);
//! // From now on, blocks reach all processes that have joined, within about 250 ms.
//! # Ok(())
//! # }
//! ```
//!
//! - **Answers never fail.** The store has 10 ms ([`RedisOptions::timeout`]). After that, or while it is
//!   unavailable, each limit's failure policy decides: with this process' share of the limit
//!   ([`OnFailure::Local`](tollgate::OnFailure), the default), open, or closed. This process' share is the whole
//!   limit until [`SharedStore::set_live_instances`] sets how many processes share the limits.
//! - **One round trip.** All limits of a request are decided by one call of a script. Calls that wait at the same
//!   time share a command. A request that was refused a moment ago is refused without the store.
//! - **The server's clock decides**, so the clocks of processes may differ. In tests and simulations,
//!   [`TimeSource::Caller`] uses the caller's.
//! - **Servers** are one Redis, a primary behind Sentinel, or a cluster: see [`StoreUrl`]. Redis 6.2 or later.
//! - **Feature `tls`** adds `rediss://`. Without it, neither rustls nor aws-lc is built.
//!
//! [`RedisStore`] is the store alone: its answers can be errors, nothing decides in its place, and its decisions do
//! not look at blocks. A store in another database implements [`RemoteStore`] of the crate `tollgate-shared`, which does not depend on Redis.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod error;
pub mod instances;
pub mod options;

mod script;
mod store;
mod transport;

pub use error::{ErrorClass, StoreError};
pub use instances::{InstanceChannel, InstanceSink};
pub use options::{KeyPrefix, KeyPrefixError, RedisOptions};
pub use store::{RedisStats, RedisStore};
pub use tollgate_shared::{
    RemoteError, RemoteStore, SharedLimiter, SharedMoment, SharedPermit, SharedStats, SharedStore,
    TimeSource,
};
pub use transport::stats::LinkStats;
pub use transport::url::StoreUrl;
pub use transport::{stats, url};

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TollgateRedisReadme;
