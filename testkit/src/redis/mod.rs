//! Real Redis processes: one server, a cluster, a primary with sentinels.

mod cluster;
mod ports;
mod sentinels;
mod server;

pub use cluster::{SLOTS, TestRedisCluster};
pub use sentinels::{PRIMARY_NAME, TestRedisSentinels};
pub use server::{RedisTlsFiles, TestRedis, TestRedisLaunch};
