//! Several servers on one store: what their tests have in common.

use serde_json::Value;
use testkit::wait::until_true;

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess, file, text};

/// Servers on one store, each with a rules file of its own that says the same.
pub(crate) struct Fleet {
    pub(crate) servers: Vec<TollgateProcess>,
    flags: Vec<String>,
    _directory: tempfile::TempDir,
    pub(crate) rules: Vec<std::path::PathBuf>,
}

impl Fleet {
    pub(crate) fn start(count: usize, store: &str, rules: &str) -> Fleet {
        Fleet::start_with(count, store, rules, &[])
    }

    pub(crate) fn start_with(count: usize, store: &str, rules: &str, flags: &[&str]) -> Fleet {
        let directory = tempfile::tempdir().expect("a directory");
        // A deadline that a machine with ten things to do keeps as well.
        let mut all = ["--store", store].map(String::from).to_vec();
        if !flags.contains(&"--store-timeout") {
            all.extend(["--store-timeout", "500ms"].map(String::from));
        }
        all.extend(flags.iter().map(ToString::to_string));
        let rules: Vec<_> = (0..count)
            .map(|number| file(directory.path(), &format!("{number}.yaml"), rules))
            .collect();
        let mut fleet = Fleet { servers: Vec::new(), flags: all, _directory: directory, rules };
        fleet.start_all();
        fleet
    }

    /// Starts one for each rules file.
    pub(crate) fn start_all(&mut self) {
        self.servers = self.rules.iter().map(|rules| self.start_one(text(rules))).collect();
    }

    fn start_one(&self, rules: &str) -> TollgateProcess {
        let mut flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        flags.extend(["--rules", rules]);
        TollgateProcess::start(&flags)
    }

    /// Waits until all of them know of each other.
    pub(crate) fn wait_until_peers_known(&self) {
        for server in &self.servers {
            until_true("instances to know of each other", || {
                status(server)["store"]["instances"] == self.servers.len()
            });
        }
    }
}

pub(crate) fn status(server: &TollgateProcess) -> Value {
    server.admin_get("/api/status", &[]).json()
}

/// A change over the admin listener.
pub(crate) fn change(
    server: &TollgateProcess,
    method: &str,
    path: &str,
    body: &str,
) -> TestHttpResponse {
    let mark = [("x-tollgate-admin", "1")];
    TestHttpClient::connect(server.admin()).request(method, path, &mark, body)
}

/// The value of a sample, by its name and labels.
pub(crate) fn metric(server: &TollgateProcess, name: &str) -> f64 {
    let page = server.admin_get("/metrics", &[]).body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
}
