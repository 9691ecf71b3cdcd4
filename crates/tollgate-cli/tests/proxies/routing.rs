//! Several servers without a shared store: the configurations in `examples/routing` send each caller
//! to one of them.

use std::net::{Ipv4Addr, SocketAddr};

use testkit::net::{connect_from, free_address};
use testkit::peers::{Example, Proxy, Upstream};

use crate::harness::{Client, Response, Server};
use crate::scenarios::long;

/// What examples/routing/rules.yaml allows a caller.
const LIMIT: u64 = 100;

/// A proxy in front of three servers and an application, as the example has it.
struct Routed {
    proxy: Proxy,
    servers: Vec<Option<Server>>,
    application: Upstream,
}

impl Routed {
    fn start(start: fn(SocketAddr, &[Server; 3], &Upstream) -> Proxy) -> Routed {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/routing/rules.yaml");
        let server = || Server::start(&["--rules", rules]);
        let servers = [server(), server(), server()];
        let application = Upstream::start();
        let proxy = start(free_address(), &servers, &application);
        let servers = servers.into_iter().map(Some).collect();
        Routed { proxy, servers, application }
    }

    /// One request of a caller with an API key.
    fn with_key(&self, key: &str) -> Response {
        Client::connect(self.proxy.address()).request(
            "GET",
            "/some/page",
            &[("x-api-key", key)],
            "",
        )
    }

    /// One request of a caller without, from this address.
    fn from(&self, address: Ipv4Addr) -> Response {
        let stream = connect_from(address, self.proxy.address()).expect("the proxy listens");
        Client::over(stream).request("GET", "/some/page", &[], "")
    }

    /// How many callers each server knows; none where it is gone.
    fn callers(&self) -> Vec<Option<u64>> {
        let count = |server: &Server| {
            let page = server.admin_get("/metrics", &[]).body;
            let line = page.lines().find_map(|line| line.strip_prefix("tollgate_keys "));
            line.and_then(|count| count.parse().ok()).expect("the metric tollgate_keys")
        };
        self.servers.iter().map(|server| server.as_ref().map(count)).collect()
    }
}

/// A busy machine is not a dead server, so proxies wait long; one that is dead refuses at once.
fn nginx(address: SocketAddr, servers: &[Server; 3], application: &Upstream) -> Proxy {
    let mut example = Example::read("routing", &["nginx.conf"])
        .put("127.0.0.1:8000", address)
        .put("127.0.0.1:3000", application.address())
        .put("timeout 100ms", "timeout 30s");
    for (server, port) in servers.iter().zip(8081..) {
        example = example.put(&format!("127.0.0.1:{port}"), server.http());
    }
    Proxy::nginx(example, address)
}

fn envoy(address: SocketAddr, servers: &[Server; 3], application: &Upstream) -> Proxy {
    let port = |port: u16| format!("port_value: {port}");
    let mut example = Example::read("routing", &["envoy.yaml"])
        .put(&port(8000), port(address.port()))
        .put(&port(8090), port(free_address().port()))
        .put(&port(3000), port(application.address().port()))
        .put("timeout: 0.25s", "timeout: 30s")
        .put("timeout: 0.2s", "timeout: 30s")
        .put("timeout: 0.1s", "timeout: 30s");
    for (server, from) in servers.iter().zip(8081..) {
        example = example.put(&port(from), port(server.http().port()));
    }
    Proxy::envoy(&example, address)
}

/// What is left to the caller, as the answer says: `"api-1h";r=99;t=…`.
fn left(response: &Response) -> u64 {
    let field = response.header("ratelimit").expect("the field RateLimit");
    let left = field.split(';').find_map(|part| part.strip_prefix("r="));
    left.and_then(|left| left.parse().ok()).expect("a number")
}

#[test]
fn nginx_gives_a_caller_exactly_the_limit_and_callers_spread() {
    exactly_the_limit(&Routed::start(nginx));
}

#[test]
fn envoy_gives_a_caller_exactly_the_limit_and_callers_spread() {
    exactly_the_limit(&Routed::start(envoy));
}

#[test]
fn behind_nginx_the_application_gets_what_was_counted() {
    the_application_gets_what_was_counted(Routed::start(nginx));
}

#[test]
fn behind_envoy_the_application_gets_what_was_counted() {
    the_application_gets_what_was_counted(Routed::start(envoy));
}

fn the_application_gets_what_was_counted(mut routed: Routed) {
    let pass = |routed: &Routed| {
        let stream = connect_from(Ipv4Addr::new(127, 0, 0, 7), routed.proxy.address());
        // A name with dots, as clients have: a proxy that passes it on to Tollgate is refused there.
        let host = ("host", "www.example.com");
        let headers = [host, ("x-forwarded-for", "192.0.2.1"), ("x-api-key", "one")];
        let mut client = Client::over(stream.expect("the proxy listens"));
        assert_eq!(client.request("GET", "/page", &headers, "").status, 200);
        let reached = routed.application.take();
        let [request] = &reached[..] else { panic!("one request: {reached:?}") };
        assert_eq!(request.all("x-forwarded-for"), ["127.0.0.7"]);
        assert_eq!(request.all("x-api-key"), ["one"]);
        assert_eq!(request.all("host"), ["www.example.com"], "the one that the client named");
    };
    pass(&routed);
    // Nor does it get anything else when nobody can be asked.
    routed.servers.iter_mut().for_each(|server| *server = None);
    pass(&routed);
}

fn exactly_the_limit(routed: &Routed) {
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
            let Ok(answer) = Client::over(stream).try_request("GET", &target, headers, "") else {
                continue;
            };
            let counted = !headers.is_empty() && answer.header("ratelimit").is_some();
            let is_refused = (400..500).contains(&answer.status);
            assert!(is_refused || counted, "{} bytes: {answer:?}", long.len());
        }
    }
    let callers = |routed: &Routed| routed.callers().into_iter().flatten().collect::<Vec<u64>>();
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
    one_of_three_dies(Routed::start(nginx));
}

#[test]
fn behind_envoy_callers_of_a_dead_server_move_once_and_the_others_stay() {
    one_of_three_dies(Routed::start(envoy));
}

fn one_of_three_dies(mut routed: Routed) {
    let keys: Vec<String> = (0..60).map(|caller| format!("key-{caller}")).collect();
    let ask = |routed: &Routed| keys.iter().map(|key| left(&routed.with_key(key))).collect();
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
