//! A Redis Cluster: primaries with or without replicas, each a process of its own.

use std::thread;

use super::server::{TestRedis, TestRedisLaunch};
use crate::wait;

/// Number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// A cluster that is up; stopped when dropped.
#[derive(Debug)]
pub struct TestRedisCluster {
    /// Primaries first, then their replicas in the same order.
    nodes: Vec<TestRedis>,
    primaries: usize,
}

impl TestRedisCluster {
    /// Starts three primaries with a replica each. It takes about 2.2 s, because a primary accepts no writes in its
    /// first 2 s.
    #[must_use]
    pub fn start() -> TestRedisCluster {
        TestRedisCluster::with_primaries(3, true)
    }

    /// Starts a number of primaries, which divide the slots evenly in their order, and a replica of each if
    /// wanted. A node counts as failed after 1 s.
    ///
    /// # Panics
    ///
    /// If the nodes do not agree in time.
    #[must_use]
    pub fn with_primaries(primaries: usize, replicas: bool) -> TestRedisCluster {
        TestRedisCluster::launch(primaries, replicas, &TestRedisLaunch::new())
    }

    /// The same, with these settings for every node.
    ///
    /// # Panics
    ///
    /// If the nodes do not agree in time.
    #[must_use]
    pub fn launch(primaries: usize, replicas: bool, launch: &TestRedisLaunch) -> TestRedisCluster {
        let count = if replicas { 2 * primaries } else { primaries };
        let node = |_| {
            thread::spawn({
                let launch = launch.clone().args(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-config-file",
                    "nodes.conf",
                    "--cluster-node-timeout",
                    "1000",
                    // The first copy is made at once, without a wait for more replicas.
                    "--repl-diskless-sync-delay",
                    "0",
                    // Replicas take over at once, no matter how long they were disconnected.
                    "--cluster-replica-validity-factor",
                    "0",
                ]);
                move || launch.start()
            })
        };
        let starting: Vec<_> = (0..count).map(node).collect();
        let join = |node: thread::JoinHandle<TestRedis>| node.join().expect("a node starts");
        let cluster =
            TestRedisCluster { nodes: starting.into_iter().map(join).collect(), primaries };
        cluster.form();
        cluster
    }

    /// A node: primaries first, then the replica of each.
    #[must_use]
    pub fn node(&self, index: usize) -> &TestRedis {
        &self.nodes[index]
    }

    /// The same, to kill or restart it.
    pub fn node_mut(&mut self, index: usize) -> &mut TestRedis {
        &mut self.nodes[index]
    }

    /// All of them.
    #[must_use]
    pub fn nodes(&self) -> &[TestRedis] {
        &self.nodes
    }

    /// Number of primaries at the start.
    #[must_use]
    pub fn primaries(&self) -> usize {
        self.primaries
    }

    /// `redis-cluster://` and all addresses, with commas between.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|it| it.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// The index of the node that has this slot at the start.
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> usize {
        let owns = |n: &usize| self.slots_of(*n).contains(&slot);
        (0..self.primaries).find(owns).expect("every slot has an owner")
    }

    /// The name by which the nodes know this one: 40 hex digits.
    #[must_use]
    pub fn id_of(&self, index: usize) -> String {
        self.nodes[index].cli(&["CLUSTER", "MYID"])
    }

    /// Waits until every running node among these reports that the cluster is ok.
    ///
    /// # Panics
    ///
    /// If that does not happen in time.
    pub fn wait_until_ok(&self, among: &[usize]) {
        for &index in among {
            wait::until_true("the cluster to be well", || {
                self.nodes[index].cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
            });
        }
    }

    fn slots_of(&self, index: usize) -> std::ops::RangeInclusive<u16> {
        let edge = |n: usize| (usize::from(SLOTS) * n / self.primaries) as u16;
        edge(index)..=edge(index + 1) - 1
    }

    /// Divides the slots, introduces the nodes to each other, and waits until all agree.
    fn form(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Distinct epochs, as `redis-cli --cluster create` sets them, avoid conflicts.
            node.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < self.primaries {
                let slots = self.slots_of(index);
                let (first, last) = (slots.start().to_string(), slots.end().to_string());
                node.tell(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            // Each node meets all nodes before it, which is faster than gossip.
            for other in &self.nodes[..index] {
                node.tell(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        let ids: Vec<String> = (0..self.nodes.len()).map(|n| self.id_of(n)).collect();
        for (index, replica) in self.nodes.iter().enumerate().skip(self.primaries) {
            let primary = &ids[index - self.primaries];
            wait::until_true("a replica to know its primary", || {
                replica.cli(&["CLUSTER", "REPLICATE", primary]) == "OK"
            });
        }
        self.wait_until_ok(&(0..self.nodes.len()).collect::<Vec<_>>());
        for node in &self.nodes {
            wait::until_true("the nodes to agree", || self.is_known_to(node));
        }
    }

    /// Returns true if this node knows every node and the primary of every replica.
    fn is_known_to(&self, node: &TestRedis) -> bool {
        let known = node.cli(&["CLUSTER", "NODES"]);
        let all_linked = !known.contains("handshake") && !known.contains("disconnected");
        let count = |role: &str| known.lines().filter(|line| line.contains(role)).count();
        let replicas = self.nodes.len() - self.primaries;
        let linked = replicas == 0
            || node.cli(&["INFO", "replication"]).lines().any(|line| {
                line.starts_with("connected_slaves:1") || line.starts_with("master_link_status:up")
            });
        all_linked && linked && (count("master"), count("slave")) == (self.primaries, replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_nodes_agree_and_one_takes_over() {
        let mut cluster = TestRedisCluster::start();
        let slot: u16 = cluster.node(0).cli(&["CLUSTER", "KEYSLOT", "a"]).parse().unwrap();
        let owner = cluster.owner_of(slot);
        let replica = owner + cluster.primaries();
        cluster.node(owner).tell(&["SET", "a", "1"]);
        let other = (owner + 1) % 3;
        assert!(cluster.node(other).cli(&["GET", "a"]).contains("MOVED"));
        assert_eq!(cluster.node(owner).cli(&["WAIT", "1", "5000"]), "1");
        cluster.node_mut(owner).kill();
        wait::until_true("a failover", || cluster.node(replica).cli(&["SET", "a", "2"]) == "OK");
        let running: Vec<usize> = (0..6).filter(|n| *n != owner).collect();
        cluster.wait_until_ok(&running);
    }

    #[test]
    fn a_cluster_needs_no_replicas() {
        let cluster = TestRedisCluster::with_primaries(3, false);
        assert_eq!((cluster.nodes().len(), cluster.url().matches("127.0.0.1:").count()), (3, 3));
        assert_eq!(cluster.slots_of(0), 0..=5_460);
        assert_eq!(cluster.slots_of(2), 10_922..=16_383);
    }
}
