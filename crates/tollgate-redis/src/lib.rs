//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod error;

pub mod options;

pub mod remote;

pub mod shared;

mod call;

pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
pub use remote::Remote;
pub use shared::{Shared, SharedStats};
