//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod error;

pub mod options;

mod call;
#[cfg(test)]
mod cost;
mod keys;
mod link;
mod request;
mod script;
mod state;
mod store;

pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
pub use store::{RedisStats, RedisStore};

#[doc(hidden)]
pub use link::Link;
