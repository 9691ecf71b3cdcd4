//! Real Redis processes: one server, a cluster, a primary with sentinels.

mod cluster;
mod ports;
mod sentinels;
mod server;

pub use cluster::{Cluster, SLOTS};
pub use sentinels::{PRIMARY_NAME, Sentinels};
pub use server::{Launch, Server, Tls};
