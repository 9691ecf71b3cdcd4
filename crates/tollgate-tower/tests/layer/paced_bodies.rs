//! Bodies under `cost: bytes`: each piece is charged as it passes, and a queue delays it. On a manual clock: a sleep
//! moves it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tollgate::Clock;
use tollgate_rules::{Ask, Facts, Gatekeeper, InfallibleStore};
use tollgate_tower::gate::BoxFuture;
use tollgate_tower::{PeerAddr, RateLimitLayer, ReplayedBody};
use tower::{Layer, Service, service_fn};

use crate::layer::harness::{SharedManualClock, later, now, strict};
use crate::layer::rules::{gatekeeper, later_gatekeeper, left, until_ready};

/// 10,000 bytes a second in pieces of 512 bytes; `/debt` has no queue.
const RULES: &str = "
rules:
  - name: shaped
    match: { path: /shaped }
    key: '{ip}'
    limits: [{ rate: 10000/second, burst: 2000, algorithm: leaky_bucket, queue: true }]
    cost: bytes
  - name: debt
    match: { path: /debt }
    key: '{ip}'
    limits: [10000/second burst 2000]
    cost: bytes
  - name: shadow
    match: { path: /shadow }
    key: '{ip}'
    limits: [{ rate: 10000/second, burst: 2000, algorithm: leaky_bucket, queue: true }]
    cost: bytes
    mode: shadow
";

/// The time that a byte takes.
const BYTE_US: u64 = 100;

fn request<B>(path: &str, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.uri_mut() = path.parse().unwrap();
    request.extensions_mut().insert(PeerAddr("192.0.2.1".parse().unwrap()));
    request
}

/// A layer whose sleeps move the clock.
fn waiting<S: InfallibleStore + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>,
    clock: &SharedManualClock,
) -> RateLimitLayer {
    let clock = Arc::clone(clock);
    strict(Arc::clone(gatekeeper)).wait(Duration::from_secs(60), move |duration| {
        later(&clock, duration.as_micros() as u64);
        Box::pin(std::future::ready(())) as BoxFuture<()>
    })
}

/// Reads a body; returns instants in microseconds since `began` and lengths of its pieces.
fn pieces<B: Body<Data = Bytes>>(
    body: B,
    clock: &SharedManualClock,
    began: u64,
) -> Vec<(u64, usize)>
where
    B::Error: std::fmt::Debug,
{
    let (mut body, mut pieces) = (pin!(body), Vec::new());
    loop {
        let left = body.size_hint().exact();
        let frame = until_ready(pin!(body.frame()));
        let Some(frame) = frame else { break };
        if let Ok(data) = frame.unwrap().into_data() {
            pieces.push((clock.now().as_u64() - began, data.len()));
            if let Some(left) = left {
                assert_eq!(body.size_hint().exact(), Some(left - data.len() as u64));
            }
        }
    }
    assert!(body.is_end_stream() || body.size_hint().exact().is_none());
    pieces
}

/// No piece may come before its bytes and all before them have had their time.
fn check_pace(pieces: &[(u64, usize)], bytes: usize) {
    assert_eq!(pieces.iter().map(|(_, length)| length).sum::<usize>(), bytes);
    // The byte of the request itself is ahead of the first piece.
    let mut earliest = BYTE_US;
    for &(at, length) in pieces {
        assert!(length <= 512, "{length} bytes in one piece");
        assert_eq!(at, earliest, "{pieces:?}");
        earliest += length as u64 * BYTE_US;
    }
}

#[test]
fn a_response_passes_at_the_rate_of_its_queue() {
    for is_remote in [false, true] {
        let bytes = 5_000;
        let answer = service_fn(move |_: Request<()>| async move {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![7; bytes])))
        });
        let (response, clock) = match is_remote {
            false => {
                let (gatekeeper, clock) = gatekeeper(RULES);
                let mut service = waiting(&gatekeeper, &clock).layer(answer);
                (now(service.call(request("/shaped", ()))).unwrap(), clock)
            }
            true => {
                let (gatekeeper, _) = later_gatekeeper(RULES);
                let clock = Arc::clone(gatekeeper.clock());
                let mut service = waiting(&gatekeeper, &clock).layer(answer);
                (until_ready(pin!(service.call(request("/shaped", ())))).unwrap(), clock)
            }
        };
        let began = clock.now().as_u64();
        check_pace(&pieces(response.into_body(), &clock, began), bytes);
    }
}

#[test]
fn a_request_passes_at_the_rate_of_its_queue_and_its_trailers_after_it() {
    let (gatekeeper, clock) = gatekeeper(RULES);
    let layer = waiting(&gatekeeper, &clock);
    let seen = Arc::new(Mutex::new(None));
    let (keep, reader_clock) = (Arc::clone(&seen), Arc::clone(&clock));
    let began = clock.now().as_u64();
    let limited = layer.layer(service_fn(move |request: Request<ReplayedBody<_>>| {
        let pieces = pieces(request.into_body(), &reader_clock, began);
        *keep.lock().unwrap() = Some(pieces);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
    }));
    let mut service = layer.request_body().layer(limited);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "1".parse().unwrap());
    let data = |length| Frame::data(Bytes::from(vec![1; length]));
    let body = FrameList([data(1_500), data(700), Frame::trailers(trailers)].into());
    assert_eq!(now(service.call(request("/shaped", body))).unwrap().status(), 200);
    check_pace(&seen.lock().unwrap().take().unwrap(), 2_200);
}

/// A body of given frames.
struct FrameList(VecDeque<Frame<Bytes>>);

impl Body for FrameList {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// Two bodies of one caller share the rate: together they take as long as one after the other.
#[test]
fn bodies_of_one_caller_share_the_rate() {
    let (gatekeeper, clock) = gatekeeper(RULES);
    let layer = waiting(&gatekeeper, &clock);
    let mut service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![7; 3_000])))
    }));
    let began = clock.now().as_u64();
    let mut bodies =
        [(); 2].map(|()| now(service.call(request("/shaped", ()))).unwrap().into_body());
    let mut bytes = [0; 2];
    let mut context = Context::from_waker(Waker::noop());
    while bytes != [3_000; 2] {
        for (body, bytes) in bodies.iter_mut().zip(&mut bytes) {
            let polled = Pin::new(body).poll_frame(&mut context);
            if let Poll::Ready(Some(Ok(frame))) = polled {
                *bytes += frame.into_data().unwrap().len();
            }
        }
    }
    let micros = clock.now().as_u64() - began;
    // The last piece of 3,000 bytes has 440; it need not have had its own time.
    assert!(micros >= (6_002 - 440) * BYTE_US, "{micros} us");
    assert!(micros <= 6_002 * BYTE_US, "{micros} us");
}

/// Without a queue bodies pass at once, and the debt refuses whoever comes next until it is paid off.
#[test]
fn without_a_queue_bytes_are_charged_into_debt() {
    for (path, can_wait, next_status) in [
        ("/debt", true, 429),
        ("/debt", false, 429),
        ("/shaped", false, 429),
        ("/shadow", true, 200),
    ] {
        let (gatekeeper, clock) = gatekeeper(RULES);
        let layer = match can_wait {
            true => waiting(&gatekeeper, &clock),
            false => strict(Arc::clone(&gatekeeper)),
        };
        let mut service = layer.layer(service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![7; 30_000])))
        }));
        let began = clock.now().as_u64();
        let response = now(service.call(request(path, ()))).unwrap();
        assert_eq!(left(&gatekeeper, path, ""), 1_999, "the request itself is one byte");
        let pieces = pieces(response.into_body(), &clock, began);
        assert_eq!(clock.now().as_u64(), began, "{path}: nothing waits");
        assert_eq!(pieces.iter().map(|(_, length)| length).sum::<usize>(), 30_000);
        let next = now(service.call(request(path, ()))).unwrap();
        assert_eq!(next.status(), next_status, "{path}");
        // 28,001 bytes of debt, and room for one more. A queue admits only when it is empty.
        later(&clock, 28_002 * BYTE_US);
        let status = if path == "/shaped" { 429 } else { 200 };
        assert_eq!(now(service.call(request(path, ()))).unwrap().status(), status, "{path}");
    }
}

/// Two rules count the same body: `queued` delays its bytes, `counted` estimates by them.
const BOTH: &str = "
rules:
  - name: queued
    match: { path: /both }
    key: '{ip}'
    limits: [{ rate: 10000/second, burst: 2000, algorithm: leaky_bucket, queue: true }]
    cost: bytes
  - name: counted
    match: { path: /both }
    key: '{ip}'
    limits: [{ rate: 1000000/day, algorithm: fixed_window }]
    cost: { reserve: '{request.bytes|4}' }
";

/// Reads the body of a request while others use up the queue, and returns the units of `counted` that it has cost, on the way
/// and in the end.
fn counted_bytes<S: InfallibleStore + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>,
) -> [u64; 2] {
    let clock = Arc::clone(gatekeeper.clock());
    let layer = waiting(gatekeeper, &clock).background(|mut end| until_ready(end.as_mut()));
    let (keeper, on_the_way) = (Arc::clone(gatekeeper), Arc::new(Mutex::new(0)));
    let used = |keeper: &Arc<Gatekeeper<S, SharedManualClock>>| {
        let caller = keeper.caller("counted", "ip=192.0.2.1").unwrap();
        let balance = until_ready(pin!(caller.report())).limits[0].balance;
        u64::try_from(1_000_000 - balance).unwrap()
    };
    let seen = Arc::clone(&on_the_way);
    let limited = layer.layer(service_fn(move |request: Request<ReplayedBody<FrameList>>| {
        // Another caller's body is ahead: the first piece has to ask again.
        let facts = Facts { path: Some("/both"), ip: "192.0.2.1".parse().ok(), ..Facts::default() };
        let ask = Ask { facts, cost: Some(1_900), ..Ask::default() };
        let charged = until_ready(pin!(keeper.decide_by(keeper.rules(), &ask, keeper.now())));
        assert!(charged.allowed());
        let mut body = pin!(request.into_body());
        let mut bytes = 0;
        while bytes < 100_000 {
            let frame = until_ready(pin!(body.frame())).unwrap().unwrap();
            bytes += frame.into_data().unwrap().len();
        }
        *seen.lock().unwrap() = used(&keeper) - 1_900;
        while until_ready(pin!(body.frame())).is_some() {}
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
    }));
    let mut service = layer.request_body().layer(limited);
    let body = FrameList([Frame::data(Bytes::from(vec![1; 150_000]))].into());
    let response = until_ready(pin!(service.call(request("/both", body)))).unwrap();
    assert_eq!(response.status(), 200);
    let on_the_way = *on_the_way.lock().unwrap();
    [on_the_way, used(gatekeeper) - 1_900]
}

#[test]
fn bytes_that_a_queue_delays_are_counted_once_as_they_pass() {
    let in_memory = counted_bytes(&gatekeeper(BOTH).0);
    let later = counted_bytes(&later_gatekeeper(BOTH).0);
    assert_eq!(in_memory, later);
    let [on_the_way, all] = in_memory;
    assert!((60_000..=100_512).contains(&on_the_way), "{on_the_way}");
    assert_eq!(all, 150_000);
}

#[test]
fn an_explicit_cost_replaces_the_bytes() {
    let (gatekeeper, clock) = gatekeeper(RULES);
    let layer = waiting(&gatekeeper, &clock).cost(|_| 100);
    let mut service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![7; 30_000])))
    }));
    let response = now(service.call(request("/shaped", ()))).unwrap();
    assert_eq!(now(response.into_body().collect()).unwrap().to_bytes().len(), 30_000);
    assert_eq!(left(&gatekeeper, "/shaped", ""), 1_900);
}
