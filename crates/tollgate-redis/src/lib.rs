//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod blocks;

pub mod control;

pub mod error;

pub mod options;

pub mod remote;

pub mod shared;

pub mod stats;

pub mod url;

mod batch;
mod call;
mod cluster;
mod connect;
mod health;
mod keys;
mod known;
mod late;
mod level;
mod link;
mod node;
mod pipe;
mod request;
mod script;
mod sentinel;
mod state;
mod store;
mod wire;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use control::{Control, ControlSink};
pub use error::{ErrorClass, StoreError};
pub use options::{KeyPrefix, KeyPrefixError, Options, TimeOf};
pub use remote::Remote;
pub use shared::{Shared, SharedStats};
pub use stats::LinkStats;
pub use store::{RedisStats, RedisStore};
pub use url::StoreUrl;
