//! What the fuzz targets do with their bytes.
//!
//! Here and not in the targets, so that `crates/tollgate/tests/fuzz_seeded.rs` can run the same on
//! seeded random bytes, and on every input that once failed, in an ordinary test.

// Each test binary uses its own part of this module.
#![allow(unused_imports)]

mod algorithms;
mod notation;
mod source;
mod table;

pub use algorithms::algorithms;
pub use notation::notation;
pub use table::{table, table_under_pressure, table_with_room};
