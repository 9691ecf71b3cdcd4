//! What tests of several crates share: real Redis processes and proxies, a proxy that injects
//! faults, and a checker of histories.
//!
//! No async runtime: everything runs on threads of its own and is stopped when it is dropped, so
//! that a test may use whatever runtime it is about. A failure here is a failure of the test, so
//! these functions panic, in words that say what did not happen.

pub mod fault_proxy;
pub mod history;
pub mod net;
pub mod peers;
pub mod process;
pub mod random;
pub mod redis;
pub mod wait;
