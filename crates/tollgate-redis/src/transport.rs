//! The way to the servers and back: connections, pipelines, clusters, sentinels, and the state of each node.

pub mod stats;
pub mod url;

pub(crate) mod batch;
pub(crate) mod command;
pub(crate) mod link;
pub(crate) mod value;

mod cluster;
mod connect;
mod health;
mod host_addresses;
mod node;
mod pipe;
mod reply_reader;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "transport/no_tls.rs"]
mod tls;

#[cfg(test)]
pub(crate) mod tests;
