//! Requests whose keys are on different nodes of a cluster: every limit gets what is its own, whoever
//! refuses, fails or stops waiting.

use std::time::Duration;

use crate::shared;
use testkit::redis::{TestRedisCluster, TestRedisLaunch};
use tollgate::{
    Act, Check, DecidedBy, Decision, Key, Limit, Micros, OnFailure, Outcome, Store, Terms,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};
use tollgate_shared::remote_store::{AnswerStates, CallTiming, RemoteStore};

fn per_day(name: &str, units: u64) -> Limit {
    Limit::per_day(units).name(name).build().unwrap()
}

fn at_zero(timeout: Duration) -> CallTiming {
    CallTiming { now: Micros::ZERO, deadline: tokio::time::Instant::now() + timeout }
}

async fn store_of(cluster: &TestRedisCluster) -> RedisStore {
    let url = StoreUrl::parse(&cluster.url()).unwrap();
    shared::connected(&url, RedisOptions::default()).await
}

fn sizes(cluster: &TestRedisCluster) -> Vec<i64> {
    let size = |node: usize| cluster.node(node).cli(&["DBSIZE"]).trim().parse().unwrap();
    (0..cluster.primaries()).map(size).collect()
}

/// A key on each node, in the order of the nodes.
async fn keys_of(cluster: &TestRedisCluster, store: &RedisStore) -> Vec<String> {
    let limit = per_day("where", 1_000);
    let mut keys = vec![None; cluster.primaries()];
    for number in 0.. {
        let key = format!("k{number}");
        let before = sizes(cluster);
        let check = [Check::new(&limit, &key)];
        let _ = store.decide_each(&check, Micros::ZERO, &mut [Outcome::default()]).await.unwrap();
        let after = sizes(cluster);
        let node = (0..after.len()).find(|&node| after[node] > before[node]).expect("a key more");
        keys[node].get_or_insert(key);
        if keys.iter().all(Option::is_some) {
            break;
        }
    }
    keys.into_iter().flatten().collect()
}

#[tokio::test]
async fn each_check_is_told_its_own_state_and_up_to_is_level() {
    // A node that does not answer for long leaves the others as they are.
    let launch = TestRedisLaunch::new().args(&["--cluster-require-full-coverage", "no"]);
    let cluster = TestRedisCluster::launch(3, false, &launch);
    let store = store_of(&cluster).await;
    let keys = keys_of(&cluster, &store).await;
    // Subjects in turn, so that the checks of a node are not beside each other.
    let limits = [("a", 100), ("b", 90), ("c", 80), ("d", 70)].map(|(name, n)| per_day(name, n));
    let checks: Vec<Check<'_>> = limits
        .iter()
        .enumerate()
        .map(|(index, limit)| Check::new(limit, &keys[index % 2]).cost(10 + index as u64))
        .collect();
    let (mut outcomes, mut seen) = ([Outcome::default(); 4], AnswerStates::default());
    let ask = store.decide_with_states(&checks, at_zero(store.timeout()), &mut outcomes, &mut seen);
    ask.await.unwrap();
    assert!(Decision::of_outcomes(&checks, &outcomes, seen.answered_at).allowed());
    assert!(seen.answered_at > Micros::ZERO, "the instant is a node's");
    let left = |seen: &AnswerStates| -> Vec<i64> {
        let each = seen.states.iter().zip(&limits);
        each.map(|(state, limit)| state.balance(limit, seen.answered_at)).collect()
    };
    assert_eq!(left(&seen), [90, 79, 68, 57]);
    // The last refuses: what is told is what stays, with nothing of this request.
    let mut checks = checks;
    checks[3] = checks[3].cost(58);
    let ask = store.decide_with_states(&checks, at_zero(store.timeout()), &mut outcomes, &mut seen);
    ask.await.unwrap();
    let decision = Decision::of_outcomes(&checks, &outcomes, seen.answered_at);
    assert_eq!((decision.allowed(), decision.binding()), (false, 3));
    assert_eq!(left(&seen), [90, 79, 68, 57]);
    assert_eq!(outcomes.map(|outcome| outcome.charged), [0; 4]);
    // Whoever asked so gives back; it was charged before the last was asked.
    let back: Vec<usize> = seen.to_refund.iter().map(|(index, _)| *index).collect();
    assert_eq!(back, [0, 2]);
    for (index, receipt) in seen.to_refund.drain(..) {
        let (check, units) = (&checks[index], receipt.granted());
        let refund = store.refund(check.limit(), check.key(), Some(receipt), units, Micros::ZERO);
        refund.await.unwrap();
    }
    for (check, left) in checks.iter().zip([90, 79, 68, 57]) {
        let key = std::str::from_utf8(check.key().as_bytes()).unwrap();
        shared::until_left(&store, check.limit(), key, left).await;
    }
    // "Up to": what the least grants, and no more is taken of the others.
    let up_to = [per_day("x", 10), per_day("y", 4)];
    let checks = [0, 1].map(|at| Check::new(&up_to[at], &keys[at]).cost(10).act(Act::UpTo));
    let mut outcomes = [Outcome::default(); 2];
    let decision = store.decide_each(&checks, Micros::ZERO, &mut outcomes).await.unwrap();
    assert!(decision.allowed());
    assert_eq!(outcomes.map(|outcome| (outcome.charged, outcome.remaining)), [(4, 6), (4, 0)]);
    shared::until_left(&store, &up_to[0], &keys[0], 6).await;
    // Whoever stops waiting leaves nothing charged that the answer would have given back.
    let none = per_day("none", 1);
    let fill = [Check::new(&none, &keys[1])];
    assert!(store.decide_each(&fill, Micros::ZERO, &mut outcomes[..1]).await.unwrap().allowed());
    cluster.node(1).freeze();
    let checks = [Check::new(&limits[0], &keys[0]), Check::new(&none, &keys[1])];
    let ask = store.decide_each(&checks, Micros::ZERO, &mut outcomes);
    let charged = shared::until_left(&store, &limits[0], &keys[0], 89);
    tokio::select! {
        // Its own answer and ours may come together: it has to hear of its charge before it goes.
        biased;
        decision = ask => panic!("a frozen node answers: {decision:?}"),
        () = charged => {}
    }
    shared::until_left(&store, &limits[0], &keys[0], 90).await;
    cluster.node(1).thaw();
}

/// Would catch: a node that fails making all limits of a request those of this process.
#[tokio::test]
async fn one_node_that_fails_leaves_the_limits_of_the_others_right() {
    let launch = TestRedisLaunch::new().args(&["--cluster-require-full-coverage", "no"]);
    let mut cluster = TestRedisCluster::launch(3, false, &launch);
    let store = store_of(&cluster).await;
    let keys = keys_of(&cluster, &store).await;
    let there = store.clone();
    let shared = SharedStore::start(vec![store], 1_000, TimeSource::Server);
    let limits = [per_day("here", 100), per_day("gone", 3)];
    cluster.node_mut(1).kill();
    let ask = async |on_failure: OnFailure| {
        let gone = Check::new(&limits[1], &keys[1]).terms(Terms { on_failure, ..Terms::default() });
        let checks = [Check::new(&limits[0], &keys[0]), gone];
        let mut outcomes = [Outcome::default(); 2];
        let Ok(decision) =
            Store::decide_each(&shared, &checks, Micros::ZERO.into(), &mut outcomes).await;
        (decision.allowed(), outcomes.map(|outcome| outcome.decided_by))
    };
    for allowed in [true, true, true, false] {
        let said = ask(OnFailure::Local).await;
        assert_eq!(said, (allowed, [DecidedBy::Redis, DecidedBy::Local]));
    }
    shared::until_left(&there, &limits[0], &keys[0], 97).await;
    assert_eq!(ask(OnFailure::Closed).await, (false, [DecidedBy::Redis, DecidedBy::Closed]));
    shared::until_left(&there, &limits[0], &keys[0], 97).await;
    assert_eq!(ask(OnFailure::Open).await, (true, [DecidedBy::Redis, DecidedBy::Open]));
    shared::until_left(&there, &limits[0], &keys[0], 96).await;
    // Asked without anybody who handles failures, it is one: nothing stays charged.
    let checks = [Check::new(&limits[0], &keys[0]), Check::new(&limits[1], &keys[1])];
    let mut outcomes = [Outcome::default(); 2];
    let ask = there.decide_each(&checks, Micros::ZERO, &mut outcomes);
    assert!(tokio::time::timeout(Duration::from_secs(20), ask).await.unwrap().is_err());
    shared::until_left(&there, &limits[0], &keys[0], 96).await;
    assert!(there.balance(&limits[1], Key::from(&keys[1]), Micros::ZERO).await.is_err());
}

/// Would catch: a refund that a node certainly did not make being dropped, and one that is lost being
/// counted nowhere.
#[tokio::test]
async fn a_refund_that_a_node_cannot_take_waits() {
    let cluster = TestRedisCluster::launch(3, false, &TestRedisLaunch::new());
    let store = store_of(&cluster).await;
    let keys = keys_of(&cluster, &store).await;
    let limits = [per_day("wide", 100), per_day("none", 1)];
    let fill = [Check::new(&limits[1], &keys[1])];
    let filled = store.decide_each(&fill, Micros::ZERO, &mut [Outcome::default()]).await;
    assert!(filled.unwrap().allowed());
    let there = store.clone();
    let shared = SharedStore::start(vec![store], 1_000, TimeSource::Server);
    let checks = [Check::new(&limits[0], &keys[0]), Check::new(&limits[1], &keys[1])];
    let out_of_memory = |is: bool| {
        let bytes = if is { "1" } else { "0" };
        cluster.node(0).tell(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    let charged = async || {
        shared::until_left(&there, &limits[0], &keys[0], 99).await;
        out_of_memory(true);
    };

    // The second node refuses, and by then the first takes nothing back.
    cluster.node(1).freeze();
    let mut outcomes = [Outcome::default(); 2];
    let ask = Store::decide_each(&shared, &checks, Micros::ZERO.into(), &mut outcomes);
    let thaw = async {
        charged().await;
        cluster.node(1).thaw();
    };
    let (Ok(decision), ()) = tokio::join!(ask, thaw);
    assert_eq!((decision.allowed(), decision.binding()), (false, 1));
    shared::until("it waits", || shared.stats().pending_changes == 1).await;
    out_of_memory(false);
    let back = async || there.balance(&limits[0], Key::from(&keys[0]), Micros::ZERO).await.ok();
    let told = async {
        while back().await != Some(100) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("told when it can be");
    assert_eq!(shared.stats().refunds_lost, 0);

    // The same, and nobody waits for the answer any more.
    shared.forget_refusals();
    cluster.node(1).freeze();
    tokio::select! {
        biased;
        decision = Store::decide_each(&shared, &checks, Micros::ZERO.into(), &mut outcomes) => {
            panic!("a frozen node answers: {decision:?}")
        }
        () = charged() => {}
    }
    cluster.node(1).thaw();
    shared::until("it waits", || shared.stats().pending_changes == 1).await;
    out_of_memory(false);
    shared::until_left(&there, &limits[0], &keys[0], 100).await;
    assert_eq!(shared.stats().refunds_lost, 0);
}
