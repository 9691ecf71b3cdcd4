//! Bodies that need only `tollgate`.

// Each test binary uses its own part of this module.
#![allow(dead_code, unused_imports)]

mod algorithms;
mod notation;
#[path = "../source.rs"]
mod source;
mod table;

pub use algorithms::algorithms;
pub use notation::notation;
pub use table::{table, table_under_pressure, table_with_room};
