//! All integration tests of this crate that share one program, one module for each subject.
//!
//! Each program is optimised and linked on its own, and that takes longer than its tests. nextest gives each
//! test a process of its own. Add a new file as a module here; `Cargo.toml` lists the tests that need a
//! program of their own.

#[path = "../../../fuzz/src/rules/mod.rs"]
#[allow(unreachable_pub)]
mod bodies;
#[path = "../../../fuzz/src/seeded.rs"]
mod seeded;

mod adaptive;
mod callers;
mod changing_rules;
mod compile;
mod deciding;
mod degraded;
mod descriptors;
mod early_refusals;
mod future_sizes;
mod fuzz_seeded;
mod gateway_settings;
mod hints;
mod hostile;
#[cfg(feature = "jwt")]
mod jwt;
mod live;
mod many_requests;
mod metering;
mod model;
mod reference;
mod skewed_instants;
mod sources;
mod spoofing;
mod work;
mod yielding_store;
