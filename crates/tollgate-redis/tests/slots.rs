//! A cluster whose subjects share a number of slots, by `?slots=` in the store's URL.

use testkit::redis::{TestRedis, TestRedisCluster};
use tollgate::{Check, Limit, Micros, Outcome, RequestList, Store};
use tollgate_redis::{RedisOptions, RedisStore, StoreUrl};

use crate::shared;

const KEYS: usize = 120;

fn limit(name: &str) -> Limit {
    Limit::per_day(1_000).name(name).build().expect("a limit")
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|number| format!("user:{number}")).collect()
}

async fn store_at(url: &str) -> RedisStore {
    shared::connected(&StoreUrl::parse(url).expect("an address"), RedisOptions::default()).await
}

/// Takes one unit of two limits of every key, in one list of requests; units left of each.
async fn take_of_all(store: &RedisStore, limits: &[Limit; 2], keys: &[String]) -> Vec<u64> {
    let both = |key| limits.each_ref().map(|limit| Check::new(limit, key));
    let checks: Vec<Check<'_>> = keys.iter().flat_map(both).collect();
    let ends: Vec<usize> = (1..=keys.len()).map(|nth| 2 * nth).collect();
    let mut outcomes = vec![Outcome::default(); checks.len()];
    let (list, mut decisions) = (RequestList::new(&checks, &ends), Vec::new());
    let asked = store.decide_requests(list, Micros::ZERO.into(), &mut outcomes, &mut decisions);
    asked.await.expect("the cluster answers");
    assert!(decisions.iter().all(|decision| decision.allowed()));
    outcomes.iter().map(|outcome| outcome.remaining).collect()
}

/// Script calls for each request of one take of all keys.
async fn commands_per_call(store: &RedisStore, limits: &[Limit; 2], keys: &[String]) -> f64 {
    let before = store.link_stats();
    take_of_all(store, limits, keys).await;
    let after = store.link_stats();
    (after.commands - before.commands) as f64 / (after.calls_sent - before.calls_sent) as f64
}

/// Would catch: subjects that do not share slots, and limits of one subject in different slots.
#[tokio::test]
async fn requests_of_different_subjects_share_script_calls() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let (limits, keys) = ([limit("a"), limit("b")], keys());
    let own = store_at(&cluster.url()).await;
    assert!(commands_per_call(&own, &limits, &keys).await > 0.9, "each subject has its own slot");
    let slots = store_at(&format!("{}?slots=3", cluster.url())).await;
    assert!(commands_per_call(&slots, &limits, &keys).await < 0.3, "three slots for all subjects");
    let size = |node: &TestRedis| node.cli(&["DBSIZE"]).trim().parse::<usize>().unwrap();
    assert_eq!(cluster.nodes().iter().map(size).sum::<usize>(), 4 * KEYS, "no two subjects meet");
    assert!(cluster.nodes().iter().all(|node| size(node) > KEYS), "every node has its part");
}

/// Would catch: a charge that is lost or made twice while a slot that subjects share moves.
#[tokio::test]
async fn a_slot_that_subjects_share_moves_to_another_node() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let (limits, keys) = ([limit("a"), limit("b")], keys());
    let store = store_at(&format!("{}?slots=3", cluster.url())).await;
    assert_eq!(take_of_all(&store, &limits, &keys).await, [999; 2 * KEYS]);

    let (source, target) = (cluster.node(0), cluster.node(1));
    let slot = source.cli(&["CLUSTER", "KEYSLOT", &source.cli(&["RANDOMKEY"])]);
    target.tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &cluster.id_of(0)]);
    source.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &cluster.id_of(1)]);
    let port = target.port().to_string();
    let migrate = |count: &str| {
        for key in source.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, count]).lines() {
            source.tell(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    };
    migrate("30");
    assert_eq!(take_of_all(&store, &limits, &keys).await, [998; 2 * KEYS], "a part has moved");
    migrate("1000");
    assert_eq!(take_of_all(&store, &limits, &keys).await, [997; 2 * KEYS], "all keys have moved");
    for node in cluster.nodes() {
        node.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &cluster.id_of(1)]);
    }
    assert_eq!(take_of_all(&store, &limits, &keys).await, [996; 2 * KEYS], "the slot has moved");
    assert!(commands_per_call(&store, &limits, &keys).await < 0.3, "requests share calls again");
}
