//! The behaviours that every store has, against a real server.

use testkit::redis::{TestRedis, TestRedisCluster};
use tollgate::store::conformance::{self, Behaviour};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};

use crate::shared;

/// The store goes by the instants that it is given.
fn options() -> RedisOptions {
    RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() }
}

const BLOCKS: (Behaviour, &str) =
    (Behaviour::Blocks, "a shared store looks at blocks before it asks a remote store");

#[tokio::test]
async fn a_store_in_redis_conforms() {
    let server = TestRedis::start();
    conformance::run_except(&[BLOCKS], || shared::store_at(&server, options())).await;
}

#[tokio::test]
async fn a_shared_store_in_redis_conforms() {
    let server = TestRedis::start();
    conformance::run(async || share(shared::store_at(&server, options()).await)).await;
}

#[tokio::test]
async fn a_shared_store_in_a_cluster_conforms() {
    let cluster = TestRedisCluster::start();
    let url = StoreUrl::parse(&cluster.url()).expect("an address");
    conformance::run(async || share(shared::connected(&url, options()).await)).await;
}

fn share(store: RedisStore) -> SharedStore<RedisStore> {
    SharedStore::start(vec![store], 10_000, TimeSource::Caller)
}
