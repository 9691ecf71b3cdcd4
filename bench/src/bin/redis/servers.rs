//! The Redis processes that are measured: all on one core, apart from the client's thread.

use testkit::redis::{TestRedis, TestRedisCluster, TestRedisLaunch};

/// The core of the client's thread.
pub(crate) const CLIENT_CORE: usize = 0;
/// The core of Redis.
pub(crate) const REDIS_CORE: usize = 1;

/// One server, or the primaries of a cluster.
pub(crate) enum RedisBenchServers {
    One(Box<TestRedis>),
    Cluster(TestRedisCluster),
}

impl RedisBenchServers {
    pub(crate) fn one() -> RedisBenchServers {
        RedisBenchServers::One(Box::new(launch().start()))
    }

    pub(crate) fn cluster(primaries: usize) -> RedisBenchServers {
        RedisBenchServers::Cluster(TestRedisCluster::launch(primaries, false, &launch()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            RedisBenchServers::One(server) => server.url(),
            RedisBenchServers::Cluster(cluster) => cluster.url(),
        }
    }

    /// The URL of the first server alone.
    pub(crate) fn first_url(&self) -> String {
        self.all()[0].url()
    }

    fn all(&self) -> &[TestRedis] {
        match self {
            RedisBenchServers::One(server) => std::slice::from_ref(server),
            RedisBenchServers::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.all().iter().map(TestRedis::pid).collect()
    }

    /// Script calls so far, EVALSHA and EVAL, on all servers.
    pub(crate) fn script_calls(&self) -> ScriptCalls {
        let of = |server: &TestRedis| calls_in(&server.cli(&["INFO", "commandstats"]));
        let add = |a: ScriptCalls, b: ScriptCalls| ScriptCalls {
            count: a.count + b.count,
            inside_us: a.inside_us + b.inside_us,
        };
        self.all().iter().map(of).fold(ScriptCalls::default(), add)
    }
}

/// The number of script calls, and their time by Redis' own statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptCalls {
    pub(crate) count: u64,
    pub(crate) inside_us: u64,
}

fn launch() -> TestRedisLaunch {
    TestRedisLaunch::new().on_core(REDIS_CORE)
}

/// Parses lines such as `cmdstat_evalsha:calls=12,usec=34,…`.
fn calls_in(info: &str) -> ScriptCalls {
    let mut calls = ScriptCalls::default();
    for line in info.lines() {
        let Some((name, figures)) = line.split_once(':') else { continue };
        if !["cmdstat_eval", "cmdstat_evalsha"].contains(&name) {
            continue;
        }
        let figure = |name: &str| {
            let value = figures.split(',').find_map(|it| it.strip_prefix(name));
            value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
        };
        calls.count += figure("calls=");
        calls.inside_us += figure("usec=");
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_calls_are_counted() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=12,usec=50,usec_per_call=4.1\r\ncmdstat_eval:calls=3,usec=6\r\n\
                    cmdstat_evalsha_ro:calls=9,usec=1\r\ncmdstat_get:calls=7,usec=1\r\n";
        assert_eq!(calls_in(info), ScriptCalls { count: 15, inside_us: 56 });
    }
}
