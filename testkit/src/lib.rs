//! Tools for the tests of several crates: real Redis processes and proxies, a proxy that injects faults, a history
//! checker, and counts of instructions.
//!
//! There is no async runtime: everything runs on threads of its own and stops when it is dropped, so that a test
//! may use any runtime. A failure here is a failure of the test, so these functions panic with a message that says
//! what did not happen.

pub mod fault_proxy;
pub mod history;
pub mod http2;
pub mod instructions;
pub mod net;
pub mod peers;
pub mod process;
pub mod random;
pub mod redis;
pub mod strict_http;
pub mod traffic;
pub mod upstream_model;
pub mod wait;
