//! Shared state for Tollgate: limits that several processes keep together, in Redis.

pub mod blocks;
pub mod control;
pub mod error;

pub mod options;

mod call;

pub use blocks::Blocks;
pub use control::{Control, ControlSink};
pub use error::{ErrorClass, StoreError};
pub use options::{Options, TimeOf};
