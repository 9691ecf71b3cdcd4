//! A primary with two replicas, watched by three sentinels.

use super::server::{TestRedis, TestRedisLaunch};
use crate::wait;

/// The primary's name in the sentinels.
pub const PRIMARY_NAME: &str = "tollgate";

/// Six running processes that know each other; stopped when dropped.
#[derive(Debug)]
pub struct TestRedisSentinels {
    data: Vec<TestRedis>,
    sentinels: Vec<TestRedis>,
}

impl TestRedisSentinels {
    /// Starts them. The primary counts as down after 1 s without an answer, if two sentinels agree.
    ///
    /// # Panics
    ///
    /// If they do not find each other in time.
    #[must_use]
    pub fn start() -> TestRedisSentinels {
        TestRedisSentinels::with(&[])
    }

    /// The same, with further arguments for the three data nodes.
    ///
    /// # Panics
    ///
    /// If they do not find each other in time.
    #[must_use]
    pub fn with(args: &[&str]) -> TestRedisSentinels {
        // Replicas ask for the data at once, and the primary does not wait for more of them.
        let launch = TestRedisLaunch::new().args(args).args(&["--repl-diskless-sync-delay", "0"]);
        let primary = launch.clone().start();
        let port = primary.port().to_string();
        let replica = || launch.clone().args(&["--replicaof", "127.0.0.1", &port]).start();
        let data = vec![primary, replica(), replica()];
        let configuration = format!(
            "sentinel monitor {PRIMARY_NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {PRIMARY_NAME} 1000\n\
             sentinel failover-timeout {PRIMARY_NAME} 3000\n\
             sentinel parallel-syncs {PRIMARY_NAME} 2\n"
        );
        wait::until_true("the replicas to be in step", || {
            let info = data[0].cli(&["INFO", "replication"]);
            info.matches("state=online").count() == 2
        });
        let sentinel = || TestRedisLaunch::new().sentinel(configuration.clone()).start();
        let sentinels =
            TestRedisSentinels { data, sentinels: vec![sentinel(), sentinel(), sentinel()] };
        sentinels.wait_until_known();
        sentinels
    }

    /// The nodes with data; the first is the primary at the start.
    #[must_use]
    pub fn data(&self) -> &[TestRedis] {
        &self.data
    }

    /// The same, to kill or restart one.
    pub fn data_mut(&mut self, index: usize) -> &mut TestRedis {
        &mut self.data[index]
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[TestRedis] {
        &self.sentinels
    }

    /// The same, to kill or restart one.
    pub fn sentinel_mut(&mut self, index: usize) -> &mut TestRedis {
        &mut self.sentinels[index]
    }

    /// `redis-sentinel://`, the addresses of the sentinels, `/` and [`PRIMARY_NAME`].
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(|it| it.address().to_string()).collect();
        format!("redis-sentinel://{}/{PRIMARY_NAME}", addresses.join(","))
    }

    /// The port of the primary according to this sentinel.
    #[must_use]
    pub fn primary_port(&self, sentinel: usize) -> Option<u16> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME];
        self.sentinels[sentinel].cli(&words).lines().nth(1)?.parse().ok()
    }

    /// Waits until every sentinel knows the two others and both replicas.
    fn wait_until_known(&self) {
        for sentinel in &self.sentinels {
            wait::until_true("the sentinels to know each other", || {
                let known = sentinel.cli(&["SENTINEL", "MASTER", PRIMARY_NAME]);
                let lines: Vec<&str> = known.lines().collect();
                let of = |name| lines.iter().position(|it| *it == name).map(|at| lines[at + 1]);
                of("num-slaves") == Some("2") && of("num-other-sentinels") == Some("2")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_make_a_replica_the_primary() {
        let mut redis = TestRedisSentinels::start();
        let before = redis.data()[0].port();
        assert_eq!(redis.primary_port(0), Some(before));
        redis.data_mut(0).kill();
        let after =
            wait::until("a failover", || redis.primary_port(1).filter(|port| *port != before));
        let primary = redis.data().iter().find(|it| it.port() == after).unwrap();
        wait::until_true("the new primary to take writes", || {
            primary.cli(&["SET", "a", "1"]) == "OK"
        });
    }
}
