//! Real proxies in front of the real server, each with the very files in `examples/`: what clients
//! see when they are let in, when they are refused, and when Tollgate does not answer.

#[path = "../server/harness.rs"]
#[allow(dead_code)]
mod harness;

mod envoy;
