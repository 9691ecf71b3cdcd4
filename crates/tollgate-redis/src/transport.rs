//! The way to the servers and back: connections, pipelines, clusters, sentinels, and the state of each node.

pub mod stats;
pub mod url;

pub(crate) mod batch;
pub(crate) mod link;

mod cluster;
mod connect;
mod health;
mod host_addresses;
mod node;
mod pipe;
mod reply_reader;
mod sentinel;

#[cfg(test)]
pub(crate) mod tests;
