//! What the fuzz targets do with their bytes, by the crate they look at.
//!
//! Here and not in the targets, so that the crates' `tests/fuzz_seeded.rs` can run the same on
//! seeded random bytes, and on every input that once failed, in ordinary tests. Each folder needs
//! its crate and those below it, so that no crate's tests depend on a crate above.

pub mod core;
pub mod rules;
pub mod server;
