//! Faults of a Sentinel set and of a cluster: C12 to C15.

use std::time::Duration;

use testkit::redis::{TestRedisCluster, TestRedisSentinels};

use crate::faults::load::{FaultEffect, fault};
use crate::faults::one_node::server_on;

/// A failover takes the sentinels or the cluster a second or two; then the new primary decides.
const FAILOVER: Duration = Duration::from_secs(5);

#[test]
fn c12_sentinels_elect_another_primary() {
    let mut sentinels = TestRedisSentinels::start();
    let server = server_on(&sentinels.url());
    let primary = primary_of(&sentinels);
    let mut run = fault(&server, || sentinels.data_mut(primary).kill(), || ());
    run.check_no_errors();
    run.check_in_time();
    // Nobody mends it: the sentinels do.
    run.mended = run.broken;
    run.check_recovers(FAILOVER.min(
        run.answers.iter().map(|one| one.asked).max().unwrap_or_default()
            - run.broken
            - Duration::from_millis(300),
    ));
}

fn primary_of(sentinels: &TestRedisSentinels) -> usize {
    let port = sentinels.primary_port(0).expect("a primary");
    sentinels.data().iter().position(|one| one.port() == port).expect("one of ours")
}

#[test]
fn c13_a_primary_of_the_cluster_dies() {
    let mut cluster = TestRedisCluster::start();
    let server = server_on(&cluster.url());
    let run = fault(&server, || cluster.node_mut(0).kill(), || ());
    run.check_no_errors();
    run.check_in_time();
    let during = run.answers.iter().filter(|one| one.asked > run.broken);
    let by_store = during.clone().filter(|one| one.by_store()).count();
    assert!(by_store * 2 > during.count(), "two thirds of the keys are elsewhere");
    let settled = run.answers.iter().filter(|one| one.asked > run.broken + Duration::from_secs(4));
    let wrong = settled.clone().find(|one| !one.by_store());
    assert!(settled.count() > 0 && wrong.is_none(), "{wrong:?}");
}

#[test]
fn c14_slots_move_under_load() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let server = server_on(&cluster.url());
    let (from, to) = (cluster.id_of(0), cluster.id_of(1));
    let move_slots = || {
        let address = cluster.node(0).address().to_string();
        let words = [
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            "500",
            "--cluster-yes",
        ];
        let said = cluster.node(0).cli(&words);
        assert!(!said.contains("[ERR]"), "{said}");
    };
    let run = fault(&server, move_slots, || ());
    run.check(FaultEffect::Passes);
    let by_policy = run.answers.iter().filter(|one| !one.by_store()).count();
    assert!(by_policy * 100 <= run.answers.len(), "{by_policy} of {}", run.answers.len());
}

#[test]
fn c14_a_replica_takes_over_on_request() {
    let cluster = TestRedisCluster::start();
    let server = server_on(&cluster.url());
    let replica = cluster.primaries();
    let run = fault(&server, || cluster.node(replica).tell(&["CLUSTER", "FAILOVER"]), || ());
    run.check(FaultEffect::Passes);
}

#[test]
fn c15_a_minority_of_the_cluster() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let server = server_on(&cluster.url());
    let others = [1, 2];
    let run = fault(
        &server,
        || others.iter().for_each(|&node| cluster.node(node).freeze()),
        || others.iter().for_each(|&node| cluster.node(node).thaw()),
    );
    run.check_no_errors();
    run.check_in_time();
    run.check_recovers(Duration::from_secs(2));
    let degraded = run.answers.iter().any(|one| one.decided_by == "closed");
    assert!(degraded, "two thirds of the slots have nobody");
}
