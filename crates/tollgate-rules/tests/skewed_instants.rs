//! Requests of one caller that several threads decide: who has read the clock first may be charged last.

use std::future::pending;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::{Ask, Facts, Gatekeeper, ReservationAnswer, Source, compile};

type ManualGatekeeper = Gatekeeper<MemoryStore, ManualClock>;

const START: Micros = Micros::from_secs(9);

fn gatekeeper() -> ManualGatekeeper {
    let text = "rules: [{ name: even, key: '{ip}', \
                limits: [{ rate: 4/hour, burst: 4, algorithm: leaky_bucket, queue: true }] }]";
    let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.expect("valid rules");
    Gatekeeper::new(rules, MemoryStore::new(1_000), ManualClock::new(START))
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Decides a request of a caller who has read the clock so many microseconds after the start.
fn send(gatekeeper: &ManualGatekeeper, caller: u8, micros: u64) -> ReservationAnswer {
    let facts = Facts { ip: Some([10, 0, 0, caller].into()), path: Some("/"), ..Facts::default() };
    let ask = Ask { facts, ..Ask::default() };
    let (now, patience) = (Micros::new(START.as_u64() + micros), || Duration::from_secs(86_400));
    let sent = gatekeeper.admit_or_queue(gatekeeper.rules(), &ask, false, &patience, now);
    match poll(pin!(sent)) {
        Poll::Ready(Ok(answered)) => answered,
        _ => panic!("the store answers at once, and no rule is fair"),
    }
}

/// The time that one request takes.
const INTERVAL_US: u64 = 900_000_000;

#[test]
fn the_last_place_of_a_queue_is_not_lost_to_a_charge_with_a_later_instant() {
    // The instants of four requests, in the order of their charges
    for instants in [[10, 10, 10, 9], [10, 9, 8, 7], [10, 11, 12, 10], [1_000, 0, 1_000, 0]] {
        let gatekeeper = gatekeeper();
        // Departures are recorded while anybody waits.
        let _others = [send(&gatekeeper, 1, 0), send(&gatekeeper, 1, 0)];
        let answers = instants.map(|micros| send(&gatekeeper, 2, micros));
        let allowed = answers.each_ref().map(|one| one.answer.allowed());
        assert_eq!(allowed, [true; 4], "{instants:?}");
        assert!(!send(&gatekeeper, 2, 1_000).answer.allowed(), "{instants:?}: the fifth");
    }
}

/// Would catch: a capacity that counts from an instant before the last departure, which has not had its interval yet.
#[test]
fn the_last_place_of_a_queue_is_not_lost_to_a_departure_at_a_later_instant() {
    // Microseconds by which the departure is late, and those after which the clock was read for the last place
    let cases = [(0, 0), (5, 3), (5, 5), (5, 9), (1_000, 1)];
    for (late, read) in cases {
        let gatekeeper = gatekeeper();
        let _first = send(&gatekeeper, 1, 0);
        let mut second = send(&gatekeeper, 1, 0);
        gatekeeper.clock().advance(Duration::from_micros(INTERVAL_US + late));
        let departure = second.departure.take().expect("it is delayed");
        let departed = departure.wait(gatekeeper.clock(), &|_| Box::pin(pending()));
        assert!(poll(pin!(departed)).is_ready());
        let _others = [(); 2].map(|()| send(&gatekeeper, 1, INTERVAL_US));
        let last = send(&gatekeeper, 1, INTERVAL_US + read);
        assert!(last.answer.allowed(), "{late} {read}: {:?}", last.answer.retry_after());
        assert!(!send(&gatekeeper, 1, INTERVAL_US + read).answer.allowed(), "{late} {read}");
    }
}
