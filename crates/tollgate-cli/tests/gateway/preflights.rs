//! CORS: preflights under rules, and the pages that may read refusals, over HTTP/1.1 and HTTP/2.

use bytes::Bytes;
use http::{HeaderMap, Request};
use testkit::peers::RawUpstream;

use super::front::access_lines;
use super::gateway_process::GatewayProcess;
use super::http2_clients::{connect, current_thread_runtime};
use crate::harness::{TestHttpClient, text};

/// The fields of a preflight.
const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "https://app.example"), ("access-control-request-method", "x")];

/// The status and the fields of a response.
type ReplyHead = (u16, HeaderMap);

/// Sends a request by HTTP/1.1 or HTTP/2, on a connection of its own.
fn send(
    gateway: &GatewayProcess,
    is_http2: bool,
    (method, target): (&str, &str),
    fields: &[(&str, &str)],
    body: &'static str,
) -> ReplyHead {
    if !is_http2 {
        let mut client = TestHttpClient::connect(gateway.address());
        let answer = client.request(method, target, fields, body);
        let mut headers = HeaderMap::new();
        for (name, value) in &answer.headers {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        return (answer.status, headers);
    }
    current_thread_runtime().block_on(async {
        let sender = connect(gateway.address()).await;
        let mut request = Request::builder().method(method).uri(format!("http://app{target}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut ready = sender.ready().await.expect("a connection");
        let request = request.body(()).expect("a request");
        let (response, mut sending) =
            ready.send_request(request, body.is_empty()).expect("a stream");
        if !body.is_empty() {
            sending.send_data(Bytes::from(body), true).expect("a body");
        }
        let response = response.await.expect("an answer");
        (response.status().as_u16(), response.headers().clone())
    })
}

fn start(rules: &str, workers: &str) -> (RawUpstream, GatewayProcess) {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start_with(upstream.address(), rules, &["--workers", workers]);
    (upstream, gateway)
}

/// Both versions of HTTP, each with one worker and with four.
fn for_each_way(mut test: impl FnMut(bool, &str)) {
    for is_http2 in [false, true] {
        for workers in ["1", "4"] {
            test(is_http2, workers);
        }
    }
}

#[test]
fn preflights_are_counted_like_any_request() {
    const RULES: &str = "
rules: [{ name: all, key: '{ip}', limits: [{ rate: 3/hour, algorithm: sliding_window_log }] }]
";
    for_each_way(|is_http2, workers| {
        let (_upstream, gateway) = start(RULES, workers);
        let statuses =
            [(); 5].map(|()| send(&gateway, is_http2, ("OPTIONS", "/"), &PREFLIGHT, "").0);
        assert_eq!(statuses, [200, 200, 200, 429, 429]);
    });
}

#[test]
fn preflights_that_pass_do_not_pass_blocks_and_rules_that_name_their_method() {
    const RULES: &str = "
preflights: pass
rules:
  - { name: all, key: '{ip}', limits: [{ rate: 2/hour, algorithm: sliding_window_log }] }
  - name: named
    match: { path: /named, method: [GET, OPTIONS] }
    key: '{ip}'
    limits: [{ rate: 1/hour, algorithm: sliding_window_log }]
";
    for_each_way(|is_http2, workers| {
        let (_upstream, gateway) = start(RULES, workers);
        let preflight = |target| send(&gateway, is_http2, ("OPTIONS", target), &PREFLIGHT, "").0;
        assert_eq!([(); 5].map(|()| preflight("/")), [200; 5]);
        assert_eq!([(); 2].map(|()| preflight("/named")), [200, 429]);
        // They were not counted, and pass where others are refused.
        let get = || send(&gateway, is_http2, ("GET", "/"), &PREFLIGHT[..1], "").0;
        assert_eq!([(); 3].map(|()| get()), [200, 200, 429]);
        assert_eq!(preflight("/"), 200);
        // What no browser sends is no preflight.
        let refused = [
            send(&gateway, is_http2, ("OPTIONS", "/"), &PREFLIGHT, "body").0,
            send(&gateway, is_http2, ("OPTIONS", "/"), &PREFLIGHT[..1], "").0,
            send(&gateway, is_http2, ("OPTIONS", "/"), &PREFLIGHT[1..], "").0,
            send(&gateway, is_http2, ("POST", "/"), &PREFLIGHT, "").0,
        ];
        assert_eq!(refused, [429; 4]);
        // A block stops them.
        let fields = [("X-Tollgate-Admin", "1")];
        let blocked = TestHttpClient::connect(gateway.server.admin()).request(
            "POST",
            "/api/keys/all/ip=127.0.0.1",
            &fields,
            r#"{"block":"15m"}"#,
        );
        assert_eq!(blocked.status, 200, "{blocked:?}");
        let refused = || {
            let rules = gateway.server.admin_get("/api/rules", &[]).json();
            ["refused", "refused_by_other"].map(|one| rules["rules"][0]["tally"][one].as_u64())
        };
        let before = refused();
        assert_eq!(preflight("/"), 429);
        let after = before.map(|count| count.expect("a count"));
        assert_eq!(refused(), [Some(after[0] + 1), Some(after[1])], "the rule has refused it");
    });
}

#[test]
fn a_preflight_that_a_block_stops_is_logged_under_its_rule() {
    const RULES: &str = "
preflights: pass
rules: [{ name: all, key: '{ip}', limits: [1000/hour], ban: { after: 1, within: 1h, for: 1h } }]
";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let upstream = RawUpstream::recorder();
    let flags = ["--access-log", text(&path), "--log-format", "json"];
    let gateway = GatewayProcess::start_with(upstream.address(), RULES, &flags);
    let preflight = || send(&gateway, false, ("OPTIONS", "/"), &PREFLIGHT, "").0;
    assert_eq!(preflight(), 200);
    let fields = [("X-Tollgate-Admin", "1")];
    let blocked = TestHttpClient::connect(gateway.server.admin()).request(
        "POST",
        "/api/keys/all/ip=127.0.0.1",
        &fields,
        r#"{"block":"15m"}"#,
    );
    assert_eq!(blocked.status, 200, "{blocked:?}");
    assert_eq!(preflight(), 429);
    let lines = access_lines(&path, 2);
    let shown = ["status", "code", "rule", "decided_by"].map(|name| lines[1][name].to_string());
    assert_eq!(shown, ["429", "\"refused\"", "\"all\"", "\"block\""]);
    assert_eq!(lines[0]["rule"], "");
}

#[test]
fn listed_pages_can_read_refusals() {
    const RULES: &str = "
cors: { origins: ['https://app.example'], expose: true }
rules: [{ name: all, key: '{ip}', limits: [{ rate: 1/hour, algorithm: sliding_window_log }] }]
";
    for_each_way(|is_http2, workers| {
        let (_upstream, gateway) = start(RULES, workers);
        let get = |origin: Option<&'static str>| {
            let fields: Vec<_> = origin.map(|origin| ("origin", origin)).into_iter().collect();
            send(&gateway, is_http2, ("GET", "/"), &fields, "")
        };
        let allowed = |reply: &ReplyHead| {
            let text = |name| reply.1.get(name).map(|it| it.to_str().expect("text").to_string());
            (text("access-control-allow-origin"), text("access-control-expose-headers"))
        };
        // The upstream's response has the upstream's fields.
        let passed = get(Some("https://app.example"));
        assert_eq!((passed.0, allowed(&passed)), (200, (None, None)));
        let refused = get(Some("https://app.example"));
        let (origin, exposed) = allowed(&refused);
        assert_eq!((refused.0, origin.as_deref()), (429, Some("https://app.example")));
        let exposed = exposed.expect("exposed fields");
        assert!(exposed.contains("retry-after") && exposed.contains("x-ratelimit-reset"));
        assert_eq!(refused.1["vary"], "origin");
        for other in [Some("https://evil.example"), Some("null"), None] {
            let refused = get(other);
            assert_eq!((refused.0, allowed(&refused)), (429, (None, None)), "{other:?}");
        }
    });
}
