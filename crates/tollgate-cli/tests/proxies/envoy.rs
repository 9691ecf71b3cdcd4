//! Envoy's rate limit filter over gRPC, with `examples/envoy`.

use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;
use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::net::{connect_from, free_address};
use testkit::peers::{ExampleFiles, ProxyProcess, UPSTREAM_BODY, Upstream};
use testkit::wait::until_true;

use crate::harness::{DEADLINE, TestHttpClient, TestHttpResponse, TollgateProcess, file, text};

/// Envoy, with Tollgate beside it and an application behind it; between the first two something that
/// breaks things when it is told to.
struct EnvoySetup {
    // In the order in which they end: whoever asks before whom they ask.
    _envoy: ProxyProcess,
    faults: FaultProxy,
    application: Upstream,
    server: Option<TollgateProcess>,
    rules: TempDir,
    /// Addresses of the listeners edge, vault and classic, and of Envoy's own admin.
    listeners: [SocketAddr; 4],
}

const EDGE: usize = 0;
const VAULT: usize = 1;
const CLASSIC: usize = 2;
const ADMIN: usize = 3;

impl EnvoySetup {
    /// The example; Envoy waits as long as it takes, or as long as the example says.
    fn start(patient: bool) -> EnvoySetup {
        let rules = tempfile::tempdir().expect("a temporary folder");
        // Long periods, so that no slow run outlives them, and little to download.
        let own = ExampleFiles::read("envoy", &["rules.yaml"])
            .replace("5/minute", "5/hour")
            .replace("[10/second, 100/minute]", "[10/hour, 100/day]")
            .replace("1000000000/day", "20/day");
        file(rules.path(), "rules.yaml", own.text());
        let classic =
            ExampleFiles::read("envoy", &["ratelimit.yaml"]).replace("unit: minute", "unit: year");
        file(rules.path(), "ratelimit.yaml", classic.text());
        let server = serve(&rules);
        let faults = FaultProxy::start(server.grpc());
        let application = Upstream::start();
        let listeners = [(); 4].map(|()| free_address());
        let mut example = ExampleFiles::read("envoy", &["envoy.yaml"])
            .replace("port_value: 8081", port(faults.address()))
            .replace("port_value: 3000", port(application.address()));
        if patient {
            example = example
                .replace("timeout: 0.05s", "timeout: 30s")
                .replace("timeout: 1s", "timeout: 30s");
        }
        for (known, here) in [10_000, 10_001, 10_002, 9_901].into_iter().zip(listeners) {
            example = example.replace(&format!("port_value: {known}"), port(here));
        }
        let envoy = ProxyProcess::envoy(&example, listeners[EDGE]);
        EnvoySetup { _envoy: envoy, faults, application, server: Some(server), rules, listeners }
    }

    /// One request of the client at 127.0.0.N.
    fn ask(
        &self,
        listener: usize,
        n: u8,
        target: &str,
        headers: &[(&str, &str)],
    ) -> TestHttpResponse {
        let (method, path) = target.split_once(' ').unwrap_or(("GET", target));
        let from = Ipv4Addr::new(127, 0, 0, n);
        let stream = connect_from(from, self.listeners[listener]).expect("Envoy listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        TestHttpClient::over(stream).request(method, path, headers, "")
    }

    /// A figure of Envoy's.
    fn figure(&self, name: &str) -> u64 {
        let mut admin = TestHttpClient::connect(self.listeners[ADMIN]);
        let request = format!("GET /stats?filter=^{name}$ HTTP/1.1\r\nhost: envoy\r\n");
        let request = format!("{request}connection: close\r\n\r\n");
        admin.send(request.as_bytes()).expect("Envoy listens");
        let page = admin.until_closed();
        let value = page.split_once(&format!("{name}: ")).map(|(_, value)| value);
        let digits = value.and_then(|value| value.split_whitespace().next());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{name}: {page}"))
    }
}

fn port(address: SocketAddr) -> String {
    format!("port_value: {}", address.port())
}

fn serve(rules: &TempDir) -> TollgateProcess {
    let path = |name: &str| rules.path().join(name);
    let (own, classic) = (path("rules.yaml"), path("ratelimit.yaml"));
    TollgateProcess::start(&["--rules", text(&own), "--rules", text(&classic)])
}

#[test]
fn envoy_asks_and_obeys() {
    let setup = EnvoySetup::start(true);
    for (listener, client) in [(EDGE, 2), (VAULT, 3)] {
        // Envoy's own fields and ours, beside each other.
        let answer = setup.ask(listener, client, "/api/hello?a=b", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, UPSTREAM_BODY), "{answer:?}");
        let limit = r#"10, 10;w=3600;name="api""#;
        assert_eq!(answer.header("x-ratelimit-limit"), Some(limit), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("9"), "{answer:?}");
        let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!((1..=7_200).contains(&reset), "{answer:?}");
        let policies = r#""api-1h";q=10;w=3600, "api-1d";q=100;w=86400"#;
        assert_eq!(answer.header("ratelimit-policy"), Some(policies), "{answer:?}");
        assert!(answer.header("ratelimit").unwrap().starts_with("\"api-1h\";r=9"), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None);
        let _ = setup.application.take_requests();

        for left in (0..9).rev() {
            let answer = setup.ask(listener, client, "/api/other", &[]);
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        }
        assert_eq!(setup.application.take_requests().len(), 9);
        let answer = setup.ask(listener, client, "/api/hello", &[]);
        assert_refused(&answer, "api-1h");
        assert_eq!(setup.application.take_requests(), [], "a refusal goes no further");
        // Others have their own: another address, another path.
        assert_eq!(setup.ask(listener, client + 10, "/api/hello", &[]).status, 200);
        assert_eq!(setup.ask(listener, client, "/elsewhere", &[]).status, 200);
        // Who clients say they are buys them nothing.
        let answer = setup.ask(listener, client, "/api/hello", &[("x-user-id", "somebody-else")]);
        assert_refused(&answer, "api-1h");
    }
    // Method and path are facts.
    for _ in 0..5 {
        assert_eq!(setup.ask(EDGE, 4, "POST /login", &[]).status, 200);
    }
    assert_refused(&setup.ask(EDGE, 4, "POST /login", &[]), "login-1h");
    assert_eq!(setup.ask(EDGE, 4, "GET /login", &[]).status, 200);
    let long = format!("POST /login?{}", "x".repeat(5_000));
    assert_refused(&setup.ask(EDGE, 4, &long, &[]), "login-1h");
    files_of_the_reference_server(&setup);
    paid_for_afterwards(&setup);
    assert!(setup.figure("cluster.tollgate.health_check.success") > 0);
    assert_eq!(setup.figure("cluster.tollgate.health_check.failure"), 0);
}

fn assert_refused(answer: &TestHttpResponse, policy: &str) {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:?}");
    assert_eq!(answer.header("x-envoy-ratelimited"), Some("true"), "{answer:?}");
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"), "{answer:?}");
    let retry_after: u64 = answer.header("retry-after").expect("a wait").parse().unwrap();
    assert!((1..=7_200).contains(&retry_after), "{answer:?}");
    let body = answer.json();
    assert_eq!(body["error"], "Too Many Requests");
    assert_eq!(body["retryAfter"], retry_after);
    assert_eq!(body["violated-policies"][0], policy, "{answer:?}");
}

/// `ratelimit.yaml` as it stands, and what its server would say.
fn files_of_the_reference_server(setup: &EnvoySetup) {
    for left in ["2", "1", "0"] {
        let answer = setup.ask(CLASSIC, 5, "/any", &[]);
        assert_eq!(answer.status, 200, "{answer:?}");
        let limit = r#"3, 3;w=31536000;name="per-address""#;
        assert_eq!(answer.header("x-ratelimit-limit"), Some(limit), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left), "{answer:?}");
    }
    let answer = setup.ask(CLASSIC, 5, "/any", &[]);
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, Some("0")));
    assert_eq!(setup.ask(CLASSIC, 6, "/any", &[]).status, 200, "another address");
    let answer = setup.ask(CLASSIC, 5, "/free/any", &[]);
    assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, None), "{answer:?}");
    no_spelling_is_free(
        setup,
        CLASSIC,
        5,
        &["/free/../any", "/free/%2e%2e/any", "/free%2f../any", "/free/..%5cany"],
    );
}

/// A refused client does not reach the application by spelling the path in another way.
fn no_spelling_is_free(setup: &EnvoySetup, listener: usize, client: u8, spellings: &[&str]) {
    let _ = setup.application.take_requests();
    for target in spellings {
        let answer = setup.ask(listener, client, target, &[]);
        assert!(matches!(answer.status, 307 | 429), "{target}: {answer:?}");
        assert_eq!(setup.application.take_requests(), [], "{target}");
    }
}

/// The application sends 16 bytes, and 20 are allowed: the second download makes debt.
fn paid_for_afterwards(setup: &EnvoySetup) {
    let _ = setup.application.take_requests();
    // Envoy tells Tollgate after it has answered.
    until_true("the debt of downloads to be known", || {
        let answer = setup.ask(EDGE, 7, "/downloads/a", &[]);
        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
        answer.status == 429
    });
    assert!(setup.application.take_requests().len() >= 2, "what fits passes, and what makes debt");
    for listener in [EDGE, VAULT] {
        assert_eq!(setup.ask(listener, 7, "/downloads/b", &[]).status, 429);
        let path = ["//downloads/a", "/x/..//downloads/a", "/downloads//a", "/./downloads/a"];
        let encoded =
            ["/downloads%2fa", "/x%2f..%2fdownloads/a", "/%64ownloads/a", "/downloads%5Ca"];
        no_spelling_is_free(setup, listener, 7, &path);
        no_spelling_is_free(setup, listener, 7, &encoded);
    }
    assert_eq!(setup.ask(EDGE, 8, "/downloads/b", &[]).status, 200, "another address");
}

/// Without an answer, `edge` lets requests pass and `vault` does not; whether nobody is there or
/// somebody who says nothing. When Tollgate is back it is asked again.
#[test]
fn without_an_answer_edge_passes_and_vault_refuses() {
    let mut setup = EnvoySetup::start(false);
    let is_open = |setup: &EnvoySetup| {
        let answer = setup.ask(EDGE, 2, "/elsewhere", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, UPSTREAM_BODY), "{answer:?}");
        assert_eq!(answer.header("ratelimit"), None, "{answer:?}");
        assert_eq!(setup.ask(VAULT, 2, "/elsewhere", &[]).status, 500);
    };
    let works = |setup: &EnvoySetup| {
        until_true("Tollgate to be asked again", || {
            let answer = setup.ask(EDGE, 3, "/api/hello", &[]);
            answer.header("ratelimit").is_some() && setup.ask(VAULT, 4, "/other", &[]).status == 200
        });
    };
    works(&setup);
    setup.faults.set_mode(FaultMode::BlackHole);
    is_open(&setup);
    setup.faults.set_mode(FaultMode::Pass);
    works(&setup);
    setup.server = None;
    is_open(&setup);
    setup.faults.set_mode(FaultMode::Refuse);
    is_open(&setup);
    let server = serve(&setup.rules);
    setup.faults.retarget(server.grpc());
    setup.server = Some(server);
    setup.faults.set_mode(FaultMode::Pass);
    works(&setup);
    assert!(setup.figure("cluster.application.ratelimit.failure_mode_allowed") >= 3);
}

/// Envoy with descriptors of many kinds in the domain `hits`, in front of rules.
struct EnvoyHits {
    envoy: ProxyProcess,
    _server: TollgateProcess,
    _application: Upstream,
    _rules: TempDir,
}

impl EnvoyHits {
    fn start(text_of_rules: &str) -> EnvoyHits {
        let rules = tempfile::tempdir().unwrap();
        let path = file(rules.path(), "rules.yaml", text_of_rules);
        let server = TollgateProcess::start(&["--rules", text(&path)]);
        let application = Upstream::start();
        let address = free_address();
        let folder = "../crates/tollgate-cli/tests/proxies";
        let example = ExampleFiles::read(folder, &["envoy_hits.yaml"])
            .replace("port_value: 10000", port(address))
            .replace("port_value: 8081", port(server.grpc()))
            .replace("port_value: 3000", port(application.address()));
        let envoy = ProxyProcess::envoy(&example, address);
        EnvoyHits { envoy, _server: server, _application: application, _rules: rules }
    }
}

/// Clients are counted whatever they send: long texts and bytes that are not UTF-8 do not bypass limits.
#[test]
fn odd_values_are_counted() {
    let rules = "rules: [{ name: own, match: { domain: hits }, key: '{user}', limits: [2/day] }]";
    let hits = EnvoyHits::start(rules);
    let address = hits.envoy.address();
    for value in [&b"\xff"[..], b"\xfe\xff", &[b'x'; 5_000], &[b'x'; 50_000]] {
        for status in [200, 200, 429] {
            let mut client = TestHttpClient::connect(address);
            let head = b"GET /by-header HTTP/1.1\r\nhost: a\r\nx-user-id: ";
            client.send(&[&head[..], value, b"\r\n\r\n"].concat()).expect("Envoy listens");
            let answer = client.receive(true).expect("an answer");
            assert_eq!(answer.status, status, "{} bytes: {answer:?}", value.len());
        }
    }
}

/// Hits of a descriptor: several, none, and given back; and a limit that Envoy brings.
#[test]
fn envoy_says_how_many_and_how_much() {
    let rules = "rules: [{ name: own, match: { domain: hits }, key: '{user}', limits: [7/day] }]\nheaders: none";
    let hits = EnvoyHits::start(rules);
    let address = hits.envoy.address();
    // path | status, limit, left
    let rows = [
        ("/look", 200, "7", "7"),
        ("/three", 200, "7", "4"),
        ("/look", 200, "7", "4"),
        ("/three", 200, "7", "1"),
        ("/three", 429, "7", "1"),
        ("/back", 200, "7", "3"),
        ("/three", 200, "7", "0"),
        ("/look", 200, "7", "0"),
        ("/stated", 200, "2", "1"),
        ("/stated", 200, "2", "0"),
        ("/stated", 429, "2", "0"),
    ];
    for (path, status, limit, left) in rows {
        let answer = TestHttpClient::connect(address).request("GET", path, &[], "");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let said = answer.header("x-ratelimit-limit").expect("Envoy's field");
        assert!(said.starts_with(&format!("{limit}, {limit};w=")), "{path}: {answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left), "{path}: {answer:?}");
        assert_eq!(answer.header("retry-after").is_some(), status == 429, "{answer:?}");
        assert_eq!(answer.header("ratelimit"), None, "`headers: none`");
    }
}
