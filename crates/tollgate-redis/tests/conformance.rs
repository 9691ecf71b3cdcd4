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

const BATCHES_IN_ORDER: (Behaviour, &str) = (
    Behaviour::RandomBatches,
    "a batch is sent at once: a request that takes two calls, because numbers changed or the clock went \
     back, is executed after later requests of its key",
);

const SEVERAL_SLOTS: (Behaviour, &str) = (
    Behaviour::RandomSeveralLimits,
    "keys in several slots are decided one after the other and refunded after a refusal",
);

#[tokio::test]
async fn a_store_in_redis_conforms() {
    let server = TestRedis::start();
    let skipped = [BLOCKS, BATCHES_IN_ORDER];
    conformance::run_except(&skipped, || shared::store_at(&server, options())).await;
}

#[tokio::test]
async fn a_shared_store_in_redis_conforms() {
    let server = TestRedis::start();
    let make = async || share(shared::store_at(&server, options()).await);
    conformance::run_except(&[BATCHES_IN_ORDER], make).await;
}

#[tokio::test]
async fn a_shared_store_in_a_cluster_conforms() {
    let cluster = TestRedisCluster::start();
    cluster_conforms(&cluster.url()).await;
}

#[tokio::test]
async fn a_shared_store_in_a_cluster_with_shared_slots_conforms() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    cluster_conforms(&format!("{}?slots=5", cluster.url())).await;
}

async fn cluster_conforms(url: &str) {
    let url = StoreUrl::parse(url).expect("an address");
    let make = async || share(shared::connected(&url, options()).await);
    conformance::run_except(&[SEVERAL_SLOTS, BATCHES_IN_ORDER], make).await;
}

fn share(store: RedisStore) -> SharedStore<RedisStore> {
    SharedStore::start(vec![store], 10_000, TimeSource::Caller)
}
