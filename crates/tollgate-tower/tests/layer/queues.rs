//! Queues: refused by default, held back if the layer can wait.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tollgate::{Algorithm, KeyBuf, Limit};
use tollgate_tower::{GateDecision, KeyFrom, KeyedGate, RateLimitLayer};
use tower::Service;

use crate::layer::harness::{
    HelloService, TestLimiter, behind, from, limiter, poll, send, statuses, strict,
};

fn queue() -> Limit {
    let queue = Limit::per_second(10).burst(5).algorithm(Algorithm::LeakyBucket).queue();
    queue.name("queue").build().unwrap()
}

fn gate(limiter: &TestLimiter) -> RateLimitLayer {
    strict(KeyedGate::new(limiter.clone(), [queue()]).unwrap().key(KeyFrom::global()))
}

fn balance(limiter: &TestLimiter) -> i64 {
    limiter.balance(&queue(), &KeyBuf::new().with("global", ""))
}

/// A sleep that ends when the test says so, and how long each was to be.
#[derive(Clone, Default)]
struct ManualSleeps(Arc<Mutex<(Vec<Duration>, bool)>>);

impl ManualSleeps {
    fn sleep(
        &self,
    ) -> impl Fn(Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
        let sleeps = self.clone();
        move |duration| {
            let sleeps = sleeps.clone();
            sleeps.0.lock().unwrap().0.push(duration);
            Box::pin(std::future::poll_fn(move |_| match sleeps.0.lock().unwrap().1 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }))
        }
    }

    fn end(&self) {
        self.0.lock().unwrap().1 = true;
    }

    fn asked_ms(&self) -> Vec<u128> {
        self.0.lock().unwrap().0.iter().map(Duration::as_millis).collect()
    }
}

#[test]
fn a_delay_is_a_refusal_by_default() {
    let (limiter, _) = limiter();
    let mut service = behind(&gate(&limiter), &HelloService::new());
    let requests = [(); 3].map(|()| from("192.0.2.1"));
    assert_eq!(statuses(&mut service, requests), [200, 429, 429]);
    assert_eq!(balance(&limiter), 4, "a refusal is free");
}

#[test]
fn requests_are_held_back_as_long_as_they_may() {
    let (limiter, _) = limiter();
    let sleeps = ManualSleeps::default();
    let hello = HelloService::new();
    let mut service =
        behind(&gate(&limiter).wait(Duration::from_millis(200), sleeps.sleep()), &hello);
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    let mut second = pin!(service.call(from("192.0.2.1")));
    let mut third = pin!(service.call(from("192.0.2.1")));
    assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
    assert_eq!(hello.calls(), 1, "they wait before the inner service");
    // The fourth would have to wait 300 ms.
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 429);
    assert_eq!(balance(&limiter), 2);
    sleeps.end();
    for waiting in [&mut second, &mut third] {
        let Poll::Ready(Ok(response)) = poll(waiting) else { panic!("still waiting") };
        assert_eq!(response.status(), 200);
        assert!(!response.extensions().get::<GateDecision>().unwrap().delay().is_zero());
    }
    assert_eq!((sleeps.asked_ms(), hello.calls()), (vec![100, 200], 3));
}

#[test]
fn who_leaves_while_waiting_gets_its_units_back() {
    let (limiter, _) = limiter();
    let sleeps = ManualSleeps::default();
    let hello = HelloService::new();
    let mut service = behind(&gate(&limiter).wait(Duration::from_secs(1), sleeps.sleep()), &hello);
    assert_eq!(send(&mut service, from("192.0.2.1")).status(), 200);
    {
        let mut left = pin!(service.call(from("192.0.2.1")));
        assert!(poll(&mut left).is_pending());
        assert_eq!(balance(&limiter), 3);
    }
    assert_eq!((balance(&limiter), hello.calls()), (4, 1));
    // Even if it was never polled.
    drop(service.call(from("192.0.2.1")));
    assert_eq!((balance(&limiter), hello.calls()), (4, 1));
}
