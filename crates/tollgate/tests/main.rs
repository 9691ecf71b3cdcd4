//! All integration tests of this crate that share one program, one module for each subject.
//!
//! Each program is optimised and linked on its own, and that takes longer than its tests. nextest gives each
//! test a process of its own. Add a new file as a module here; `Cargo.toml` lists the tests that need a
//! program of their own.

#[path = "../../../fuzz/src/core/mod.rs"]
#[allow(unreachable_pub)]
mod bodies;
mod executor;
mod model;
#[path = "../../../fuzz/src/seeded.rs"]
mod seeded;
mod worked_cases;

mod fuzz_seeded;
mod headers;
mod properties;
mod queue;
mod races;
mod regressions;
mod table_model;
mod vectors;
mod waiting;
