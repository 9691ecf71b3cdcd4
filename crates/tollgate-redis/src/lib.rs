//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod error;

pub mod options;

mod call;

pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
