//! Rules with `concurrency: adaptive` behind the layer: the work that is measured, and from when.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::Full;
use tollgate::Wait;
use tower::Service;

use crate::layer::harness::{
    HelloService, SharedManualClock, behind, from, later, now, send, strict,
};
use crate::layer::rules::gatekeeper;

/// A service that takes this long, and answers with this status.
fn service(clock: &SharedManualClock, micros: u64, status: u16) -> HelloService {
    let clock = Arc::clone(clock);
    HelloService::answering(move |_| {
        later(&clock, micros);
        let mut response = Response::new(Full::from("done"));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    })
}

#[test]
fn answers_are_measured_and_failures_for_other_reasons_are_not() {
    let text = "rules: [{ name: app, key: global, concurrency: adaptive }]";
    // status, latency in microseconds, bound afterwards
    let rows = [
        (200, 10_000, 20),
        (404, 10_000, 20),
        (500, 0, 20),
        (429, 0, 20),
        (101, 0, 20),
        (503, 0, 4),
        (504, 0, 4),
    ];
    for (status, latency_us, limit) in rows {
        let (gatekeeper, clock) = gatekeeper(text);
        let mut service =
            behind(&strict(Arc::clone(&gatekeeper)), &service(&clock, 10_000, status));
        for _ in 0..500 {
            assert_eq!(send(&mut service, from("192.0.2.1")).status(), status);
        }
        let report = gatekeeper.adaptive_bounds().remove(0);
        assert_eq!(report.mean_latency, Wait::from_micros(latency_us), "{status}");
        assert_eq!((report.limit, report.in_flight), (limit, 0), "{status}");
    }
}

#[test]
fn a_request_counts_until_the_head_of_its_response_whatever_that_is() {
    let text = "rules: [{ name: app, key: global, concurrency: { adaptive: { min: 2, max: 2 } } }]";
    for status in [200, 101, 404, 429, 500, 503] {
        let (gatekeeper, clock) = gatekeeper(text);
        let mut service =
            behind(&strict(Arc::clone(&gatekeeper)), &service(&clock, 10_000, status));
        let answer = |_| now(service.call(from("192.0.2.1"))).unwrap();
        let unread: Vec<_> = (0..10).map(answer).collect();
        assert!(unread.iter().all(|response| response.status() == status), "{status}");
        assert_eq!(gatekeeper.adaptive_bounds()[0].in_flight, 0, "{status}");
        assert_eq!(gatekeeper.stats().reservations, 10, "{status}: bodies and tunnels are open");
        drop(unread);
        assert_eq!(gatekeeper.stats().reservations, 0, "{status}");
    }
}

#[test]
fn the_delay_of_a_queue_is_not_measured() {
    let text = "
rules:
  - name: app
    key: global
    limits: [{ rate: 10/second, burst: 100, algorithm: leaky_bucket, queue: true }]
    concurrency: adaptive
";
    let (gatekeeper, clock) = gatekeeper(text);
    let sleeping = Arc::clone(&clock);
    let layer = strict(Arc::clone(&gatekeeper)).wait(Duration::from_secs(60), move |duration| {
        later(&sleeping, duration.as_micros() as u64);
        async {}
    });
    let mut service = behind(&layer, &service(&clock, 10_000, 200));
    for _ in 0..100 {
        assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    }
    let report = gatekeeper.adaptive_bounds().remove(0);
    assert_eq!(report.mean_latency, Wait::from_micros(10_000));
}

#[test]
fn a_client_that_leaves_frees_its_place_and_its_wait_counts() {
    let text = "rules: [{ name: app, key: global, concurrency: adaptive }]";
    let (gatekeeper, clock) = gatekeeper(text);
    let layer = strict(Arc::clone(&gatekeeper));
    let mut quick = behind(&layer, &service(&clock, 10_000, 200));
    for _ in 0..100 {
        send(&mut quick, from("192.0.2.1"));
    }
    let never = tower::service_fn(|_| {
        std::future::poll_fn(|_| {
            Poll::<Result<Response<Full<bytes::Bytes>>, std::convert::Infallible>>::Pending
        })
    });
    let mut stuck = tower::Layer::layer(&layer, never);
    for _ in 0..100 {
        let request = stuck.call(from("192.0.2.1"));
        assert_eq!(gatekeeper.adaptive_bounds()[0].in_flight, 1);
        later(&clock, 40_000);
        drop(request);
    }
    let report = gatekeeper.adaptive_bounds().remove(0);
    assert_eq!(report.in_flight, 0);
    assert!(report.mean_latency > Wait::from_micros(10_000), "{report:?}");
}
