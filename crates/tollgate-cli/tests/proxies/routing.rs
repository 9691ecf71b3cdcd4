//! Several servers without a shared store: the configurations in `examples/routing` send each caller
//! to one of them.

use std::net::{Ipv4Addr, SocketAddr};

use testkit::net::{connect_from, free_address};
use testkit::peers::{ExampleFiles, ProxyProcess, Upstream};

use crate::harness::{TestHttpClient, TestHttpResponse, TollgateProcess};
use crate::proxies::scenarios::long;

/// Limit of a caller in examples/routing/rules.yaml.
const LIMIT: u64 = 100;

/// A proxy in front of three servers and an application, as the example has it.
struct RoutedServers {
    proxy: ProxyProcess,
    servers: Vec<Option<TollgateProcess>>,
    application: Upstream,
}

impl RoutedServers {
    fn start(
        start: fn(SocketAddr, &[TollgateProcess; 3], &Upstream) -> ProxyProcess,
    ) -> RoutedServers {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/routing/rules.yaml");
        let server = || TollgateProcess::start(&["--rules", rules]);
        let servers = [server(), server(), server()];
        let application = Upstream::start();
        let proxy = start(free_address(), &servers, &application);
        let servers = servers.into_iter().map(Some).collect();
        RoutedServers { proxy, servers, application }
    }

    /// One request of a caller with an API key.
    fn with_key(&self, key: &str) -> TestHttpResponse {
        TestHttpClient::connect(self.proxy.address()).request(
            "GET",
            "/some/page",
            &[("x-api-key", key)],
            "",
        )
    }

    /// One request of a caller without, from this address.
    fn from(&self, address: Ipv4Addr) -> TestHttpResponse {
        let stream = connect_from(address, self.proxy.address()).expect("the proxy listens");
        TestHttpClient::over(stream).request("GET", "/some/page", &[], "")
    }

    /// Number of callers that each server knows; none if it is gone.
    fn callers(&self) -> Vec<Option<u64>> {
        let count = |server: &TollgateProcess| {
            let page = server.admin_get("/metrics", &[]).body;
            let line = page.lines().find_map(|line| line.strip_prefix("tollgate_keys "));
            line.and_then(|count| count.parse().ok()).expect("the metric tollgate_keys")
        };
        self.servers.iter().map(|server| server.as_ref().map(count)).collect()
    }
}

/// A busy machine is not a dead server, so proxies wait long; one that is dead refuses at once.
fn nginx(
    address: SocketAddr,
    servers: &[TollgateProcess; 3],
    application: &Upstream,
) -> ProxyProcess {
    let mut example = ExampleFiles::read("routing", &["nginx.conf"])
        .replace("127.0.0.1:8000", address)
        .replace("127.0.0.1:3000", application.address())
        .replace("timeout 100ms", "timeout 30s");
    for (server, port) in servers.iter().zip(8081..) {
        example = example.replace(&format!("127.0.0.1:{port}"), server.http());
    }
    ProxyProcess::nginx(example, address)
}

fn envoy(
    address: SocketAddr,
    servers: &[TollgateProcess; 3],
    application: &Upstream,
) -> ProxyProcess {
    let port = |port: u16| format!("port_value: {port}");
    let mut example = ExampleFiles::read("routing", &["envoy.yaml"])
        .replace(&port(8000), port(address.port()))
        .replace(&port(8090), port(free_address().port()))
        .replace(&port(3000), port(application.address().port()))
        .replace("timeout: 0.25s", "timeout: 30s")
        .replace("timeout: 0.2s", "timeout: 30s")
        .replace("timeout: 0.1s", "timeout: 30s");
    for (server, from) in servers.iter().zip(8081..) {
        example = example.replace(&port(from), port(server.http().port()));
    }
    ProxyProcess::envoy(&example, address)
}

/// Remaining units of the caller, from the header `"api-1h";r=99;t=…`.
fn left(response: &TestHttpResponse) -> u64 {
    let field = response.header("ratelimit").expect("the field RateLimit");
    let left = field.split(';').find_map(|part| part.strip_prefix("r="));
    left.and_then(|left| left.parse().ok()).expect("a number")
}

#[test]
fn nginx_gives_a_caller_exactly_the_limit_and_callers_spread() {
    exactly_the_limit(&RoutedServers::start(nginx));
}

#[test]
fn envoy_gives_a_caller_exactly_the_limit_and_callers_spread() {
    exactly_the_limit(&RoutedServers::start(envoy));
}

#[test]
fn behind_nginx_the_application_gets_what_was_counted() {
    the_application_gets_what_was_counted(RoutedServers::start(nginx));
}

#[test]
fn behind_envoy_the_application_gets_what_was_counted() {
    the_application_gets_what_was_counted(RoutedServers::start(envoy));
}

fn the_application_gets_what_was_counted(mut routed: RoutedServers) {
    let pass = |routed: &RoutedServers| {
        let stream = connect_from(Ipv4Addr::new(127, 0, 0, 7), routed.proxy.address());
        // A name with dots, as clients have: a proxy that passes it on to Tollgate is refused there.
        let host = ("host", "www.example.com");
        let headers = [host, ("x-forwarded-for", "192.0.2.1"), ("x-api-key", "one")];
        let mut client = TestHttpClient::over(stream.expect("the proxy listens"));
        assert_eq!(client.request("GET", "/page", &headers, "").status, 200);
        let reached = routed.application.take_requests();
        let [request] = &reached[..] else { panic!("one request: {reached:?}") };
        assert_eq!(request.header_values("x-forwarded-for"), ["127.0.0.7"]);
        assert_eq!(request.header_values("x-api-key"), ["one"]);
        assert_eq!(
            request.header_values("host"),
            ["www.example.com"],
            "the one that the client named"
        );
    };
    pass(&routed);
    // Nor does it get anything else when nobody can be asked.
    routed.servers.iter_mut().for_each(|server| *server = None);
    pass(&routed);
}

fn exactly_the_limit(routed: &RoutedServers) {
    let allowed = (0..LIMIT + 20).filter(|_| routed.with_key("one").status == 200).count();
    assert_eq!(allowed as u64, LIMIT);
    let refused = routed.with_key("one");
    assert_eq!((refused.status, left(&refused)), (429, 0));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json()["error"], "Too Many Requests");
    assert_eq!(routed.callers().into_iter().flatten().sum::<u64>(), 1, "on one server");

    let address = Ipv4Addr::new(127, 0, 0, 7);
    let allowed = (0..LIMIT + 20).filter(|_| routed.from(address).status == 200).count();
    assert_eq!(allowed as u64, LIMIT);

    // Whatever they send: nothing passes that was not counted.
    for long in long() {
        let target = format!("/{long}");
        for headers in [&[][..], &[("x-api-key", long.as_str())]] {
            let stream = connect_from(address, routed.proxy.address()).expect("the proxy listens");
            let Ok(answer) = TestHttpClient::over(stream).try_request("GET", &target, headers, "")
            else {
                continue;
            };
            let counted = !headers.is_empty() && answer.header("ratelimit").is_some();
            let is_refused = (400..500).contains(&answer.status);
            assert!(is_refused || counted, "{} bytes: {answer:?}", long.len());
        }
    }
    let callers =
        |routed: &RoutedServers| routed.callers().into_iter().flatten().collect::<Vec<u64>>();
    let before = callers(routed).iter().sum::<u64>();
    for caller in 0..60 {
        assert_eq!(left(&routed.with_key(&format!("key-{caller}"))), LIMIT - 1);
    }
    let callers = callers(routed);
    assert_eq!(callers.iter().sum::<u64>(), before + 60);
    assert!(callers.iter().all(|count| *count >= 5), "60 callers on three servers: {callers:?}");
}

#[test]
fn behind_nginx_callers_of_a_dead_server_move_once_and_the_others_stay() {
    one_of_three_dies(RoutedServers::start(nginx));
}

#[test]
fn behind_envoy_callers_of_a_dead_server_move_once_and_the_others_stay() {
    one_of_three_dies(RoutedServers::start(envoy));
}

fn one_of_three_dies(mut routed: RoutedServers) {
    let keys: Vec<String> = (0..60).map(|caller| format!("key-{caller}")).collect();
    let ask = |routed: &RoutedServers| keys.iter().map(|key| left(&routed.with_key(key))).collect();
    let first: Vec<u64> = ask(&routed);
    assert!(first.iter().all(|left| *left == LIMIT - 1));
    let of_the_dead = routed.callers()[0].unwrap();
    assert!(of_the_dead > 0);
    routed.servers[0] = None;
    // Nobody gets an error; who was there begins anew, once; who was elsewhere is known.
    let second: Vec<u64> = ask(&routed);
    let moved = |lefts: &[u64], left: u64| lefts.iter().filter(|it| **it == left).count() as u64;
    assert_eq!(moved(&second, LIMIT - 1), of_the_dead);
    assert_eq!(moved(&second, LIMIT - 2), 60 - of_the_dead);
    let third: Vec<u64> = ask(&routed);
    let stayed = third.iter().zip(&second).all(|(third, second)| *third == second - 1);
    assert!(stayed, "{second:?} then {third:?}");
    // With none left, requests pass.
    routed.servers.iter_mut().for_each(|server| *server = None);
    let alone = routed.with_key("key-0");
    assert_eq!((alone.status, alone.header("ratelimit")), (200, None));
}
