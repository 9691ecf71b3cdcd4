//! A cluster: slots that move, nodes that come and go, and a map that keeps up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::redis::{SLOTS, TestRedis, TestRedisCluster, TestRedisLaunch};
use testkit::wait;
use tollgate::{Check, Limit, Micros, Outcome};

use super::*;
use crate::store::RedisStore;

/// CRC-16/XMODEM of the whole key, or of what stands in braces.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let crc = tag.unwrap_or(key).bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    });
    crc % SLOTS
}

/// A key of this node, by its place when all is well.
fn key_at(cluster: &TestRedisCluster, node: usize) -> String {
    let own = |key: &String| cluster.owner_of(slot_of(key)) == node;
    (0..).map(|n| format!("k{n}")).find(own).unwrap()
}

impl CountingStore {
    pub(super) fn add_at(&self, key: &str) -> Result<i64, StoreError> {
        self.callers.block_on(add(&self.link, key, slot_of(key)))
    }
}

/// Callers on a thread of their own who add to many keys until told to stop.
struct ClusterLoad {
    over: Arc<AtomicBool>,
    thread: JoinHandle<ClusterLoadResult>,
}

/// What each key was added, and the errors.
type ClusterLoadResult = (Vec<(String, i64)>, Vec<StoreError>);

impl ClusterLoad {
    fn start(store: &CountingStore, keys: usize) -> ClusterLoad {
        let over = Arc::new(AtomicBool::new(false));
        let (link, stop) = (store.link.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let adding: Vec<_> = (0..keys)
                    .map(|n| {
                        let (link, stop, key) = (link.clone(), stop.clone(), format!("load{n}"));
                        tokio::spawn(async move {
                            let (mut sum, mut errors) = (0, Vec::new());
                            while !stop.load(Ordering::Relaxed) {
                                match add(&link, &key, slot_of(&key)).await {
                                    Ok(_) => sum += 1,
                                    Err(error) => errors.push(error),
                                }
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                            (key, sum, errors)
                        })
                    })
                    .collect();
                let (mut sums, mut errors) = (Vec::new(), Vec::new());
                for adding in adding {
                    let (key, sum, failed) = adding.await.unwrap();
                    sums.push((key, sum));
                    errors.extend(failed);
                }
                (sums, errors)
            })
        });
        ClusterLoad { over, thread }
    }

    fn stop(self) -> ClusterLoadResult {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }

    /// Nobody saw an error, and every key has what its caller was told.
    fn stop_and_compare(self, store: &CountingStore) {
        let (sums, errors) = self.stop();
        assert_eq!(errors, []);
        for (key, sum) in sums {
            assert_eq!(store.add_at(&key).unwrap(), sum + 1, "{key}");
        }
    }
}

#[test]
fn every_key_is_asked_for_where_it_is() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let store = CountingStore::at(&cluster.url(), PLENTY);
    for n in 0..300 {
        assert_eq!(store.add_at(&format!("k{n}")).unwrap(), 1);
    }
    let stats = store.link.stats();
    assert_eq!((stats.nodes.len(), stats.errors_of(ErrorClass::Moved)), (3, 0));
    assert!(stats.nodes.iter().all(|node| node.up));
    assert_eq!(store.run("PING", &[]).unwrap(), RedisValue::SimpleString("PONG".into()));

    // Slots move: one call is redirected, the next knows.
    let key = key_at(&cluster, 0);
    let slot = slot_of("empty{x}").to_string();
    let (from, to) = (cluster.owner_of(slot_of("empty{x}")), cluster.owner_of(slot_of(&key)));
    let to = if from == to { (to + 1) % 3 } else { to };
    let (here, there) = (cluster.id_of(from), cluster.id_of(to));
    cluster.node(to).tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &here]);
    for node in [to, from] {
        cluster.node(node).tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &there]);
    }
    assert_eq!(store.add_at("empty{x}").unwrap(), 1);
    assert_eq!(store.add_at("empty{x}").unwrap(), 2);
    assert_eq!(store.errors(ErrorClass::Moved), 1);
}

#[test]
fn keys_on_their_way_are_found_on_either_side() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let store = CountingStore::at(&cluster.url(), PLENTY);
    let slot = slot_of("{m}");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let (source, target) = (cluster.node(from), cluster.node(to));
    let (here, there) = (cluster.id_of(from), cluster.id_of(to));
    assert_eq!(store.add_at("old{m}").unwrap(), 1);
    assert_eq!(store.add_at("left{m}").unwrap(), 1);
    let slot_text = slot.to_string();
    target.tell(&["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", &here]);
    source.tell(&["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", &there]);
    let migrate = |key: &str| {
        let port = target.port().to_string();
        source.tell(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    };
    migrate("left{m}");

    // What is still there, what has left, what is new.
    assert_eq!(store.add_at("old{m}").unwrap(), 2);
    assert_eq!(store.add_at("left{m}").unwrap(), 2);
    assert_eq!(store.add_at("new{m}").unwrap(), 1);
    assert_eq!(store.errors(ErrorClass::Ask), 2);
    assert_eq!(source.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot_text]), "1");

    // Together with others in one command, each is still found.
    let crowd = async {
        let adding = (0..60).map(|n| {
            let (link, key) = (store.link.clone(), ["old{m}", "left{m}", "new{m}"][n % 3]);
            tokio::spawn(async move { add(&link, key, slot).await.unwrap() })
        });
        for adding in adding.collect::<Vec<_>>() {
            adding.await.unwrap();
        }
    };
    store.callers.block_on(crowd);
    assert!(store.errors(ErrorClass::TryAgain) > 0);
    assert_eq!(store.add_at("old{m}").unwrap(), 23);

    // One whose keys are on neither side is told so at once, to be asked for key by key.
    let asks = store.errors(ErrorClass::Ask);
    let fresh = ScriptCall { keys: vec!["x{m}".into(), "y{m}".into()], ..call_of("", slot) };
    let error = store.callers.block_on(store.link.call(fresh)).unwrap_err();
    assert_eq!((error.class, store.errors(ErrorClass::Ask)), (ErrorClass::TryAgain, asks + 1));

    // One call with keys on both sides can be answered by nobody, until all have arrived.
    let both = || ScriptCall { keys: vec!["old{m}".into(), "left{m}".into()], ..call_of("", slot) };
    let error = store.callers.block_on(store.link.call(both())).unwrap_err();
    assert_eq!(error.class, ErrorClass::TryAgain);
    migrate("old{m}");
    for node in [target, source] {
        node.tell(&["CLUSTER", "SETSLOT", &slot_text, "NODE", &there]);
    }
    let sums = store.callers.block_on(store.link.call(both())).unwrap();
    assert_eq!(sums, RedisValue::Array(vec![RedisValue::Int(24), RedisValue::Int(23)]));
    assert!(store.errors(ErrorClass::Moved) >= 1);
}

/// Limits of one subject are one call, which no node can answer while the slot moves: then each limit is
/// asked for by itself, and what is refused leaves nothing charged.
#[tokio::test]
async fn several_limits_of_a_subject_are_decided_while_their_slot_moves() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let options = RedisOptions { timeout: PLENTY, ..RedisOptions::default() };
    let store = RedisStore::at(&StoreUrl::parse(&cluster.url()).unwrap(), &options);
    let limits =
        [("a", 9), ("b", 3)].map(|(name, units)| Limit::per_day(units).name(name).build().unwrap());
    let key_of = |user: &str, limit: &Limit| {
        let subject = store.key_namer.subject(user.as_bytes());
        String::from_utf8(store.key_namer.key(subject, limit, 0)).unwrap()
    };
    let slot = slot_of(&key_of("old", &limits[0]));
    let in_slot = |user: &String| slot_of(&key_of(user, &limits[0])) == slot;
    let fresh = (0..).map(|n| format!("fresh{n}")).find(in_slot).unwrap();
    let decide = async |user: &str| {
        let checks = limits.each_ref().map(|limit| Check::new(limit, user));
        let mut outcomes = [Outcome::default(); 2];
        let decision = store.decide_each(&checks, Micros::ZERO, &mut outcomes).await.unwrap();
        (decision.allowed(), outcomes.map(|outcome| outcome.remaining))
    };
    assert_eq!(decide("old").await, (true, [8, 2]));

    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = slot.to_string();
    target.tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &cluster.id_of(from)]);
    source.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &cluster.id_of(to)]);
    // One limit of an old subject has left; a new one is on neither side.
    let port = target.port().to_string();
    source.tell(&["MIGRATE", "127.0.0.1", &port, &key_of("old", &limits[1]), "0", "5000"]);
    for expected in [(true, [7, 1]), (true, [6, 0]), (false, [6, 0])] {
        assert_eq!(decide("old").await, expected);
    }
    assert_eq!(decide(&fresh).await, (true, [8, 2]));
    assert!(store.link_stats().errors_of(ErrorClass::TryAgain) > 0, "the slot was moving");
    // What was given back arrives by itself.
    let given_back = async {
        while store.balance(&limits[0], "old".into(), Micros::ZERO).await.unwrap() != 6 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait::WAIT_TIMEOUT, given_back)
        .await
        .expect("what was refused given back");
}

#[test]
fn keys_of_different_slots_are_an_error_of_their_call_only() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let store = CountingStore::at(&cluster.url(), PLENTY);
    let (a, b) = (key_at(&cluster, 0), key_at(&cluster, 1));
    let across = ScriptCall { keys: vec![a.clone().into(), b.into()], ..call_of("", slot_of(&a)) };
    for _ in 0..10 {
        let error = store.callers.block_on(store.link.call(across.clone())).unwrap_err();
        assert_eq!(error.class, ErrorClass::CrossSlot);
    }
    assert_eq!(store.add_at(&a).unwrap(), 1);
}

#[test]
fn slots_are_resharded_and_primaries_replaced_under_load() {
    let cluster = TestRedisCluster::start();
    let store = CountingStore::at(&cluster.url(), PLENTY);
    let load = ClusterLoad::start(&store, 60);
    // Slots that hold the load's keys go from each primary to the next.
    for from in 0..3 {
        let words = [
            "--cluster",
            "reshard",
            &cluster.node(0).address().to_string(),
            "--cluster-from",
            &cluster.id_of(from),
            "--cluster-to",
            &cluster.id_of((from + 1) % 3),
            "--cluster-slots",
            "500",
            "--cluster-yes",
        ];
        // It begins only when all nodes have heard of what was moved before.
        wait::until_true("the slots to move", || {
            let said = std::process::Command::new("redis-cli").args(words).output().unwrap();
            said.status.success()
        });
    }
    // A replica takes over by agreement.
    cluster.node(3).tell(&["CLUSTER", "FAILOVER"]);
    wait::until_true("the replica to take over", || {
        cluster.node(3).cli(&["ROLE"]).starts_with("master")
    });
    load.stop_and_compare(&store);
    assert!(store.errors(ErrorClass::Moved) > 0);
    let stats = store.link.stats();
    let names: Vec<_> = stats.nodes.iter().map(|node| node.address.as_str()).collect();
    wait::until_true("the map to follow", || {
        let stats = store.link.stats();
        stats.nodes.iter().any(|n| n.address == cluster.node(3).address().to_string())
    });
    assert!(names.len() <= 6, "{names:?}");
}

#[test]
fn a_primary_dies_and_only_its_keys_wait_for_the_replica() {
    // Otherwise Redis itself refuses all keys as soon as some have no node.
    let partial = TestRedisLaunch::new().args(&["--cluster-require-full-coverage", "no"]);
    let mut cluster = TestRedisCluster::launch(3, true, &partial);
    let store = CountingStore::at(&cluster.url(), Duration::from_millis(250));
    let (lost, other) = (key_at(&cluster, 0), key_at(&cluster, 1));
    wait::until_true("all to be connected", || {
        let stats = store.link.stats();
        stats.nodes.len() == 3 && stats.nodes.iter().all(|node| node.up)
    });
    assert_eq!(store.add_at(&lost).unwrap(), 1);
    cluster.node_mut(0).kill();
    let killed = wait::now();
    let mut sum = 0;
    let took = wait::until("the replica to answer", || {
        sum += 1;
        assert_eq!(store.add_at(&other).unwrap(), sum);
        store.add_at(&lost).ok().map(|_| wait::now() - killed)
    });
    assert!(took < Duration::from_secs(6), "{took:?}");
    cluster.node_mut(0).restart();
    wait::until_true("the old primary to be a replica", || {
        cluster.node(0).cli(&["ROLE"]).starts_with("slave")
    });
    store.add_at(&lost).unwrap();
}

#[test]
fn a_cluster_without_a_majority_is_down_and_comes_back() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let store = CountingStore::at(&cluster.url(), Duration::from_millis(250));
    let key = key_at(&cluster, 0);
    store.add_at(&key).unwrap();
    cluster.node(1).freeze();
    cluster.node(2).freeze();
    wait::until_true("the cluster to be down", || {
        store.add_at(&key).is_err_and(|error| error.class == ErrorClass::ClusterDown)
    });
    cluster.node(1).thaw();
    cluster.node(2).thaw();
    for node in 0..3 {
        let key = key_at(&cluster, node);
        wait::until("an answer", || store.add_at(&key).ok());
    }
}

#[test]
fn a_whole_cluster_restarts() {
    let mut cluster = TestRedisCluster::with_primaries(3, false);
    let store = CountingStore::at(&cluster.url(), Duration::from_millis(250));
    let keys: Vec<_> = (0..3).map(|node| key_at(&cluster, node)).collect();
    keys.iter().for_each(|key| assert_eq!(store.add_at(key).unwrap(), 1));
    (0..3).for_each(|node| cluster.node_mut(node).kill());
    wait::until_true("nobody to be there", || {
        store.add_at(&keys[0]).is_err_and(|error| error.class == ErrorClass::Connect)
    });
    (0..3).for_each(|node| cluster.node_mut(node).restart());
    for key in &keys {
        wait::until("an answer", || store.add_at(key).ok());
    }
}

#[test]
fn a_server_that_is_no_cluster_is_told() {
    let server = TestRedis::start();
    let store = CountingStore::at(&format!("redis-cluster://{}", server.address()), PLENTY);
    let error = wait::until("an error", || store.add("a").err());
    assert!(error.detail.contains("cluster support disabled"), "{error}");
    let store = CountingStore::at("redis-cluster://127.0.0.1:1,127.0.0.1:2", PLENTY);
    store.until_class(ErrorClass::Connect);
}
