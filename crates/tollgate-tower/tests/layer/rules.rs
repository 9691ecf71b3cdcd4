//! A whole gatekeeper behind the layer, over a store in this process and over one that answers later.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use tollgate::store::Store;
use tollgate::{
    Check, Decision, Key, ManualClock, MemoryStore, Micros, Now, Outcome, Receipt, Refusal, Wait,
};
use tollgate_rules::{Ask, Facts, Gatekeeper, InfallibleStore, RuleSet, Source, compile};
use tollgate_tower::{GateDecision, RateLimitLayer, TrustedProxies, Warning};
use tower::Service;

use crate::layer::harness::{
    HelloService, NOON_S, SharedManualClock, behind, from, later, lines, now, poll, send, statuses,
    strict, with,
};
use crate::layer::warnings::watched;

pub(crate) fn rules(text: &str) -> RuleSet {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

pub(crate) type MemoryGatekeeper = Arc<Gatekeeper<MemoryStore, SharedManualClock>>;

/// A gatekeeper of these rules at noon, and its clock.
pub(crate) fn gatekeeper(text: &str) -> (MemoryGatekeeper, SharedManualClock) {
    let clock = Arc::new(ManualClock::new(Micros::from_secs(NOON_S)));
    let store = MemoryStore::new(10_000);
    (Arc::new(Gatekeeper::new(rules(text), store, Arc::clone(&clock))), clock)
}

/// What is left under the first rule of a path.
pub(crate) fn left<S: InfallibleStore>(
    gatekeeper: &Gatekeeper<S, SharedManualClock>,
    path: &str,
    user: &str,
) -> i64 {
    let facts = Facts {
        method: Some("GET"),
        path: Some(path),
        user: Some(user),
        ip: "192.0.2.1".parse().ok(),
        ..Facts::default()
    };
    let ask = Ask { facts, cost: Some(0), ..Ask::default() };
    let peek = pin!(gatekeeper.peek_by(gatekeeper.rules(), &ask, gatekeeper.now()));
    let answer = until_ready(peek);
    answer.limits().next().unwrap().outcome.remaining as i64
}

/// Polls until it is ready: what waits here is ready the next time it is asked.
pub(crate) fn until_ready<F: Future + ?Sized>(mut future: Pin<&mut F>) -> F::Output {
    (0..100)
        .find_map(|_| match poll(&mut future) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
        .expect("ready after a hundred polls")
}

fn get(path: &str, ip: &str, fields: &[(&'static str, &str)]) -> Request<()> {
    let mut request = with(ip, fields);
    *request.uri_mut() = path.parse().unwrap();
    request
}

const LOGIN: &str = "
identify: { trusted_peers: [10.0.0.0/8], user: { header: x-user-id } }
headers: [draft]
rules:
  - { name: login, match: { path: /login, method: POST }, key: '{ip}', limits: [2/minute burst 2] }
  - { name: reads, match: { path: '/read/{*rest}' }, key: '{user|ip}', limits: [3/minute burst 3] }
";

#[test]
fn rules_see_method_path_and_who_is_calling() {
    let (gatekeeper, _) = gatekeeper(LOGIN);
    let mut service = behind(&strict(gatekeeper), &HelloService::new());
    let post = |ip: &str, fields: &[(&'static str, &str)]| {
        let mut request = get("/login?next=/", ip, fields);
        *request.method_mut() = Method::POST;
        request
    };
    let of = |ip| [("x-forwarded-for", ip)];
    let requests = [
        post("10.0.0.1", &of("203.0.113.1")),
        post("10.0.0.2", &of("203.0.113.1")),
        post("10.0.0.1", &of("6.6.6.6, 203.0.113.1")),
        post("10.0.0.1", &of("203.0.113.2")),
        get("/login", "203.0.113.1", &[]),
    ];
    assert_eq!(statuses(&mut service, requests), [200, 200, 429, 200, 200]);
    // Users count from trusted peers only.
    let read = |ip, user| get("/read/%61", ip, &[("x-user-id", user)]);
    let requests = [
        read("10.0.0.1", "anna"),
        read("10.0.0.2", "anna"),
        read("10.0.0.3", "anna"),
        read("10.0.0.3", "anna"),
        read("10.0.0.3", "ben"),
        read("203.0.113.9", "anna"),
    ];
    assert_eq!(statuses(&mut service, requests), [200, 200, 200, 429, 200, 200]);
}

#[test]
fn answers_are_told_as_the_rules_say() {
    let (gatekeeper, _) = gatekeeper(LOGIN);
    let mut service = behind(&strict(Arc::clone(&gatekeeper)), &HelloService::new());
    let response = send(&mut service, get("/read/a", "192.0.2.1", &[]));
    let want = ["ratelimit-policy: \"reads-1m\";q=3;w=60", "ratelimit: \"reads-1m\";r=2;t=20"];
    assert_eq!(lines(response.headers()), want);
    let decision = response.extensions().get::<GateDecision>().unwrap();
    assert_eq!((decision.rule(), decision.policy()), (Some("reads"), Some("reads-1m")));
    let response = send(&mut service, get("/other", "192.0.2.1", &[]));
    assert!(response.headers().is_empty(), "no rule, no limit");
    assert!(response.extensions().get::<GateDecision>().is_none());
    // Rules are replaced while the layer serves.
    gatekeeper.replace(rules("rules: [{ name: all, key: global, limits: [1/minute burst 1] }]"));
    let other = || get("/other", "192.0.2.1", &[]);
    assert_eq!(statuses(&mut service, [other(), other()]), [200, 429]);
}

#[test]
fn handlers_see_no_decision_where_no_limit_applies() {
    let text = "
rules:
  - { name: a, match: { path: /a }, key: global, limits: [2/minute burst 2] }
  - { name: s, match: { path: /shadow }, key: global, limits: [2/minute burst 2], mode: shadow }
  - { name: w, match: { path: /soft }, key: global, limits: [1/minute burst 1], soft: true }
";
    let hello = HelloService::answering(|request| {
        let decision = request.extensions().get::<GateDecision>();
        let said = decision.map_or("none".into(), |decision| decision.remaining().to_string());
        Response::new(said.into())
    });
    type LayerChange = fn(RateLimitLayer) -> RateLimitLayer;
    let changes: [LayerChange; 3] = [
        |layer| layer,
        |layer| layer.charge(|_| None),
        |layer| layer.wait(Duration::from_secs(1), |_| std::future::pending()),
    ];
    for change in changes {
        let (gatekeeper, _) = gatekeeper(text);
        let mut service = behind(&change(strict(Arc::clone(&gatekeeper))), &hello);
        // The second request under a soft limit is beyond it, and is warned.
        let rows = [
            ("/a", "1"),
            ("/none", "none"),
            ("/shadow", "none"),
            ("/soft", "none"),
            ("/soft", "0"),
        ];
        for (path, want) in rows {
            let response = send(&mut service, get(path, "192.0.2.1", &[]));
            assert_eq!(
                (response.status().as_u16(), response.body().as_str()),
                (200, want),
                "{path}"
            );
        }
        let Ok(_open) = now(service.call(get("/none", "192.0.2.1", &[])));
        assert_eq!(gatekeeper.stats().reservations, 0, "nothing is held for no limit");
    }
}

#[test]
fn a_host_is_the_same_in_http_1_and_2() {
    let text = "
rules: [{ name: h, match: { header: { host: a.example } }, key: '{header.host}', limits: [2/minute burst 2] }]";
    let mut service = behind(&strict(gatekeeper(text).0), &HelloService::new());
    let a = [("host", "a.example")];
    let requests = [
        get("/", "192.0.2.1", &a),
        get("https://a.example/", "192.0.2.1", &[]),
        get("https://user@a.example/", "192.0.2.1", &[]),
        get("https://b.example/", "192.0.2.1", &[]),
        get("/", "192.0.2.1", &[]),
    ];
    assert_eq!(statuses(&mut service, requests), [200, 200, 429, 200, 200]);
}

#[test]
fn a_rule_refuses_in_its_own_words() {
    let text = "
headers: [x-ratelimit]
rules:
  - name: own
    match: { path: /own }
    key: '{ip}'
    limits: [1/minute burst 1]
    refusal: { status: 503, body: '{\"busy\":true}', content_type: application/json }
  - name: work
    match: { path: /work }
    key: '{ip}'
    limits: [9/minute]
    concurrency: 1
    refusal: { body: One at a time. }
  - { name: plain, match: { path: /plain }, key: '{ip}', limits: [1/minute burst 1] }
";
    let (gatekeeper, _) = gatekeeper(text);
    let mut service = behind(&strict(gatekeeper), &HelloService::new());
    let Ok(_open) = now(service.call(get("/work", "192.0.2.1", &[])));
    let plain = "text/plain; charset=utf-8";
    let rows = [
        ("/own", 503, "application/json", "{\"busy\":true}"),
        ("/work", 429, plain, "One at a time."),
        ("/plain", 429, "application/problem+json", ""),
    ];
    for (path, status, content_type, body) in rows {
        if path != "/work" {
            assert_eq!(send(&mut service, get(path, "192.0.2.1", &[])).status(), 200);
        }
        let refused = send(&mut service, get(path, "192.0.2.1", &[]));
        assert_eq!(refused.status().as_u16(), status, "{path}");
        assert_eq!(refused.headers()["content-type"], content_type, "{path}");
        assert!(refused.body().starts_with(body), "{path}: {}", refused.body());
        for field in ["retry-after", "cache-control", "x-ratelimit-limit"] {
            assert!(refused.headers().contains_key(field), "{path}: {field}");
        }
    }
    let grpc = get("/own", "192.0.2.1", &[("content-type", "application/grpc")]);
    let refused = send(&mut service, grpc);
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["grpc-status"]),
        (200, &"8".parse().unwrap())
    );
}

#[test]
fn soft_limits_warn_in_a_header() {
    let text = "rules: [{ name: s, key: global, limits: [1/minute burst 1], soft: true }]";
    let mut service = behind(&strict(gatekeeper(text).0), &HelloService::new());
    let first = send(&mut service, from("192.0.2.1"));
    assert_eq!(first.headers().get("x-ratelimit-warning"), None);
    let second = send(&mut service, from("192.0.2.1"));
    assert_eq!(
        (second.status().as_u16(), &second.headers()["x-ratelimit-warning"]),
        (200, &"s-1m".parse().unwrap())
    );
}

#[test]
fn a_key_that_is_sent_twice_is_answered_with_400() {
    let text = "rules: [{ name: t, key: '{header.x-tenant}', limits: [9/minute] }]";
    let mut service = behind(&strict(gatekeeper(text).0), &HelloService::new());
    let twice = with("192.0.2.1", &[("x-tenant", "a"), ("x-tenant", "b")]);
    let same = with("192.0.2.1", &[("x-tenant", "a"), ("x-tenant", "a")]);
    assert_eq!(statuses(&mut service, [twice, same]), [400, 200]);
}

const EXPORTS: &str = "
identify: { trusted_peers: [10.0.0.0/8], user: { header: x-user-id } }
rules:
  - { name: exports, match: { path: /export }, key: '{user|ip}', limits: [100/minute burst 100], concurrency: 2 }
  - name: tokens
    match: { path: /chat }
    key: '{user|ip}'
    limits: [100/hour burst 100]
    cost: { reserve: 10, actual: '{response.header.x-tokens-used}' }
";

#[test]
fn work_counts_until_its_body_ends() {
    let (gatekeeper, _) = gatekeeper(EXPORTS);
    let mut service = behind(&strict(Arc::clone(&gatekeeper)), &HelloService::new());
    let mut begin = || {
        let Ok(response) = now(service.call(get("/export", "192.0.2.1", &[])));
        response
    };
    let (first, second) = (begin(), begin());
    let third = begin();
    assert_eq!([&first, &second, &third].map(|one| one.status().as_u16()), [200, 200, 429]);
    let busy = third.extensions().get::<GateDecision>().unwrap();
    assert_eq!(busy.refusal(), Some(Refusal::Busy));
    assert_eq!(busy.policy(), Some("exports-in-flight"));
    assert_eq!(left(&gatekeeper, "/export", "nobody"), 100, "others are free");
    // Dropped, and read to its end but not dropped: both are over.
    drop(first);
    assert_eq!(begin().status(), 200, "it was dropped at once");
    let mut body = second.into_body();
    assert!(now(body.frame()).is_some());
    let (third, fourth) = (begin(), begin());
    assert_eq!([third, fourth].map(|one| one.status().as_u16()), [200, 429]);
    assert!(now(body.frame()).is_none());
    let (third, fourth) = (begin(), begin());
    assert_eq!([third, fourth].map(|one| one.status().as_u16()), [200, 200]);
    assert_eq!(gatekeeper.stats().reservations, 0);
    drop(body);
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn the_response_tells_the_cost_that_a_rule_asks_it_for() {
    // What the response says, what the charge function says, what is left.
    let rows = [
        (Some("4"), None, 96),
        (Some("30"), None, 70),
        (None, None, 90),
        (Some("x"), None, 90),
        (Some("4"), Some(50), 50),
        (None, Some(0), 100),
    ];
    for (said, charged, want) in rows {
        let (gatekeeper, _) = gatekeeper(EXPORTS);
        let hello = HelloService::answering(move |_| {
            let mut response = Response::default();
            if let Some(said) = said {
                response.headers_mut().insert("x-tokens-used", said.parse().unwrap());
            }
            response
        });
        let layer = strict(Arc::clone(&gatekeeper));
        let layer = if charged.is_some() { layer.charge(move |_| charged) } else { layer };
        let mut service = behind(&layer, &hello);
        let fields = [("x-user-id", "anna")];
        assert_eq!(send(&mut service, get("/chat", "10.0.0.1", &fields)).status(), 200);
        assert_eq!(left(&gatekeeper, "/chat", "anna"), want, "{said:?} {charged:?}");
        assert_eq!(gatekeeper.stats().reservations, 0);
    }
}

#[test]
fn a_charge_function_settles_rules_that_know_nothing_of_it() {
    let (gatekeeper, _) = gatekeeper(EXPORTS);
    let layer = strict(Arc::clone(&gatekeeper)).cost(|_| 20).charge(|_| Some(3));
    let request = get("/export", "10.0.0.1", &[("x-user-id", "anna")]);
    assert_eq!(send(&mut behind(&layer, &HelloService::new()), request).status(), 200);
    assert_eq!(left(&gatekeeper, "/export", "anna"), 97);
}

const QUEUE: &str = "
rules:
  - name: q
    key: global
    limits: [{ rate: 10/second, burst: 5, algorithm: leaky_bucket, queue: true }]
";

#[test]
fn queues_of_rules_hold_back_as_long_as_the_layer_may_wait() {
    let (gatekeeper, _) = gatekeeper(QUEUE);
    let left = || left(&gatekeeper, "/", "");
    let mut service = behind(&strict(Arc::clone(&gatekeeper)), &HelloService::new());
    assert_eq!(statuses(&mut service, [from("192.0.2.1"), from("192.0.2.1")]), [200, 429]);
    assert_eq!(left(), 4);
    let waits = strict(Arc::clone(&gatekeeper))
        .wait(Duration::from_millis(100), |_| std::future::pending());
    let mut service = behind(&waits, &HelloService::new());
    {
        let mut waiting = pin!(service.call(from("192.0.2.1")));
        assert!(poll(&mut waiting).is_pending());
        assert_eq!(left(), 3);
        let refused = send(&mut service, from("192.0.2.1"));
        assert_eq!(refused.status(), 429, "it would have to wait 200 ms");
        assert_eq!(left(), 3, "and is charged nothing");
    }
    assert_eq!(left(), 4, "who leaves while waiting gets its units back");
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn a_proxy_that_the_rules_do_not_know() {
    let forwarded = |peer| with(peer, &[("x-forwarded-for", "203.0.113.1")]);
    for (peer, want) in [("10.0.0.1", &[][..]), ("172.16.0.1", &[Warning::ForwardedIgnored][..])] {
        let (layer, told) = watched(gatekeeper(LOGIN).0);
        let mut service = behind(&layer, &HelloService::new());
        send(&mut service, forwarded(peer));
        send(&mut service, forwarded(peer));
        assert_eq!(*told.lock().unwrap(), want, "{peer}");
    }
}

#[test]
fn a_layer_that_does_not_find_the_peer() {
    let (layer, told) = watched(gatekeeper(LOGIN).0);
    let mut service = behind(&layer, &HelloService::new());
    let nowhere = || Request::builder().uri("/read/a").body(()).unwrap();
    // Without an address the rule's key has no fact, and the rule does not apply: that is why it is told.
    assert_eq!(statuses(&mut service, [(); 5].map(|()| nowhere())), [200; 5]);
    assert_eq!(*told.lock().unwrap(), [Warning::NoPeer]);
}

/// The memory store, which answers two polls late: what is shared is asked over a wire.
pub(crate) struct DelayedMemoryStore {
    store: MemoryStore,
    /// How often somebody has waited.
    waits: AtomicUsize,
    /// The wait for each answer, if it takes time.
    round_trip: Option<RoundTripFn>,
    /// True if the next decision is that the store is unavailable.
    fails_once: AtomicBool,
}

type RoundTripFn = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl DelayedMemoryStore {
    pub(crate) fn new() -> DelayedMemoryStore {
        DelayedMemoryStore {
            store: MemoryStore::new(10_000),
            waits: AtomicUsize::new(0),
            round_trip: None,
            fails_once: AtomicBool::new(false),
        }
    }

    pub(crate) fn with_round_trip(self, round_trip: RoundTripFn) -> DelayedMemoryStore {
        DelayedMemoryStore { round_trip: Some(round_trip), ..self }
    }

    pub(crate) fn fail_once(&self) {
        self.fails_once.store(true, Ordering::Relaxed);
    }

    async fn wait(&self) {
        if let Some(round_trip) = &self.round_trip {
            round_trip().await;
        }
        let mut polls = 0;
        std::future::poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls > 2 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.waits.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store for DelayedMemoryStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        self.wait().await;
        if self.fails_once.swap(false, Ordering::Relaxed) {
            return Ok(Decision::refused(Refusal::StoreUnavailable, Wait::ZERO, now.instant()));
        }
        Ok(self.store.decide_each(checks, now, outcomes))
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        self.wait().await;
        Store::refund(&self.store, check, receipt, now).await
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        Store::reset(&self.store, check, now).await
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        Store::balance(&self.store, check, now).await
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        Store::block(&self.store, key, until, now).await
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        Store::unblock(&self.store, key, now).await
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        Store::blocked(&self.store, key, now)
    }

    fn any_block(&self, now: Micros) -> bool {
        Store::any_block(&self.store, now)
    }
}

pub(crate) type DelayedGatekeeper = Arc<Gatekeeper<Arc<DelayedMemoryStore>, SharedManualClock>>;

pub(crate) fn later_gatekeeper(text: &str) -> (DelayedGatekeeper, Arc<DelayedMemoryStore>) {
    let clock = Arc::new(ManualClock::new(Micros::from_secs(NOON_S)));
    let store = Arc::new(DelayedMemoryStore::new());
    (Arc::new(Gatekeeper::new(rules(text), Arc::clone(&store), clock)), store)
}

#[test]
fn a_store_that_answers_later_is_waited_for() {
    let (gatekeeper, store) = later_gatekeeper(EXPORTS);
    let hello = HelloService::answering(|_| {
        Response::builder().header("x-tokens-used", "4").body("".into()).unwrap()
    });
    let mut service = behind(&strict(Arc::clone(&gatekeeper)), &hello);
    let mut asked = pin!(service.call(get("/chat", "10.0.0.1", &[("x-user-id", "anna")])));
    assert!(
        poll(&mut asked).is_pending() && hello.calls() == 0,
        "nothing happens before it answers"
    );
    let Ok(response) = until_ready(asked);
    assert_eq!((response.status().as_u16(), hello.calls()), (200, 1));
    let waits = store.waits.load(Ordering::Relaxed);
    assert_eq!(waits, 2, "decided, and settled before the response goes on");
    drop(response);
    assert_eq!(left(&gatekeeper, "/chat", "anna"), 96);
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn who_leaves_before_a_store_answers_has_begun_nothing() {
    let (gatekeeper, _) = later_gatekeeper(EXPORTS);
    let hello = HelloService::new();
    let mut service = behind(&strict(Arc::clone(&gatekeeper)), &hello);
    {
        let mut left = pin!(service.call(get("/export", "192.0.2.1", &[])));
        assert!(poll(&mut left).is_pending());
    }
    assert_eq!((hello.calls(), gatekeeper.stats().reservations), (0, 0));
    let mut refused = 0;
    for _ in 0..101 {
        let Ok(response) = until_ready(pin!(service.call(get("/export", "192.0.2.1", &[]))));
        refused += usize::from(response.status() == 429);
    }
    assert_eq!((hello.calls(), refused), (100, 1));
}

#[test]
fn the_clock_frees_rules_too() {
    let (gatekeeper, clock) = gatekeeper(LOGIN);
    let mut service = behind(&strict(gatekeeper), &HelloService::new());
    let read = || get("/read/a", "192.0.2.1", &[]);
    assert_eq!(statuses(&mut service, [read(), read(), read(), read()]), [200, 200, 200, 429]);
    later(&clock, 20_000_000);
    assert_eq!(statuses(&mut service, [read(), read()]), [200, 429]);
}

/// Keys of this crate's own and keys of rules find the same client in the same list.
#[test]
fn rules_and_keys_agree_on_who_is_calling() {
    let identify = rules(
        "identify: { trusted_peers: ['::ffff:10.0.0.0/104', 2001:db8::/32] }
rules: [{ name: all, key: '{ip}', limits: [1/s] }]",
    );
    let identify = &identify.settings().identify;
    let proxies = TrustedProxies::new(["::ffff:10.0.0.0/104", "2001:db8::/32"]).unwrap();
    let pieces = [
        "203.0.113.9",
        "10.0.0.2",
        "2001:db8::7",
        "2001:db9::7",
        "[2001:db8::1]:80",
        "10.0.0.3:80",
        "203.0.113.9:",
        "unknown",
        "_x",
        "",
        " ",
        "\t10.0.0.4 ",
        "\"10.0.0.5\"",
        "\"203.0.113.1",
        "\"\"",
        "::ffff:10.0.0.6",
        "::ffff:203.0.113.2",
        "fe80::1%eth0",
        "fe80::1%",
        "[fe80::1%2]",
        "[10.0.0.1]",
        "10.0.0.1:_p",
        "10.0.0.1:_",
        "010.0.0.1",
        "10.0.0.1:65536",
        "10.0.0.1:080",
        ":80",
        "[::1]x",
        "10.0.0.7%1",
        "2001:db8::1:443",
        "é",
    ];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut pick = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    for round in 0..20_000 {
        let peer = ["10.0.0.1", "2001:db8::1", "203.0.113.7"][pick(3)].parse().unwrap();
        let lines: Vec<String> = (0..pick(3) + 1)
            .map(|_| {
                (0..pick(40)).map(|_| pieces[pick(pieces.len())]).collect::<Vec<_>>().join(",")
            })
            .collect();
        let fields: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_str())).collect();
        let mut headers = http::HeaderMap::new();
        for line in &lines {
            let value = http::HeaderValue::from_bytes(line.as_bytes()).unwrap();
            headers.append("x-forwarded-for", value);
        }
        let by_rules = identify.identify(peer, &fields, Micros::ZERO).ip;
        assert_eq!(
            Some(proxies.client_of(peer, &headers)),
            by_rules,
            "round {round}: {peer} {lines:?}"
        );
    }
}

#[test]
fn a_caller_in_other_spellings_is_one_caller() {
    let text = "identify: { user: { header: x_user_id } }
rules:
  - { name: hosted, match: { host: api.example }, key: '{host}', limits: [2/minute burst 2] }
  - { name: cookies, match: { path: /c }, key: '{header.cookie}', limits: [1/minute burst 1] }";
    let (gate, _) = gatekeeper(text);
    let mut service = behind(&strict(gate), &HelloService::new());
    let mut ask = |target: &str, fields: &[(&'static str, &str)]| {
        send(&mut service, get(target, "192.0.2.1", fields)).status().as_u16()
    };
    // The target of HTTP/2 and of the absolute form, and the field.
    assert_eq!(ask("http://API.example:1/", &[]), 200);
    assert_eq!(ask("/", &[("host", "api.example.")]), 200);
    assert_eq!(ask("/", &[("host", "Api.Example:8080")]), 429);
    assert_eq!(ask("https://api.example./", &[("host", "API.EXAMPLE")]), 429, "one host");
    assert_eq!(ask("http://other.example/", &[]), 200);
    assert_eq!(ask("http://other.example/", &[("host", "api.example")]), 400, "which one?");
    assert_eq!(ask("/c", &[("cookie", "a=1"), ("cookie", "b=2")]), 200);
    assert_eq!(ask("/c", &[("cookie", "a=1; b=2")]), 429);
    assert_eq!(ask("/", &[("x-user-id", "root")]), 400, "mistaken for x_user_id");
    assert_eq!(ask("/", &[("x-other", "root")]), 200);
}
