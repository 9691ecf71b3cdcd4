//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod error;

pub mod options;

pub mod stats;

pub mod url;

mod batch;
mod call;
mod cluster;
mod connect;
mod health;
mod keys;
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
mod tests;

pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
pub use stats::LinkStats;
pub use store::{RedisStats, RedisStore};
pub use url::StoreUrl;
