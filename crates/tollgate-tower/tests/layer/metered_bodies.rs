//! Costs in the bodies of responses: the layer shows them to the gatekeeper on their way, and settles at the end,
//! whichever way it comes. Costs estimated by the bodies of requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tollgate_rules::{Ask, Facts, SettlementOutcome};
use tollgate_tower::gate::BoxFuture;
use tollgate_tower::{AdmissionGuard, InnerLimitFields, PeerAddr, RateLimitLayer, ReplayedBody};
use tower::{Layer, Service, service_fn};

use crate::layer::harness::{lines, now, poll, strict};
use crate::layer::rules::{gatekeeper, later_gatekeeper, left, until_ready};

const RULES: &str = "
rules:
  - name: tokens
    match: { path: /chat }
    key: '{ip}'
    limits: [1000/hour burst 1000]
    cost: { reserve: '{request.json.max_tokens|100}', actual: '{response.json.usage.total_tokens}' }
    concurrency: 2
  - name: bytes
    match: { path: /files }
    key: '{ip}'
    limits: [1000/hour burst 1000]
    cost: { reserve: '{request.bytes|100}', actual: '{response.bytes}' }
";

/// A body of given frames; an error is an `Err`.
#[derive(Clone, Default)]
struct ScriptedBody {
    frames: VecDeque<Result<Option<Bytes>, &'static str>>,
    trailers: Option<HeaderMap>,
    /// True if the body states its length, and knows its end.
    is_sized: bool,
}

impl ScriptedBody {
    fn of(pieces: &[&'static str]) -> ScriptedBody {
        let frames = pieces.iter().map(|piece| Ok(Some(Bytes::from_static(piece.as_bytes()))));
        ScriptedBody { frames: frames.collect(), ..ScriptedBody::default() }
    }

    fn then(mut self, frame: Result<Option<Bytes>, &'static str>) -> ScriptedBody {
        self.frames.push_back(frame);
        self
    }
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        match self.frames.pop_front() {
            Some(Ok(Some(data))) => Poll::Ready(Some(Ok(Frame::data(data)))),
            // A pause that lasts one poll.
            Some(Ok(None)) => Poll::Pending,
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_sized && self.frames.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = |frame: &Result<Option<Bytes>, _>| match frame {
            Ok(Some(data)) => data.len() as u64,
            _ => 0,
        };
        match self.is_sized {
            true => SizeHint::with_exact(self.frames.iter().map(bytes).sum()),
            false => SizeHint::default(),
        }
    }
}

fn request<B>(path: &str, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.uri_mut() = path.parse().unwrap();
    request.extensions_mut().insert(PeerAddr("192.0.2.1".parse().unwrap()));
    request
}

fn json_response<B>(body: B) -> Response<B> {
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

const USAGE: [&str; 3] = ["{\"usage\":{\"total_to", "kens\":4", "2}}"];

#[test]
fn a_body_is_settled_when_it_ends() {
    for is_sized in [false, true] {
        let (gatekeeper, _) = gatekeeper(RULES);
        let layer = strict(Arc::clone(&gatekeeper));
        let body = ScriptedBody { is_sized, ..ScriptedBody::of(&USAGE) };
        let mut service = layer.layer(service_fn(move |_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(json_response(body.clone())))
        }));
        let Ok(response) = now(service.call(request("/chat", ())));
        assert_eq!(left(&gatekeeper, "/chat", ""), 900, "reserved");
        let mut body = response.into_body();
        assert_eq!(body.size_hint().exact(), is_sized.then_some(29));
        for piece in USAGE {
            let frame = now(body.frame()).unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), piece, "frames pass unchanged");
        }
        assert_eq!(body.is_end_stream(), is_sized);
        if is_sized {
            // The server does not ask again.
            drop(body);
        } else {
            assert_eq!(left(&gatekeeper, "/chat", ""), 900);
            assert!(now(body.frame()).is_none());
        }
        assert_eq!(left(&gatekeeper, "/chat", ""), 958);
        assert_eq!(gatekeeper.settlements().count(SettlementOutcome::Json), 1);
        assert_eq!(gatekeeper.settlements().broken(), 0);
        assert_eq!(gatekeeper.stats().reservations, 0);
    }
}

#[test]
fn a_body_that_ends_early_is_settled_by_the_part_that_passed() {
    let (gatekeeper, _) = gatekeeper(RULES);
    let layer = strict(Arc::clone(&gatekeeper));
    let broken = ScriptedBody::of(&["1234", "567"]).then(Err("reset"));
    let mut service = layer.layer(service_fn(move |_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(broken.clone())))
    }));
    let mut begin = || {
        let Ok(response) = now(service.call(request("/files", ())));
        response.into_body()
    };
    // Dropped after no frame, one frame, all frames; and failed.
    let mut want = 1_000;
    for (frames, cost) in [(0, 0), (1, 4), (2, 7), (3, 7)] {
        let mut body = begin();
        for number in 0..frames {
            assert_eq!(now(body.frame()).unwrap().is_err(), number == 2);
        }
        drop(body);
        want -= cost;
        assert_eq!(left(&gatekeeper, "/files", ""), want, "after {frames} frames");
    }
    assert_eq!(gatekeeper.settlements().broken(), 4);
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn trailers_pass_and_an_empty_body_is_complete() {
    let (gatekeeper, _) = gatekeeper(RULES);
    let layer = strict(Arc::clone(&gatekeeper));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    let body = ScriptedBody { trailers: Some(trailers.clone()), ..ScriptedBody::of(&["12"]) };
    let mut service = layer.layer(service_fn(move |request: Request<()>| {
        let is_empty = request.method() == Method::HEAD;
        let body = match is_empty {
            true => ScriptedBody { is_sized: true, ..ScriptedBody::default() },
            false => body.clone(),
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let Ok(response) = now(service.call(request("/files", ())));
    let collected = now(response.into_body().collect()).unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(left(&gatekeeper, "/files", ""), 998);
    let mut head = request("/files", ());
    *head.method_mut() = Method::HEAD;
    let Ok(response) = now(service.call(head));
    assert_eq!(left(&gatekeeper, "/files", ""), 998, "nothing came, nothing is charged");
    drop(response);
    assert_eq!(gatekeeper.settlements().broken(), 0);
}

/// Futures that the layer has given to its background function.
type Background = Arc<Mutex<Vec<BoxFuture<()>>>>;

fn in_background(layer: RateLimitLayer) -> (RateLimitLayer, Background) {
    let futures = Background::default();
    let given = Arc::clone(&futures);
    (layer.background(move |future| given.lock().unwrap().push(future)), futures)
}

#[test]
fn over_a_store_that_answers_later_the_end_waits_and_a_hang_up_goes_to_the_background() {
    let (gatekeeper, _) = later_gatekeeper(RULES);
    let (layer, background) = in_background(strict(Arc::clone(&gatekeeper)));
    let mut service = layer.layer(service_fn(move |_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(ScriptedBody::of(&["12345"]))))
    }));
    let Ok(response) = until_ready(pin!(service.call(request("/files", ()))));
    let mut body = response.into_body();
    assert!(now(body.frame()).is_some(), "data does not wait");
    {
        let mut end = pin!(body.frame());
        assert!(poll(&mut end).is_pending());
        assert!(until_ready(end).is_none());
    }
    drop(body);
    assert_eq!(left(&gatekeeper, "/files", ""), 995);
    assert!(background.lock().unwrap().is_empty());
    // A client that goes while the store is asked, and one that goes before.
    for polls in [2, 1] {
        let Ok(response) = until_ready(pin!(service.call(request("/files", ()))));
        let mut body = response.into_body();
        for _ in 0..polls {
            let _ = poll(&mut pin!(body.frame()));
        }
        drop(body);
        let futures = std::mem::take(&mut *background.lock().unwrap());
        assert_eq!(futures.len(), 1);
        for mut future in futures {
            until_ready(future.as_mut());
        }
    }
    assert_eq!(left(&gatekeeper, "/files", ""), 985);
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn a_response_that_nobody_waits_for_is_settled_in_the_background() {
    let text = "
rules:
  - { name: h, key: '{ip}', limits: [1000/hour burst 1000], cost: { reserve: 100, actual: '{response.header.x-cost}' } }
";
    let (gatekeeper, _) = later_gatekeeper(text);
    let (layer, background) = in_background(strict(Arc::clone(&gatekeeper)));
    let mut service = layer.layer(service_fn(|_: Request<()>| {
        let response = Response::builder().header("x-cost", "30").body(ScriptedBody::default());
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    }));
    {
        let mut waiting = pin!(service.call(request("/", ())));
        // The store decides with the third poll, of which the call was the first; then it is asked to settle.
        for _ in 0..2 {
            assert!(poll(&mut waiting).is_pending());
        }
        assert!(background.lock().unwrap().is_empty());
    }
    let future = background.lock().unwrap().pop();
    until_ready(future.expect("the settlement goes on").as_mut());
    assert_eq!(left(&gatekeeper, "/", ""), 970);
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn the_inner_service_is_asked_for_plain_text_where_its_body_is_read() {
    let (gatekeeper, _) = gatekeeper(RULES);
    let mut service = strict(gatekeeper).layer(service_fn(|request: Request<()>| {
        let asked = request.headers().get("accept-encoding").cloned();
        let mut response = Response::new(ScriptedBody::default());
        response.extensions_mut().insert(asked);
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    for (path, want) in [("/chat", "identity"), ("/files", "gzip"), ("/other", "gzip")] {
        let mut request = request(path, ());
        request.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
        let Ok(response) = now(service.call(request));
        let asked = response.extensions().get::<Option<http::HeaderValue>>().unwrap();
        assert_eq!(asked.as_ref().unwrap(), want, "{path}");
    }
}

#[test]
fn a_tunnel_holds_its_slot_as_long_as_its_guard_lives() {
    let (gatekeeper, _) = gatekeeper(RULES);
    let mut service = strict(Arc::clone(&gatekeeper)).layer(service_fn(|request: Request<()>| {
        let status = if request.method() == Method::CONNECT { 200 } else { 101 };
        let response = Response::builder().status(status).body(ScriptedBody::default());
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    }));
    let open = || gatekeeper.stats().reservations;
    for method in [Method::GET, Method::CONNECT] {
        let mut request = request("/chat", ());
        *request.method_mut() = method;
        let Ok(response) = now(service.call(request));
        let guard = response.extensions().get::<AdmissionGuard>().unwrap().clone();
        let copy = guard.clone();
        drop(response);
        drop(guard);
        assert_eq!(open(), 1);
        drop(copy);
        assert_eq!(open(), 0);
    }
    // Nobody takes the guard.
    let Ok(response) = now(service.call(request("/chat", ())));
    assert_eq!(open(), 1);
    drop(response);
    assert_eq!((open(), left(&gatekeeper, "/chat", "")), (0, 700), "charged as reserved");
}

#[test]
fn a_slot_returns_if_the_handler_panics_or_the_client_goes_early() {
    let (gatekeeper, _) = gatekeeper(RULES);
    let layer = strict(Arc::clone(&gatekeeper));
    let mut at_once = layer.layer(service_fn(|_: Request<()>| {
        if true {
            panic!("a handler");
        }
        std::future::ready(Ok::<_, Infallible>(Response::new(ScriptedBody::default())))
    }));
    let mut later = layer.layer(service_fn(|_: Request<()>| async {
        if true {
            panic!("a handler");
        }
        Ok::<_, Infallible>(Response::new(ScriptedBody::default()))
    }));
    let mut never = layer.layer(service_fn(|_: Request<()>| {
        std::future::pending::<Result<Response<ScriptedBody>, Infallible>>()
    }));
    let caught = |act: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
    };
    assert!(caught(&mut || drop(now(at_once.call(request("/chat", ()))))));
    assert!(caught(&mut || drop(now(later.call(request("/chat", ()))))));
    {
        let mut going = pin!(never.call(request("/chat", ())));
        assert!(poll(&mut going).is_pending());
        assert_eq!(gatekeeper.stats().reservations, 1);
    }
    assert_eq!(gatekeeper.stats().reservations, 0);
    assert_eq!(left(&gatekeeper, "/chat", ""), 700, "the work was begun");
}

/// The bytes of a request's body behind the layer, and how much was reserved for it.
fn reserved(
    body: ScriptedBody,
    fields: &[(&'static str, &str)],
) -> (Result<String, &'static str>, i64) {
    let (gatekeeper, _) = gatekeeper(RULES);
    let layer = strict(Arc::clone(&gatekeeper));
    let seen = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&seen);
    let limited = layer.layer(service_fn(move |request: Request<ReplayedBody<ScriptedBody>>| {
        let (hint, body) = (request.body().size_hint(), request.into_body());
        let body =
            now(body.collect()).map(|body| String::from_utf8(body.to_bytes().to_vec()).unwrap());
        if let (Some(exact), Ok(body)) = (hint.exact(), &body) {
            assert_eq!(exact, body.len() as u64);
        }
        *keep.lock().unwrap() = Some(body);
        std::future::pending::<Result<Response<ScriptedBody>, Infallible>>()
    }));
    let mut service = layer.request_body().layer(limited);
    let mut request = request("/chat", body);
    for (name, value) in fields {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let mut going = pin!(service.call(request));
    for _ in 0..4 {
        assert!(poll(&mut going).is_pending());
    }
    let seen = seen.lock().unwrap().take().expect("the request went on");
    (seen, 1_000 - left(&gatekeeper, "/chat", ""))
}

/// The status of the layer's own response to a request with this body, and the units left then. `used` is how many tokens the caller has
/// used before.
fn answered(rules: &str, used: u64, body: ScriptedBody, is_later: bool) -> (u16, i64, usize) {
    let polled = Arc::new(Mutex::new(0));
    let body = CountedBody { body, polled: Arc::clone(&polled) };
    let inner = || {
        service_fn(|_: Request<ReplayedBody<CountedBody>>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(ScriptedBody::default())))
        })
    };
    macro_rules! run {
        ($gatekeeper:expr) => {{
            let gatekeeper = $gatekeeper;
            if used > 0 {
                let facts = Facts {
                    ip: Some([192, 0, 2, 1].into()),
                    path: Some("/chat"),
                    ..Facts::default()
                };
                let ask = Ask { facts, cost: Some(used), ..Ask::default() };
                drop(until_ready(pin!(gatekeeper.decide_by(
                    gatekeeper.rules(),
                    &ask,
                    gatekeeper.now()
                ))));
            }
            let layer = strict(Arc::clone(&gatekeeper));
            let mut service = layer.request_body().layer(layer.layer(inner()));
            let Ok(response) = until_ready(pin!(service.call(request("/chat", body))));
            let status = response.status().as_u16();
            drop(response);
            (status, left(&gatekeeper, "/chat", ""), *polled.lock().unwrap())
        }};
    }
    match is_later {
        true => run!(later_gatekeeper(rules).0),
        false => run!(gatekeeper(rules).0),
    }
}

/// A body that counts how often it was asked for a frame.
struct CountedBody {
    body: ScriptedBody,
    polled: Arc<Mutex<usize>>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        *self.polled.lock().unwrap() += 1;
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

#[test]
fn a_request_that_is_refused_anyway_is_refused_unread() {
    for is_later in [false, true] {
        let body = || ScriptedBody::of(&["{\"max_tokens\":250}"]);
        assert_eq!(answered(RULES, 1_000, body(), is_later), (429, 0, 0));
        let (status, left, polled) = answered(RULES, 900, body(), is_later);
        assert_eq!((status, left), (429, 100), "250 do not fit");
        assert!(polled > 0);
    }
}

#[test]
fn a_body_that_never_arrives_is_answered_with_408_and_free() {
    for is_later in [false, true] {
        let body = ScriptedBody::of(&["{\"max_tok"]).then(Err("reset"));
        let (status, left, _) = answered(RULES, 0, body, is_later);
        assert_eq!((status, left), (408, 1_000));
    }
}

#[test]
fn a_rule_may_refuse_bodies_that_cannot_be_read() {
    let refusing =
        RULES.replace("actual: '{response.json", "unreadable: refuse, actual: '{response.json");
    let space: &'static str = " ".repeat(100 << 10).leak();
    // body, status of both rules
    let rows: [(&[&str], u16, u16); 6] = [
        (&["{\"max_tokens\":250}"], 200, 200),
        (&["{\"max_tokens\":250"], 200, 400),
        (&["max_tokens=250"], 200, 400),
        (&[], 200, 200),
        (&["{", space, space, "}"], 200, 200),
        (&["{", space, space, space, "}"], 200, 413),
    ];
    for (pieces, estimate, refuse) in rows {
        assert_eq!(
            answered(RULES, 0, ScriptedBody::of(pieces), false).0,
            estimate,
            "{}",
            pieces.len()
        );
        let (status, left, _) = answered(&refusing, 0, ScriptedBody::of(pieces), false);
        assert_eq!(status, refuse);
        assert!(status == 200 || left == 1_000, "a refusal is free");
    }
}

/// Sends a body through the layer to a service that reads so many of its frames. Returns the units charged then, and when the
/// body has been dropped.
fn counted(body: ScriptedBody, length: Option<&str>, frames: usize) -> [i64; 2] {
    let (gatekeeper, _) = gatekeeper(
        "rules: [{ name: a, key: '{ip}', limits: [1000000/hour burst 1000000], cost: { reserve: '{request.bytes|4000}' } }]",
    );
    let layer = strict(Arc::clone(&gatekeeper));
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let limited = layer.layer(service_fn(move |request: Request<ReplayedBody<ScriptedBody>>| {
        let mut body = Box::pin(request.into_body());
        (0..frames).for_each(|_| drop(now(body.frame())));
        *keep.lock().unwrap() = Some(body);
        std::future::ready(Ok::<_, Infallible>(Response::new(ScriptedBody::default())))
    }));
    let mut service = layer.request_body().layer(limited);
    let mut request = request("/", body);
    if let Some(length) = length {
        request.headers_mut().insert("content-length", length.parse().unwrap());
    }
    let Ok(response) = now(service.call(request));
    // The response may end before the body of the request.
    drop(response);
    let charged = || 1_000_000 - left(&gatekeeper, "/", "");
    let before = charged();
    drop(kept.lock().unwrap().take());
    [before, charged()]
}

#[test]
fn an_estimate_by_bytes_counts_them_as_they_pass() {
    let long: &'static str = "x".repeat(50_000).leak();
    let four = ScriptedBody::of(&[long; 4]);
    assert_eq!(counted(four.clone(), None, 0), [4_000, 4_000], "nobody asked for the body");
    assert_eq!(counted(four.clone(), None, 1), [4_000, 50_000]);
    assert_eq!(counted(four.clone(), None, 2), [100_000, 100_000], "charged on its way");
    assert_eq!(counted(four.clone(), None, 5), [200_000, 200_000]);
    assert_eq!(counted(ScriptedBody::of(&["1234567"]), None, 2), [7, 7]);
    assert_eq!(counted(four.clone(), Some("200000"), 1), [200_000, 50_000], "the rest never came");
    assert_eq!(counted(four, Some("200000"), 5), [200_000, 200_000]);
    let failed = || ScriptedBody::default().then(Err("reset"));
    assert_eq!(counted(failed(), None, 1), [4_000, 0], "a body that never arrives is free");
    assert_eq!(counted(failed(), Some("200000"), 1), [200_000, 0]);
}

#[test]
fn the_body_of_a_request_is_read_for_its_estimate_and_passes_unchanged() {
    let json = [("content-type", "application/json; charset=utf-8")];
    let pieces = ["{\"max_to", "kens\":2", "50}"];
    let whole: String = pieces.concat();
    for is_sized in [false, true] {
        let body = ScriptedBody { is_sized, ..ScriptedBody::of(&pieces) };
        assert_eq!(reserved(body, &json), (Ok(whole.clone()), 250));
    }
    let paused = ScriptedBody::of(&pieces[..2]).then(Ok(None)).then(Ok(Some("50}".into())));
    assert_eq!(reserved(paused, &json), (Ok(whole.clone()), 250));
    // Upstreams may read it whatever its head says.
    for fields in [&[][..], &[("content-type", "text/plain")], &[("content-encoding", "gzip")]] {
        assert_eq!(reserved(ScriptedBody::of(&pieces), fields), (Ok(whole.clone()), 250));
    }
    // No JSON: not read on, and passed.
    let form = ["max_tokens=250", "&x=1"];
    assert_eq!(reserved(ScriptedBody::of(&form), &[]), (Ok(form.concat()), 100));
}

#[test]
fn a_long_body_is_not_read_and_still_passes() {
    let json = [("content-type", "application/json")];
    let space = Bytes::from(" ".repeat(100 << 10));
    let mut long = ScriptedBody::of(&["{\"max_tokens\":250}"]);
    for _ in 0..2 {
        long = long.then(Ok(Some(space.clone())));
    }
    let (body, cost) = reserved(long.clone(), &json);
    assert_eq!((body.unwrap().len(), cost), (18 + (200 << 10), 250));
    for is_sized in [false, true] {
        let mut longer = long.clone().then(Ok(Some(space.clone())));
        longer.is_sized = is_sized;
        let (body, cost) = reserved(longer, &json);
        // A body that states its length is not read at all; of others the number found so far counts.
        let want = if is_sized { 100 } else { 250 };
        assert_eq!((body.unwrap().len(), cost), (18 + (300 << 10), want));
    }
    let mut many = ScriptedBody::of(&["{\"max_tokens\":250}"]);
    for _ in 0..2_000 {
        many = many.then(Ok(Some(" ".into())));
    }
    let (body, cost) = reserved(many, &json);
    assert_eq!((body.unwrap().len(), cost), (2_018, 250), "short frames share memory");
}

#[test]
fn fields_of_the_inner_service_are_kept_replaced_or_renamed() {
    let text = "
headers: [x-ratelimit]
rules: [{ name: a, match: { path: /a }, key: '{ip}', limits: [9/minute burst 9] }]
";
    let ours =
        ["x-ratelimit-limit: 9", "x-ratelimit-remaining: 8", "x-ratelimit-reset: 1794744007"];
    let theirs = |name: &str| format!("{name}: 77");
    let rows = [
        (
            InnerLimitFields::Keep,
            vec![
                ours[1].to_owned(),
                ours[2].to_owned(),
                theirs("ratelimit"),
                theirs("x-ratelimit-limit"),
            ],
        ),
        (InnerLimitFields::Replace, ours.map(String::from).to_vec()),
        (
            InnerLimitFields::Apart,
            [
                ours.map(String::from).to_vec(),
                vec![theirs("upstream-ratelimit"), theirs("upstream-x-ratelimit-limit")],
            ]
            .concat(),
        ),
    ];
    for (fields, mut want) in rows {
        for by_response in [false, true] {
            let layer = strict(gatekeeper(text).0);
            let layer = if by_response { layer } else { layer.inner_fields(fields) };
            let mut service = layer.layer(service_fn(move |_: Request<()>| {
                let mut response = Response::builder()
                    .header("x-ratelimit-limit", "77")
                    .header("ratelimit", "77")
                    .header("retry-after", "5")
                    .body(ScriptedBody::default())
                    .unwrap();
                if by_response {
                    response.extensions_mut().insert(fields);
                }
                std::future::ready(Ok::<_, Infallible>(response))
            }));
            let Ok(response) = now(service.call(request("/a", ())));
            want.push("retry-after: 5".into());
            want.sort();
            want.dedup();
            assert_eq!(lines(response.headers()), want, "{fields:?} {by_response}");
            let Ok(response) = now(service.call(request("/other", ())));
            assert_eq!(response.headers().len(), 3, "without a limit of ours they stay");
        }
    }
}
