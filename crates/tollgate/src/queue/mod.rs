//! Work that waits or runs: how much of it an upstream can do at once. Pure: time is an argument.

mod adaptive_concurrency;

pub use adaptive_concurrency::AdaptiveConcurrency;
