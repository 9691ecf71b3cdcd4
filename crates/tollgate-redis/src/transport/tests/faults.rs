//! Servers and networks that break: whoever asks is answered within the deadline all the same, and
//! from the server again soon after it is well.

use std::time::{Duration, Instant};

use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::redis::TestRedis;
use testkit::wait;

use super::*;

/// From the moment that a server is well until it answers again. Two seconds are what is promised, and
/// tests/faults of the server measures them alone on its machine; here others are at work, and an attempt
/// that is not answered within the deadline of 10 ms has the next one come later.
const HEALED: Duration = Duration::from_secs(10);

/// Asks for a second: whatever happens, nearly all are answered or told within the deadline; all of
/// them but for pauses that a busy machine makes. The errors, by class.
fn ask_through_it(store: &CountingStore, fault: &str) -> Vec<ErrorClass> {
    let (start, mut classes, mut times) = (wait::now(), Vec::new(), Vec::new());
    while wait::now() - start < Duration::from_secs(1) {
        let asked = wait::now();
        let answer = store.add("a");
        times.push(wait::now() - asked);
        if let Err(error) = answer
            && classes.last() != Some(&error.class)
        {
            classes.push(error.class);
        }
    }
    times.sort_unstable();
    let most = times[times.len() * 9 / 10];
    assert!(most < 2 * DEADLINE, "{fault}: {most:?} of {}", times.len());
    classes
}

fn heals(store: &CountingStore, since: Instant, fault: &str) {
    store.until_answered("b");
    let took = wait::now() - since;
    assert!(took < HEALED, "{fault}: {took:?}");
    let stats = store.link.stats();
    let node = &stats.nodes[0];
    assert!(node.up && node.waiting == 0 && node.in_flight == 0, "{fault}: {node:?}");
}

#[test]
fn a_server_that_is_killed_and_starts_again() {
    let mut server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_answered("a");
    server.kill();
    let classes = ask_through_it(&store, "killed");
    assert!(classes.contains(&ErrorClass::Connect), "{classes:?}");
    server.restart();
    heals(&store, wait::now(), "killed");
}

#[test]
fn a_server_that_freezes() {
    let server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_answered("a");
    server.freeze();
    let classes = ask_through_it(&store, "frozen");
    assert_eq!(classes[..2], [ErrorClass::Timeout, ErrorClass::BreakerOpen], "{classes:?}");
    server.thaw();
    heals(&store, wait::now(), "frozen");
}

#[test]
fn networks_that_break_in_many_ways() {
    use ErrorClass::*;
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    let store = CountingStore::at(&proxy.url(), DEADLINE);
    let slow =
        FaultMode::Delay { by: Duration::from_millis(50), jitter: Duration::from_millis(20) };
    for (mode, expected) in [
        (slow, &[Timeout][..]),
        (FaultMode::BlackHole, &[Timeout]),
        (FaultMode::Refuse, &[Closed, Connect]),
        (FaultMode::ResetMidReply, &[Closed]),
        (FaultMode::HalfClose, &[Closed]),
        (FaultMode::Garbage, &[Protocol]),
        (FaultMode::Truncate, &[Closed]),
    ] {
        let fault = format!("{mode:?}");
        store.until_answered("a");
        proxy.set_mode(mode);
        let classes = ask_through_it(&store, &fault);
        assert!(expected.iter().any(|class| classes.contains(class)), "{fault}: {classes:?}");
        proxy.set_mode(FaultMode::Pass);
        heals(&store, wait::now(), &fault);
    }
    // One that was given up does not stay open, and the number of attempts is bounded: with pauses
    // of 50 ms and more, fewer than twenty in a second.
    wait::until_true("old connections to end", || proxy.open_connections() <= 1);
    assert!(proxy.connections() < 7 * 20, "{} connections", proxy.connections());
}

#[test]
fn replies_in_single_bytes_are_still_replies() {
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    let store = CountingStore::at(&proxy.url(), PLENTY);
    store.until_answered("a");
    proxy.set_mode(FaultMode::OneByteWrites);
    for sum in 2..20 {
        assert_eq!(store.add("a").unwrap(), sum);
    }
    assert_eq!(store.link.stats().connections, 1);
}

#[test]
fn a_delay_within_the_deadline_is_no_failure() {
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    let store = CountingStore::at(&proxy.url(), PLENTY);
    store.until_answered("a");
    proxy.set_mode(FaultMode::Delay { by: Duration::from_millis(5), jitter: Duration::ZERO });
    for sum in 2..20 {
        assert_eq!(store.add("a").unwrap(), sum);
    }
    assert_eq!(store.link.stats().nodes[0].breaker_opened, 0);
}

#[test]
fn a_port_that_nobody_accepts_on_costs_no_more_than_the_deadline() {
    // A backlog of one that is never accepted from: further connections get no answer at all.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let fill: Vec<_> = (0..2000)
        .map_while(|_| {
            std::net::TcpStream::connect_timeout(&address, Duration::from_millis(50)).ok()
        })
        .collect();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let store = CountingStore::at(&format!("redis://{address}"), DEADLINE);
    let before = descriptors();
    let classes = ask_through_it(&store, "nobody accepts");
    assert!(!classes.is_empty());
    store.until_class(ErrorClass::Connect);
    assert!(descriptors() <= before + 2, "{} descriptors after {before}", descriptors());
    drop(fill);
}

/// Asks ten thousand times at once; the errors and how many were answered.
async fn flood(link: &Link, asked: impl FnOnce()) -> (Vec<ErrorClass>, usize) {
    let adding: Vec<_> = (0..10_000)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { add(&link, "flood", 0).await })
        })
        .collect();
    while link.stats().calls < 10_000 {
        tokio::task::yield_now().await;
    }
    asked();
    let (mut classes, mut answered) = (Vec::new(), 0);
    for adding in adding {
        match adding.await.unwrap() {
            Ok(_) => answered += 1,
            Err(error) => classes.push(error.class),
        }
    }
    (classes, answered)
}

#[test]
fn a_flood_is_bounded_and_whoever_fits_is_answered() {
    use crate::transport::batch::{CALLS_PER_FLIGHT_MAX, FLIGHTS_MAX};
    use crate::transport::node::CALLS_MAX;
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    store.until_answered("a");
    server.freeze();
    let asked = || {
        let node = &store.link.stats().nodes[0];
        assert_eq!(node.waiting + node.in_flight, CALLS_MAX);
        assert!(node.in_flight <= FLIGHTS_MAX * CALLS_PER_FLIGHT_MAX);
        server.thaw();
    };
    let (classes, answered) = store.callers.block_on(flood(&store.link, asked));
    // Two places may be taken by the questions of the periodic check.
    assert!((CALLS_MAX - 2..=CALLS_MAX).contains(&answered), "{answered}");
    // Turned away for want of room, and after some of those without a look.
    assert_eq!(classes[0], ErrorClass::Overloaded);
    let known = [ErrorClass::Overloaded, ErrorClass::BreakerOpen];
    assert!(classes.iter().all(|class| known.contains(class)));
    assert_eq!(server.cli(&["GET", "flood"]), answered.to_string());
    heals(&store, wait::now(), "flooded");
}

#[test]
fn a_flood_that_nobody_answers_leaves_nothing() {
    let server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_answered("a");
    server.freeze();
    let (_, answered) = store.callers.block_on(flood(&store.link, || ()));
    assert_eq!(answered, 0);
    server.thaw();
    heals(&store, wait::now(), "flooded");
}
