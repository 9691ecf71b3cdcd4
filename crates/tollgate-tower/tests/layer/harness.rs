//! A clock, a limiter and a service that counts its calls.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tollgate::{Limit, Limiter, ManualClock, MemoryStore, Micros, Wait};
use tollgate_tower::{GatedBody, KeyFrom, KeyedGate, PeerAddr, RateLimit, RateLimitLayer};
use tower::{Layer, Service};

pub(crate) type SharedManualClock = Arc<ManualClock>;
pub(crate) type TestLimiter = Arc<Limiter<MemoryStore, SharedManualClock>>;

/// 2026-11-15 12:00:00 UTC.
pub(crate) const NOON_S: u64 = 1_794_744_000;

/// A limiter at noon, and the clock that moves it.
pub(crate) fn limiter() -> (TestLimiter, SharedManualClock) {
    let clock = Arc::new(ManualClock::new(Micros::from_secs(NOON_S)));
    (Arc::new(Limiter::new(MemoryStore::new(10_000), Arc::clone(&clock))), clock)
}

/// One limit of the name `api`.
pub(crate) fn limit(text: &str) -> Limit {
    tollgate::limit::parse_rate(text).unwrap().name("api").build().unwrap()
}

/// A gate of these limits for each client address, and its clock.
pub(crate) fn gate(limits: &[&str]) -> (KeyedGate<SharedManualClock>, SharedManualClock) {
    let (limiter, clock) = limiter();
    let gate = KeyedGate::new(limiter, limits.iter().map(|text| limit(text))).unwrap();
    (gate.key(KeyFrom::client_ip()), clock)
}

/// A layer that fails its test on any warning, and tells tests what it decided.
pub(crate) fn strict(gate: impl tollgate_tower::Gate) -> RateLimitLayer {
    let layer = RateLimitLayer::new(gate).decision_in_response();
    layer.on_warning(|warning| panic!("{warning}"))
}

pub(crate) fn later(clock: &SharedManualClock, micros: u64) {
    use tollgate::Clock as _;
    clock.set(clock.now().after(Wait::from_micros(micros)));
}

/// Answers 200 with the text `hello`, or what a test's function says, and counts.
#[derive(Clone)]
pub(crate) struct HelloService {
    calls: Arc<AtomicUsize>,
    answer: Arc<AnswerFn>,
}

type AnswerFn = dyn Fn(&Request<()>) -> Response<Full<Bytes>> + Send + Sync;

impl HelloService {
    pub(crate) fn new() -> HelloService {
        HelloService::answering(|_| Response::new(Full::from("hello")))
    }

    pub(crate) fn answering(
        answer: impl Fn(&Request<()>) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> HelloService {
        HelloService { calls: Arc::default(), answer: Arc::new(answer) }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Service<Request<()>> for HelloService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok((self.answer)(&request)))
    }
}

/// A request from an address.
pub(crate) fn from(ip: &str) -> Request<()> {
    with(ip, &[])
}

/// A request from an address, with header fields.
pub(crate) fn with(ip: &str, fields: &[(&'static str, &str)]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddr(ip.parse::<IpAddr>().unwrap()));
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

/// Sends a request through a service that answers at once.
pub(crate) fn send<S>(service: &mut S, request: Request<()>) -> Response<String>
where
    S: Service<Request<()>, Error = Infallible>,
    S::Response: ReadWholeBody,
{
    let Ok(response) = now(service.call(request));
    response.whole()
}

/// A response whose body can be read.
pub(crate) trait ReadWholeBody {
    fn whole(self) -> Response<String>;
}

impl<B: Body> ReadWholeBody for Response<B>
where
    B::Error: std::fmt::Debug,
{
    fn whole(self) -> Response<String> {
        let (head, body) = self.into_parts();
        let bytes = now(body.collect()).unwrap().to_bytes();
        Response::from_parts(head, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

/// What a future answers that is ready.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut pin!(future)) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("not ready"),
    }
}

pub(crate) fn poll<F: Future + ?Sized>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// The status of each request in turn.
pub(crate) fn statuses(
    service: &mut RateLimit<HelloService>,
    requests: impl IntoIterator<Item = Request<()>>,
) -> Vec<u16> {
    requests.into_iter().map(|request| send(service, request).status().as_u16()).collect()
}

/// A service behind a layer.
pub(crate) fn behind(layer: &RateLimitLayer, inner: &HelloService) -> RateLimit<HelloService> {
    layer.layer(inner.clone())
}

/// Fields as text, in order of their names.
pub(crate) fn lines(headers: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().unwrap())
    };
    let mut lines: Vec<_> = headers.iter().map(line).collect();
    lines.sort();
    lines
}

/// What a body of the inner service is behind the layer.
pub(crate) type GatedFullBody = GatedBody<Full<Bytes>>;
