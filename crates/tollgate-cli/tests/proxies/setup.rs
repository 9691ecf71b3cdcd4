//! A proxy, with Tollgate beside it and an application behind it.
//!
//! Between the proxy and Tollgate stands another one that breaks things when it is told to.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tempfile::TempDir;
use testkit::fault_proxy::FaultProxy;
use testkit::net::connect_from;
use testkit::peers::{ExampleFiles, ProxyProcess, Upstream, UpstreamRequest};

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess, file, text};

/// Limit of a caller in an hour, so that no slow run outlives the window.
pub(crate) const LIMIT: usize = 100;

/// Limit of one address, whatever keys it sends.
pub(crate) const ADDRESS: usize = 500;

/// Limit of one address at `POST /login`.
pub(crate) const LOGINS: usize = 5;

/// A kind of proxy: how to start it, and its differences from others.
pub(crate) struct ProxyKind {
    /// The folder in `examples/`.
    pub(crate) folder: &'static str,
    /// Starts it with the example that has these addresses.
    pub(crate) start: fn(&ProxyAddresses) -> ProxyProcess,
    /// True if responses to allowed requests carry the remaining units.
    pub(crate) tells_what_is_left: bool,
    /// Statuses of a path that is closed while Tollgate is unavailable.
    pub(crate) closed: &'static [u16],
}

/// Addresses of a setup.
pub(crate) struct ProxyAddresses {
    pub(crate) proxy: SocketAddr,
    pub(crate) tollgate: SocketAddr,
    pub(crate) application: SocketAddr,
    /// Timeout of the proxy for Tollgate: as in the example, unless the test is about something else and the
    /// machine may be slow.
    pub(crate) timeout: Option<Duration>,
}

impl ProxyAddresses {
    /// The example, if it has the addresses that all of them have.
    pub(crate) fn put_into(&self, example: ExampleFiles) -> ExampleFiles {
        let example = example
            .replace("127.0.0.1:8080", self.tollgate)
            .replace("127.0.0.1:3000", self.application);
        match self.timeout {
            None => example,
            Some(time) => example.replace("100ms", format!("{}s", time.as_secs())),
        }
    }
}

/// All of it, running.
pub(crate) struct ProxySetup {
    // In the order in which they end: whoever asks before whom they ask.
    pub(crate) proxy: ProxyProcess,
    pub(crate) faults: FaultProxy,
    pub(crate) application: Upstream,
    pub(crate) server: Option<TollgateProcess>,
    rules: TempDir,
}

impl ProxySetup {
    /// With a proxy that waits as long as it takes.
    pub(crate) fn start(kind: &ProxyKind) -> ProxySetup {
        ProxySetup::with(kind, Some(Duration::from_secs(30)))
    }

    /// With a proxy that waits as long as the example says.
    pub(crate) fn in_a_hurry(kind: &ProxyKind) -> ProxySetup {
        ProxySetup::with(kind, None)
    }

    fn with(kind: &ProxyKind, patience: Option<Duration>) -> ProxySetup {
        let rules = tempfile::tempdir().expect("a temporary folder");
        let example = ExampleFiles::read(kind.folder, &["rules.yaml"])
            .replace("[100/minute]", "[{ rate: 100/hour, algorithm: sliding_window_log }]")
            .replace("[500/minute]", "[{ rate: 500/hour, algorithm: sliding_window_log }]")
            .replace("5/minute", "5/hour");
        file(rules.path(), "rules.yaml", example.text());
        let server = serve(&rules);
        let faults = FaultProxy::start(server.http());
        let application = Upstream::start();
        let places = ProxyAddresses {
            proxy: testkit::net::free_address(),
            tollgate: faults.address(),
            application: application.address(),
            timeout: patience,
        };
        let proxy = (kind.start)(&places);
        // What was asked to find out whether it is ready.
        let _ = application.take_requests();
        ProxySetup { proxy, faults, application, server: Some(server), rules }
    }

    /// Ends Tollgate and starts it anew, with nothing in memory.
    pub(crate) fn restart_server(&mut self) {
        self.server = None;
        let server = serve(&self.rules);
        self.faults.retarget(server.http());
        self.server = Some(server);
    }

    /// Ends Tollgate and starts it with a rule that is closed, on a store that is not there.
    pub(crate) fn restart_without_its_store(&mut self) {
        self.server = None;
        let rules =
            "rules: [{ name: api, key: '{ip}', limits: [100/hour], on_store_failure: closed }]";
        file(self.rules.path(), "rules.yaml", rules);
        let rules = self.rules.path().join("rules.yaml");
        let store = format!("redis://{}", testkit::net::free_address());
        let server = TollgateProcess::start(&["--rules", text(&rules), "--store", &store]);
        self.faults.retarget(server.http());
        self.server = Some(server);
    }

    /// A client at 127.0.0.N, connected to the proxy. Tollgate trusts 127.0.0.1 only.
    pub(crate) fn client(&self, n: u8) -> TestHttpClient {
        assert_ne!(n, 1, "that is the proxy's own address");
        let stream = connect_from(Ipv4Addr::new(127, 0, 0, n), self.proxy.address());
        let stream = stream.expect("the proxy listens");
        stream.set_read_timeout(Some(crate::harness::DEADLINE)).expect("a timeout");
        TestHttpClient::over(stream)
    }

    /// One request of a client, on a connection of its own.
    pub(crate) fn ask(
        &self,
        n: u8,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> io::Result<TestHttpResponse> {
        self.client(n).try_request(method, target, headers, "")
    }

    /// The status of such a request.
    pub(crate) fn status(&self, n: u8, method: &str, target: &str) -> u16 {
        self.ask(n, method, target, &[]).expect("an answer").status
    }

    /// Requests to the application since the last call.
    pub(crate) fn reached(&self) -> Vec<UpstreamRequest> {
        self.application.take_requests()
    }
}

fn serve(rules: &TempDir) -> TollgateProcess {
    TollgateProcess::start(&["--rules", text(&rules.path().join("rules.yaml"))])
}
