//! Clones share their limits; the layer never pushes back.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service};

use crate::layer::harness::{HelloService, behind, from, gate, now, send, statuses, strict};

#[test]
fn clones_of_layer_and_service_share_one_state() {
    let (gate, _) = gate(&["3/second burst 3"]);
    let layer = strict(gate);
    let hello = HelloService::new();
    let mut services = [behind(&layer, &hello), behind(&layer.clone(), &hello)];
    let mut clone = services[0].clone();
    for service in &mut services {
        assert_eq!(send(service, from("192.0.2.1")).status(), 200);
    }
    assert_eq!(statuses(&mut clone, [(); 2].map(|()| from("192.0.2.1"))), [200, 429]);
    // Changed after it was cloned, it still asks the same gate.
    let mut changed = behind(&layer.cost(|_| 2), &hello);
    assert_eq!(send(&mut changed, from("192.0.2.1")).status(), 429);
}

#[test]
fn threads_through_clones_admit_exactly_the_limit() {
    let (gate, _) = gate(&["1000/hour burst 1000"]);
    let hello = HelloService::new();
    let service = behind(&strict(gate), &hello);
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut service = service.clone();
                for _ in 0..400 {
                    if send(&mut service, from("192.0.2.1")).status() == 200 {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!((admitted.into_inner(), hello.calls()), (1_000, 1_000));
}

/// Ready only if asked, as services may be; a clone has to be asked again.
#[derive(Debug)]
struct ReadyOnceService {
    ready: bool,
    polls: Arc<AtomicUsize>,
}

impl Clone for ReadyOnceService {
    fn clone(&self) -> ReadyOnceService {
        ReadyOnceService { ready: false, polls: Arc::clone(&self.polls) }
    }
}

impl Service<Request<()>> for ReadyOnceService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = self.polls.fetch_add(1, Ordering::Relaxed) > 0;
        if self.ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        std::future::ready(Ok(Response::default()))
    }
}

#[test]
fn the_inner_service_alone_says_when_it_is_ready() {
    let (gate, _) = gate(&["1/second burst 1"]);
    let mut service = strict(gate).layer(ReadyOnceService { ready: false, polls: Arc::default() });
    let ready = |service: &mut tollgate_tower::RateLimit<ReadyOnceService>| {
        service.poll_ready(&mut Context::from_waker(Waker::noop()))
    };
    assert!(ready(&mut service).is_pending(), "the inner service is not ready");
    for want in [200, 429, 429] {
        assert!(ready(&mut service).is_ready(), "who is over the limit is refused, not held up");
        let Ok(response) = now(service.call(from("192.0.2.1")));
        assert_eq!(response.status(), want);
    }
}
