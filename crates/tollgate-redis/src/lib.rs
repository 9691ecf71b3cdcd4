//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod error;

pub mod options;

pub mod stats;

pub mod url;

mod batch;
mod call;
mod connect;
mod link;
mod node;
mod pipe;
mod script;
mod sentinel;
mod wire;

pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
pub use stats::LinkStats;
pub use url::StoreUrl;
