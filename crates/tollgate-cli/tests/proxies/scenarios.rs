//! What has to hold whichever proxy it is.

use std::time::Duration;

use testkit::fault_proxy::FaultMode;
use testkit::peers::UPSTREAM_BODY;
use testkit::wait;

use crate::proxies::setup::{ADDRESS, LIMIT, LOGINS, ProxyKind, ProxySetup};

/// A request passes as it is, and where the proxy can say so the client is told what is left.
pub(crate) fn let_in(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let mut client = setup.client(2);
    // A name with dots, as clients have: a proxy that passes it on to Tollgate is refused there.
    let page = client.request("GET", "/some/page?x=1&y", &[("host", "www.example.com")], "");
    assert_eq!((page.status, page.body.as_str()), (200, UPSTREAM_BODY));
    assert_eq!(page.header("x-application"), Some("yes"), "the application's own header");
    assert_eq!(page.header("retry-after"), None);
    if kind.tells_what_is_left {
        assert_told(&|name| page.header(name));
    }
    // On the same connection.
    let sent = client.request("POST", "/form", &[("content-type", "text/plain")], "a body");
    assert_eq!(sent.status, 200);
    let reached = setup.reached();
    let [page, form] = &reached[..] else { panic!("two requests: {reached:?}") };
    if !kind.tells_what_is_left {
        // The application is told, and could pass it on.
        assert_told(&|name| page.header_values(name).first().copied());
    }
    assert_eq!((page.method.as_str(), page.target.as_str()), ("GET", "/some/page?x=1&y"));
    assert_eq!((form.method.as_str(), form.body.as_slice()), ("POST", &b"a body"[..]));
}

/// Remaining units, in both header dialects that are on by default.
fn assert_told<'a>(header: &dyn Fn(&str) -> Option<&'a str>) {
    let left = header("ratelimit").expect("the field RateLimit");
    assert!(left.starts_with("\"api-1h\";r=99;"), "{left}");
    let policy = "\"api-1h\";q=100;w=3600, \"addresses-1h\";q=500;w=3600";
    assert_eq!(header("ratelimit-policy"), Some(policy));
    assert_eq!(header("x-ratelimit-limit"), Some("100"));
    assert_eq!(header("x-ratelimit-remaining"), Some("99"));
    let reset = header("x-ratelimit-reset").and_then(|second| second.parse::<u64>().ok());
    assert!(reset.is_some_and(|second| second > 1_700_000_000), "{reset:?}");
}

/// Over the limit: 429 with everything a client needs, and the application hears nothing of it.
pub(crate) fn refused(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let statuses: Vec<u16> = (0..LOGINS).map(|_| setup.status(2, "POST", "/login")).collect();
    assert_eq!(statuses, [200; LOGINS]);
    assert_eq!(setup.reached().len(), LOGINS);
    let refused = setup.ask(2, "POST", "/login?again", &[]).expect("an answer");
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").and_then(|s| s.parse().ok()).expect("seconds");
    assert!((1..=3_600).contains(&wait), "{wait}");
    let left = refused.header("ratelimit").expect("the field RateLimit");
    assert!(left.starts_with("\"login-1h\";r=0;t="), "{left}");
    let policy = refused.header("ratelimit-policy");
    let want = r#""api-1h";q=100;w=3600, "addresses-1h";q=500;w=3600, "login-1h";q=5;w=3600"#;
    assert_eq!(policy, Some(want));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json()["error"], "Too Many Requests");
    assert_eq!(refused.json()["status"], 429);
    assert_eq!(refused.json()["retryAfter"], wait);
    let message = refused.json()["message"].as_str().map(ToString::to_string);
    assert!(message.is_some_and(|text| text.starts_with("Rate limit exceeded.")));
    assert_eq!(refused.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let reset = refused.header("x-ratelimit-reset").and_then(|second| second.parse::<u64>().ok());
    assert!(reset.is_some_and(|second| second > 1_700_000_000), "{reset:?}");
    assert_eq!(setup.reached(), [], "a refused request goes no further");
    // Others are not meant, and neither are other methods of the same caller.
    assert_eq!(setup.status(3, "POST", "/login"), 200);
    assert_eq!(setup.status(2, "GET", "/login"), 200);
}

/// A client with an API key is counted by the key and not by its address.
pub(crate) fn counted_by_key(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let ask = |n: u8, key: &str| {
        setup.ask(n, "GET", "/page", &[("x-api-key", key)]).expect("an answer").status
    };
    // From two addresses.
    let allowed = (0..LIMIT + 5).filter(|i| ask(2 + (i % 2) as u8, "one") == 200).count();
    assert_eq!(allowed, LIMIT);
    assert_eq!(setup.reached().len(), LIMIT);
    assert_eq!([ask(2, "one"), ask(2, "two"), setup.status(2, "GET", "/page")], [429, 200, 200]);
}

/// A new key with each request is a new caller each time, but an address has a limit too.
pub(crate) fn made_up_keys_run_out(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let mut client = setup.client(2);
    let mut ask = |key: usize| {
        client.request("GET", "/page", &[("x-api-key", &format!("made-up-{key}"))], "").status
    };
    assert!((0..ADDRESS).all(|key| ask(key) == 200));
    assert_eq!([ask(ADDRESS), ask(ADDRESS + 1), ask(0)], [429; 3]);
    assert_eq!(setup.reached().len(), ADDRESS);
    let elsewhere = setup.ask(3, "GET", "/page", &[("x-api-key", "made-up-0")]);
    assert_eq!(elsewhere.expect("an answer").status, 200, "others are not meant");
}

/// A refused client stays refused whatever it sends: it cannot choose a fact, and cannot make the check fail
/// in a way that lets the request pass.
pub(crate) fn refused_whatever_they_send(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let mut client = setup.client(2);
    for _ in 0..LIMIT {
        assert_eq!(client.request("GET", "/page", &[], "").status, 200);
    }
    assert_eq!(setup.reached().len(), LIMIT);
    let long = long();
    let mut tricks: Vec<ProxyTrick<'_>> = Vec::new();
    for headers in FORGED {
        tricks.push(("GET", "/page".into(), headers.to_vec()));
    }
    for target in ["/page?ip=192.0.2.1&user=x&X-Forwarded-For=192.0.2.1", "/%70age", "/a/../page"] {
        tricks.push(("GET", target.into(), Vec::new()));
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        tricks.push((method, "/page".into(), Vec::new()));
    }
    for long in &long {
        tricks.push(("GET", format!("/{long}"), Vec::new()));
        tricks.push(("GET", format!("/page?{long}"), Vec::new()));
        tricks.push(("GET", "/page".into(), vec![("cookie", long), ("x-user-id", "7")]));
    }
    // Three times as long where proxies encode it. What is answered before all of it was read must
    // arrive each time, not only most of the time.
    let encoded = format!("/{}", "\u{e9}".repeat(5_700));
    tricks.extend((0..30).map(|_| ("GET", encoded.clone(), Vec::new())));
    for (method, target, headers) in tricks {
        let answer = setup.ask(2, method, &target, &headers);
        let what = format!("{method} {} bytes {:.80} {headers:.80?}", target.len(), target);
        // A proxy may also end the connection of whoever sends too much.
        if let Ok(answer) = answer {
            assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
        }
        assert_eq!(setup.reached(), [], "{what} was let in");
    }
    assert_eq!(setup.status(3, "GET", "/page"), 200, "others are not meant");
    for long in &long {
        // A key that nobody knows is a caller of its own, who is counted too.
        let answer = setup.ask(2, "GET", &format!("/{long}"), &[("x-api-key", long)]);
        if let Ok(answer) = answer
            && kind.tells_what_is_left
        {
            assert!(answer.status != 200 || answer.header("ratelimit").is_some(), "{answer:?}");
        }
    }
}

/// Texts as long as proxies and Tollgate take them, and longer.
pub(crate) fn long() -> Vec<String> {
    let kib = [1, 3, 4, 7, 8, 10, 12, 13, 14, 15, 16, 17, 20, 64, 500];
    let text = |kib: usize| [300, 40].map(|less| "a".repeat(kib * 1_024 - less));
    kib.into_iter().flat_map(text).collect()
}

/// A method, a target and headers.
type ProxyTrick<'a> = (&'a str, String, Vec<(&'a str, &'a str)>);

/// Headers of clients that try to pass as somebody else.
const FORGED: [&[(&str, &str)]; 15] = [
    &[],
    &[("x-forwarded-for", "192.0.2.1")],
    &[("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "192.0.2.2, 127.0.0.1")],
    &[("forwarded", "for=192.0.2.1")],
    &[("x-real-ip", "192.0.2.1"), ("true-client-ip", "192.0.2.1")],
    &[("x-original-uri", "/free"), ("x-original-method", "GET")],
    &[("x-forwarded-uri", "/free"), ("x-forwarded-method", "POST")],
    &[("x-forwarded-uri", ""), ("x-forwarded-method", "")],
    &[("x-forwarded-host", "127.0.0.1"), ("x-forwarded-proto", "https")],
    &[("connection", "x-forwarded-for, x-forwarded-uri"), ("x-forwarded-for", "192.0.2.1")],
    &[("connection", "x-original-uri, x-original-method, x-api-key")],
    &[("x-user-id", "7"), ("x-tier", "enterprise"), ("x-tollgate-token", "x")],
    &[("authorization", "Bearer x"), ("x-http-method-override", "HEAD")],
    &[("x-api-key", "")],
    &[("x-api-key", "a\u{1}b")],
];

/// Tollgate is gone, or breaks off: open paths pass with their bodies, closed ones do not.
pub(crate) fn nobody_answers(kind: &ProxyKind) {
    let mut setup = ProxySetup::start(kind);
    for (mode, n) in
        [(FaultMode::Refuse, 10), (FaultMode::ResetMidReply, 20), (FaultMode::Truncate, 30)]
    {
        setup.faults.set_mode(mode);
        passes_or_not(kind, &setup, mode, n);
    }
    setup.faults.set_mode(FaultMode::Pass);
    setup.server = None;
    passes_or_not(kind, &setup, FaultMode::Pass, 40);
    // When it is back, it counts again: kept connections that broke do not let anybody slip.
    setup.restart_server();
    let statuses: Vec<u16> = (0..=LOGINS).map(|_| setup.status(2, "POST", "/login")).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}

/// Tollgate answers, but not its store, and a rule is closed: 503 from Tollgate itself. A path that is open
/// when Tollgate does not answer stays closed, because the rule says so.
pub(crate) fn store_does_not_answer(kind: &ProxyKind) {
    let mut setup = ProxySetup::start(kind);
    setup.restart_without_its_store();
    for (target, n) in ["/page", "/login"].into_iter().zip(2..) {
        let refused = setup.ask(n, "POST", target, &[]).expect("an answer");
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{target}");
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        assert_eq!(refused.header("ratelimit"), None, "nobody knows what is left");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        assert_eq!(refused.json()["error"], "Service Unavailable");
        assert_eq!(refused.json()["status"], 503);
        assert_eq!(setup.reached(), [], "a refused request goes no further");
    }
}

/// Asks as nine callers from 127.0.0.N on: where an answer is lost the question was counted, and a
/// refusal would be another story.
fn passes_or_not(kind: &ProxyKind, setup: &ProxySetup, mode: FaultMode, n: u8) {
    let open = setup.client(n).request("POST", "/form", &[], "a body");
    assert_eq!((open.status, open.body.as_str()), (200, UPSTREAM_BODY), "{mode:?}");
    assert_eq!(open.header("ratelimit"), None, "nobody knows what is left");
    let reached = setup.reached();
    assert_eq!(reached.len(), 1, "{mode:?}");
    assert_eq!((reached[0].method.as_str(), reached[0].body.as_slice()), ("POST", &b"a body"[..]));
    // However it is spelt. What applications read differently, a proxy may also refuse by itself.
    let spellings = ["/login", "/login?x", "/%6cogin", "//login"];
    let ambiguous = ["/./login", "/a/../login", "/%2flogin", "/a%2F..%2Flogin"];
    for (target, n) in spellings.into_iter().chain(ambiguous).zip(n + 1..) {
        let closed = setup.status(n, "POST", target);
        let refused = ambiguous.contains(&target) && closed == 400;
        assert!(refused || kind.closed.contains(&closed), "{mode:?}: {target} {closed}");
        assert_eq!(setup.reached(), [], "{mode:?}: {target}");
    }
}

/// A path is passed on as the proxy has read it, or it is refused: the application cannot read it differently.
pub(crate) fn passes_on_what_it_read(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let targets =
        ["/search/shoes/../../y", "/a/%2e%2E/b?x=/../y", "/a/./b", "/a/..%2Fb", "/login/../b"];
    for target in targets {
        let status = setup.status(2, "GET", target);
        let reached = setup.reached();
        match status {
            400 => assert_eq!(reached, [], "{target}"),
            200 => {
                let path = reached[0].target.split('?').next().unwrap_or_default();
                let odd = ["/.", "%2e", "%2E", "%2F", "%2f"].iter().any(|odd| path.contains(odd));
                assert!(reached.len() == 1 && !odd, "{target} was passed on as {path}");
            }
            other => panic!("{target}: {other}"),
        }
    }
    assert_eq!(setup.status(2, "GET", "/caf%C3%A9/a%20b;c/d.e?x=%2F..&y"), 200);
    assert_eq!(setup.reached()[0].target, "/caf%C3%A9/a%20b;c/d.e?x=%2F..&y");
}

/// Tollgate takes questions and does not answer, or not in words that a proxy understands: clients
/// wait for as long as the example says, which is a small part of what the proxies would wait by
/// themselves.
pub(crate) fn slow(kind: &ProxyKind) {
    let setup = ProxySetup::in_a_hurry(kind);
    wait::until_true("Tollgate to count", || {
        let _ = setup.status(2, "POST", "/login");
        setup.status(2, "POST", "/login") == 429
    });
    let _ = setup.reached();
    for (mode, n) in [(FaultMode::BlackHole, 10), (FaultMode::Garbage, 20)] {
        setup.faults.set_mode(mode);
        let began = wait::now();
        passes_or_not(kind, &setup, mode, n);
        let took = wait::now() - began;
        assert!(took < Duration::from_secs(20), "{mode:?}: nine requests took {took:?}");
    }
    setup.faults.set_mode(FaultMode::Pass);
    wait::until_true("Tollgate to be asked again", || setup.status(2, "POST", "/login") == 429);
}

/// One client after the other, one connection to Tollgate.
pub(crate) fn connections_are_kept(kind: &ProxyKind) {
    let setup = ProxySetup::start(kind);
    let before = setup.faults.connections();
    for n in 0..50 {
        assert_eq!(setup.status(2 + n, "GET", "/page"), 200);
    }
    let opened = setup.faults.connections() - before;
    assert!(opened <= 5, "{opened} connections for 50 questions");
}
