//! The Redis processes that are measured: all on one core, away from the thread that asks.

use testkit::redis::{Cluster, Launch, Server};

/// Where the thread that asks runs.
pub(crate) const CLIENT_CORE: usize = 0;
/// Where Redis runs.
pub(crate) const REDIS_CORE: usize = 1;

/// One server, or the primaries of a cluster.
pub(crate) enum Servers {
    One(Box<Server>),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn one() -> Servers {
        Servers::One(Box::new(launch().start()))
    }

    pub(crate) fn cluster(primaries: usize) -> Servers {
        Servers::Cluster(Cluster::launch(primaries, false, &launch()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Servers::One(server) => server.url(),
            Servers::Cluster(cluster) => cluster.url(),
        }
    }

    fn all(&self) -> &[Server] {
        match self {
            Servers::One(server) => std::slice::from_ref(server),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.all().iter().map(Server::pid).collect()
    }

    /// Script calls so far: EVALSHA and EVAL, on all of them.
    pub(crate) fn script_calls(&self) -> u64 {
        self.all().iter().map(|server| calls_in(&server.cli(&["INFO", "commandstats"]))).sum()
    }
}

fn launch() -> Launch {
    Launch::new().on_core(REDIS_CORE)
}

/// From lines such as `cmdstat_evalsha:calls=12,usec=…`.
fn calls_in(info: &str) -> u64 {
    let calls = |line: &str| {
        let rest = line.strip_prefix("cmdstat_eval")?;
        let rest = rest.strip_prefix("sha").unwrap_or(rest).strip_prefix(":calls=")?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    info.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_calls_are_counted() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=12,usec=1\r\ncmdstat_eval:calls=3,usec=1\r\n\
                    cmdstat_evalsha_ro:calls=9,usec=1\r\ncmdstat_get:calls=7,usec=1\r\n";
        assert_eq!(calls_in(info), 15);
    }
}
