//! Shared state for Tollgate: limits that several processes keep together, in Redis.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocks;

pub mod instances;

pub mod error;

pub mod options;

pub mod remote_store;

pub mod shared_store;

pub mod stats;

pub mod url;

mod batch;
mod cluster;
mod connect;
mod health;
mod host_addresses;
mod keys;
mod late_units;
mod link;
mod node;
mod pipe;
mod reply_reader;
mod script;
mod script_call;
mod script_request;
mod sentinel;
mod state;
mod store;
mod up_to;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use error::{ErrorClass, StoreError};
pub use instances::{InstanceChannel, InstanceSink};
pub use options::{KeyPrefix, KeyPrefixError, RedisOptions, TimeSource};
pub use remote_store::RemoteStore;
pub use shared_store::{SharedStats, SharedStore};
pub use stats::LinkStats;
pub use store::{RedisStats, RedisStore};
pub use url::StoreUrl;
