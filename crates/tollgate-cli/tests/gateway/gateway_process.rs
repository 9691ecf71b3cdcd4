//! A gateway under test: `tollgate serve --gateway`, with rules in a file of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tempfile::TempDir;

use super::wire_client::{WireClient, WireReply};
use crate::harness::{TollgateProcess, file, text};

/// A rule that counts everything and never refuses, so that tests can compare its count with what upstreams receive. Only
/// 127.0.0.1 may say who calls.
pub(crate) const COUNTING_RULES: &str = "
identify: { trusted_peers: [127.0.0.1/32], user: { header: x-user-id }, tier: { header: x-tier } }
tiers: { free: 1, gold: 10 }
rules: [{ name: all, key: '{ip}', limits: [{ rate: 1000000/day, algorithm: fixed_window }] }]
";

/// The limit of [`COUNTING_RULES`].
const COUNTING_LIMIT: u64 = 1_000_000;

/// A running gateway; it ends when it is dropped.
pub(crate) struct GatewayProcess {
    pub(crate) server: TollgateProcess,
    directory: TempDir,
}

impl GatewayProcess {
    /// Starts a gateway with one worker, so that requests which follow each other use the same upstream connection.
    pub(crate) fn start(upstream: SocketAddr, rules: &str) -> GatewayProcess {
        GatewayProcess::start_with(upstream, rules, &["--workers", "1"])
    }

    /// Starts a gateway with further flags.
    pub(crate) fn start_with(upstream: SocketAddr, rules: &str, flags: &[&str]) -> GatewayProcess {
        let upstream = format!("http://{upstream}");
        GatewayProcess::start_routed(rules, &[&["--upstream", &upstream], flags].concat())
    }

    /// Starts a gateway whose upstreams are in the rules or in the flags.
    pub(crate) fn start_routed(rules: &str, flags: &[&str]) -> GatewayProcess {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = file(directory.path(), "rules.yaml", rules);
        let own = ["--gateway", "127.0.0.1:0", "--rules", text(&path)];
        let server = TollgateProcess::start(&[&own, flags].concat());
        GatewayProcess { server, directory }
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.gateway()
    }

    /// The rules file.
    pub(crate) fn rules_path(&self) -> PathBuf {
        self.directory.path().join("rules.yaml")
    }

    /// Sends one GET request on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> WireReply {
        let mut client = WireClient::connect(self.address());
        client.send(format!("GET {target} HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
        client.read_reply("GET").expect("an answer")
    }

    /// Number of requests from 127.0.0.1 that [`COUNTING_RULES`] have counted.
    pub(crate) fn counted(&self) -> u64 {
        self.counted_for(Ipv4Addr::LOCALHOST)
    }

    /// Number of requests from this address that [`COUNTING_RULES`] have counted.
    pub(crate) fn counted_for(&self, client: Ipv4Addr) -> u64 {
        let peek = self.server.check(&format!(r#"{{"ip":"{client}","cost":0}}"#));
        COUNTING_LIMIT - peek["remaining"].as_u64().expect("a limit")
    }

    /// The largest memory of the process so far, in KiB.
    pub(crate) fn memory_peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// The memory of the process now, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a known line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Number of open files of the process, sockets included.
    pub(crate) fn open_files(&self) -> usize {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.server.id()));
        folder.expect("the process runs").count()
    }
}
