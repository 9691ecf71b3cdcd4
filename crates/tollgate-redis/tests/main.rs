//! All integration tests of this crate that share one program, one module for each subject.
//!
//! Each program is optimised and linked on its own, and that takes longer than its tests. nextest gives each
//! test a process of its own. Add a new file as a module here; `Cargo.toml` lists the tests that need a
//! program of their own.

#[path = "../../tollgate/tests/executor/mod.rs"]
mod executor;
mod shared;
#[path = "../../tollgate/tests/worked_cases/mod.rs"]
mod worked_cases;

mod acl;
mod apart;
mod changed_numbers;
mod changing_rules;
mod conformance;
mod equal;
mod future_sizes;
mod hot_keys;
mod limiter;
mod memory_equivalence;
mod slots;
mod together;
mod values;
mod vectors;
