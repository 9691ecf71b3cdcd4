//! Shared state for Tollgate: limits that several processes keep together, in Redis.

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
