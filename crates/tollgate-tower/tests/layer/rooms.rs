//! Requests that are admitted and never sent on: a server without room for them when their turn has come, and a proxy that
//! reaches no server. Their charges are given back, over a store in this process and over one that answers later.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::Full;
use tollgate_rules::{Ask, Facts, Gatekeeper, InfallibleStore};
use tollgate_tower::gate::BoxFuture;
use tollgate_tower::{
    BodyReadFailure, PeerAddr, RateLimitLayer, RequestBodyHost, RequestBodyMemory, SendMark,
    UnsentRequest,
};
use tower::{Layer, Service, service_fn};

use crate::layer::harness::{SharedManualClock, later, poll, strict};
use crate::layer::rules::{gatekeeper, later_gatekeeper, left, until_ready};

const RULES: &str = "
rules:
  - name: delayed
    match: { path: /delayed }
    key: '{ip}'
    limits: [{ rate: 1/second, burst: 10, algorithm: leaky_bucket, queue: true }]
  - { name: work, match: { path: /work }, key: '{ip}', limits: [10/hour burst 10], concurrency: 2 }
  - name: estimate
    match: { path: /estimate }
    key: '{ip}'
    limits: [10/hour burst 10]
    cost: { reserve: 4 }
  - { name: plain, match: { path: /plain }, key: '{ip}', limits: [10/hour burst 10], concurrency: 9 }
";

/// Room that a server has.
#[derive(Clone, Copy, Debug)]
enum ServerRoom {
    Free,
    None,
    /// Nobody knows when there is some.
    Later,
}

/// A server that sends requests on, all with one mark.
struct SendingHost(SendMark);

impl RequestBodyHost for SendingHost {
    fn begin(&self, _: &request::Parts) -> Box<dyn RequestBodyMemory> {
        unreachable!("no rule needs a body")
    }

    fn resume(&self, _: &request::Parts) -> Option<BoxFuture<Result<(), Response<Bytes>>>> {
        None
    }

    fn send_mark(&self, _: &request::Parts) -> Option<SendMark> {
        Some(self.0.clone())
    }

    fn respond(&self, _: &request::Parts, _: BodyReadFailure) -> Response<Bytes> {
        unreachable!("no rule needs a body")
    }
}

/// A server that makes room for requests.
struct RoomHost(Arc<Mutex<ServerRoom>>);

impl RequestBodyHost for RoomHost {
    fn begin(&self, _: &request::Parts) -> Box<dyn RequestBodyMemory> {
        unreachable!("no rule needs a body")
    }

    fn resume(&self, _: &request::Parts) -> Option<BoxFuture<Result<(), Response<Bytes>>>> {
        match *self.0.lock().unwrap() {
            ServerRoom::Free => None,
            ServerRoom::None => {
                let mut response = Response::new(Bytes::from("no room"));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                Some(Box::pin(ready(Err(response))))
            }
            ServerRoom::Later => Some(Box::pin(pending())),
        }
    }

    fn respond(&self, _: &request::Parts, _: BodyReadFailure) -> Response<Bytes> {
        unreachable!("no rule needs a body")
    }
}

fn get(path: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = path.parse().unwrap();
    request.extensions_mut().insert(PeerAddr("192.0.2.1".parse().unwrap()));
    request
}

/// A layer whose sleeps move the clock, and which ends in the background what has to wait for a store.
fn layer<S: InfallibleStore + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>,
) -> RateLimitLayer {
    let clock = Arc::clone(gatekeeper.clock());
    let layer = strict(Arc::clone(gatekeeper)).wait(Duration::from_secs(60), move |duration| {
        later(&clock, duration.as_micros() as u64);
        Box::pin(ready(())) as BoxFuture<()>
    });
    layer.background(|mut future| until_ready(future.as_mut()))
}

fn check_rooms<S: InfallibleStore + 'static>(gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>) {
    let room = Arc::new(Mutex::new(ServerRoom::Free));
    let layer = layer(gatekeeper).body_host(RoomHost(Arc::clone(&room)));
    let mut service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("served")))
    }));
    for path in ["/delayed", "/work"] {
        let response = until_ready(pin!(service.call(get(path)))).unwrap();
        assert_eq!(response.status(), 200);
        drop(response);
        assert_eq!(left(gatekeeper, path, ""), 9, "{path}");
        *room.lock().unwrap() = ServerRoom::None;
        // The second one of the queue waits for a second, in which the first one's unit comes back.
        let expected = if path == "/delayed" { 10 } else { 9 };
        let response = until_ready(pin!(service.call(get(path)))).unwrap();
        assert_eq!(response.status(), 503, "{path}");
        assert_eq!(left(gatekeeper, path, ""), expected, "{path}: no room");
        *room.lock().unwrap() = ServerRoom::Later;
        let mut waiting = Box::pin(service.call(get(path)));
        for _ in 0..20 {
            assert!(poll(&mut waiting.as_mut()).is_pending(), "{path}");
        }
        // The queue may have drained by then.
        let charged = expected - i64::from(path == "/work");
        assert_eq!(left(gatekeeper, path, ""), charged, "{path}: it waits for room");
        drop(waiting);
        assert_eq!(left(gatekeeper, path, ""), expected, "{path}: it has left");
        assert_eq!(gatekeeper.stats().reservations, 0, "{path}");
        *room.lock().unwrap() = ServerRoom::Free;
    }
}

#[test]
fn without_room_nothing_is_charged() {
    check_rooms(&gatekeeper(RULES).0);
    check_rooms(&later_gatekeeper(RULES).0);
}

fn check_unsent<S: InfallibleStore + 'static>(gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>) {
    let mut service = layer(gatekeeper).layer(service_fn(|_: Request<()>| async {
        let mut response = Response::new(Full::<Bytes>::from("no server"));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response.extensions_mut().insert(UnsentRequest);
        Ok::<_, Infallible>(response)
    }));
    for (path, expected) in [("/estimate", 10), ("/plain", 9)] {
        let response = until_ready(pin!(service.call(get(path)))).unwrap();
        assert_eq!(response.status(), 502);
        assert_eq!(left(gatekeeper, path, ""), expected, "{path}");
    }
    assert_eq!(gatekeeper.stats().reservations, 0);
}

#[test]
fn an_estimate_is_given_back_if_nobody_has_seen_the_request() {
    check_unsent(&gatekeeper(RULES).0);
    check_unsent(&later_gatekeeper(RULES).0);
}

/// A limit whose requests wait in turn.
const TURNS: &str = "
rules:
  - { name: turns, match: { path: /turns }, key: '{ip}', limits: [1/second burst 2], fair: { wait: 1m, per_key: 9, total: 9 } }
";

fn check_waiter<S: InfallibleStore + 'static>(gatekeeper: &Arc<Gatekeeper<S, SharedManualClock>>) {
    for is_sent in [false, true] {
        let mark = SendMark::default();
        let layer = layer(gatekeeper).body_host(SendingHost(mark.clone()));
        let mut service = layer.layer(service_fn(|_: Request<()>| {
            pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
        let peek = Facts { path: Some("/turns"), ip: "192.0.2.1".parse().ok(), ..Facts::default() };
        let units = left(gatekeeper, "/turns", "").try_into().ok();
        let ask = Ask { facts: peek, cost: units, ..Ask::default() };
        until_ready(pin!(gatekeeper.decide_by(gatekeeper.rules(), &ask, gatekeeper.now())));
        assert_eq!(left(gatekeeper, "/turns", ""), 0, "all is used up");
        let mut waiter = Box::pin(service.call(get("/turns")));
        for _ in 0..20 {
            assert!(poll(&mut waiter.as_mut()).is_pending());
        }
        assert_eq!(left(gatekeeper, "/turns", ""), 0, "it had its turn");
        assert_eq!(gatekeeper.stats().reservations, 1, "it may leave");
        if is_sent {
            mark.note_sent();
            assert!(poll(&mut waiter.as_mut()).is_pending());
            assert_eq!(gatekeeper.stats().reservations, 0, "it has to pay");
        }
        drop(waiter);
        assert_eq!(left(gatekeeper, "/turns", ""), i64::from(!is_sent), "sent: {is_sent}");
        assert_eq!(gatekeeper.stats().reservations, 0);
    }
}

#[test]
fn who_has_waited_for_its_turn_may_leave_until_its_request_is_sent() {
    check_waiter(&gatekeeper(TURNS).0);
    check_waiter(&later_gatekeeper(TURNS).0);
}
