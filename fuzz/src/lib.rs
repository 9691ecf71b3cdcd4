//! The bodies of the fuzz targets, by the crate that they test.
//!
//! They are here and not in the targets, so that the crates' `tests/fuzz_seeded.rs` can run them in ordinary
//! tests, on seeded random bytes and on every input that once failed. Each folder needs its crate and those
//! below it, so that no crate's tests depend on a crate above.

pub mod core;
pub mod rules;
pub mod server;
