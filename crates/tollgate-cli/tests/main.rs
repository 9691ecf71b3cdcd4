//! All integration tests of this crate that share one program, one module for each subject.
//!
//! Each program is optimised and linked on its own, and that takes longer than its tests. nextest gives each
//! test a process of its own. Add a new file as a module here; `Cargo.toml` lists the tests that need a
//! program of their own.

mod command;
mod dashboard;
mod gatekeepers;
mod harness;

mod bench;
mod check;
mod examples;
mod explain_agreement;
mod faults;
mod fuzz_seeded;
mod gateway;
mod instructions;
mod pages;
mod pictures;
mod proxies;
mod resp;
mod scenarios;
mod schema;
mod server;
mod simulate;
mod simulate_rules;
mod simulate_scenarios;
mod simulate_store;
mod terminal;
