//! Requests that are refused at once because of those ahead: only if no room can come in time.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{ManualClock, MemoryStore, Micros, Refusal};
use tollgate_rules::{
    Ask, Facts, Gatekeeper, ReservationAnswer, ReservationId, Source, WaitingRequest, compile,
};

type ManualGatekeeper = Gatekeeper<MemoryStore, ManualClock>;

/// One unit a second for all callers, shared by `each`.
const SHARED: &str = "
  - { name: all, key: global, limits: [1/second burst 1] }
  - { name: each, key: '{ip}', fair: { wait: 60s } }
";

fn gatekeeper(rules: &str) -> ManualGatekeeper {
    let compiled = compile(&[Source::from_text("rules.yaml", &format!("rules:{rules}"))]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    Gatekeeper::new(rules, MemoryStore::new(1_000), ManualClock::new(Micros::from_secs(9)))
}

fn ask(caller: u8) -> Ask<'static> {
    let facts = Facts { ip: Some([10, 0, 0, caller].into()), path: Some("/"), ..Facts::default() };
    Ask { facts, ..Ask::default() }
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends a request of a caller who waits so long.
fn send(
    gatekeeper: &ManualGatekeeper,
    ask: &Ask<'_>,
    patience_ms: u64,
) -> Result<ReservationAnswer, Box<WaitingRequest>> {
    let (now, patience) = (gatekeeper.now(), || Duration::from_millis(patience_ms));
    let sent = gatekeeper.admit_or_queue(gatekeeper.rules(), ask, false, &patience, now);
    match poll(pin!(sent)) {
        Poll::Ready(sent) => sent.map_err(Box::new),
        Poll::Pending => panic!("the store answers at once"),
    }
}

/// Asserts that a request waits.
fn queued(sent: Result<ReservationAnswer, Box<WaitingRequest>>) -> WaitingRequest {
    *sent.map(|answered| answered.answer.refusal()).expect_err("it waits")
}

fn refusal(sent: Result<ReservationAnswer, Box<WaitingRequest>>) -> Option<Refusal> {
    sent.expect("it is answered at once").answer.refusal()
}

#[test]
fn nobody_is_refused_for_units_that_may_come_back() {
    let rule = "
  - { name: chat, key: global, limits: [100/100s burst 100], fair: { wait: 30s },
      cost: { reserve: 10, actual: '{response.header.x-cost}' } }";
    let gatekeeper = gatekeeper(rule);
    let admit = |_| {
        let answered = send(&gatekeeper, &ask(1), 60_000).unwrap_or_else(|_| panic!("it has room"));
        answered.id.expect("it has yet to be settled")
    };
    let open: Vec<ReservationId> = (0..10).map(admit).collect();
    let waiting: Vec<WaitingRequest> =
        (10..20).map(|_| queued(send(&gatekeeper, &ask(1), 60_000))).collect();
    gatekeeper.clock().advance(Duration::from_secs(1));
    open.into_iter().for_each(|id| gatekeeper.commit(id, 1).expect("it is open"));
    for (number, one) in waiting.into_iter().enumerate() {
        let ask = ask(1);
        let turn = gatekeeper.admit_in_turn(one, &ask, false, &|_| Box::pin(pending()));
        match poll(pin!(turn)) {
            Poll::Ready(Ok(served)) => assert_eq!(served.answer.refusal(), None),
            _ => assert!(number >= 9, "{number} has to be served"),
        }
    }
}

#[test]
fn units_of_another_rule_are_not_counted() {
    let rules = SHARED.replace(
        "key: '{ip}',",
        "key: '{ip}', limits: [1000/second], cost: { default: 1, /big: 10 },",
    );
    let gatekeeper = gatekeeper(&rules);
    let big = Ask { facts: Facts { path: Some("/big"), ..ask(1).facts }, ..Ask::default() };
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 4_500)), None);
    let _first = queued(send(&gatekeeper, &big, 4_500));
    let _second = queued(send(&gatekeeper, &big, 4_500));
    let _third = queued(send(&gatekeeper, &ask(1), 4_500));
}

#[test]
fn those_who_leave_before_their_turn_are_not_counted() {
    let scene = || {
        let gatekeeper = gatekeeper(SHARED);
        assert_eq!(refusal(send(&gatekeeper, &ask(1), 4_500)), None);
        let waiting: Vec<WaitingRequest> =
            (0..4).map(|_| queued(send(&gatekeeper, &ask(1), 4_500))).collect();
        (gatekeeper, waiting)
    };
    let (gatekeeper, _waiting) = scene();
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 4_500)), Some(Refusal::WaitTooLong));
    assert_eq!(
        refusal(send(&gatekeeper, &ask(1), 4_600)),
        Some(Refusal::WaitTooLong),
        "all of those are served before, and then there is no time left"
    );
    let (gatekeeper, _waiting) = scene();
    let _others = [(); 2].map(|()| queued(send(&gatekeeper, &ask(2), 4_500)));
    let _last = queued(send(&gatekeeper, &ask(1), 6_500));
}

#[test]
fn a_burst_waits_only_as_far_as_its_limit_can_serve_it() {
    let limits = [
        "1/second burst 1",
        "1/second",
        "{ rate: 1/second, algorithm: sliding_window_log }",
        "{ rate: 1/second, algorithm: fixed_window }",
    ];
    for limit in limits {
        let rule = format!(
            "\n  - {{ name: each, key: '{{ip}}', limits: [{limit}], fair: {{ wait: 3s }} }}"
        );
        let gatekeeper = gatekeeper(&rule);
        let mut waiting = Vec::new();
        let mut refused = 0;
        assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), None);
        for _ in 1..12 {
            gatekeeper.clock().advance(Duration::from_micros(700));
            match send(&gatekeeper, &ask(1), 60_000) {
                Err(queued) => waiting.push(queued),
                Ok(answered) => {
                    assert_eq!(answered.answer.refusal(), Some(Refusal::WaitTooLong), "{limit}");
                    refused += 1;
                }
            }
        }
        assert_eq!((waiting.len(), refused), (3, 8), "{limit}");
    }
}

#[test]
fn refusals_in_shadow_count_towards_bans_of_requests_that_could_have_waited() {
    let rules = "
  - { name: trial, key: '{ip}', mode: shadow, limits: [1/hour], ban: { after: 3, within: 1h, for: 1h } }
  - { name: each, key: '{ip}', limits: [5/second burst 5], fair: { wait: 60s } }
";
    let gatekeeper = gatekeeper(rules);
    let bans_after = |_| {
        assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), None);
        gatekeeper.stats().shadow_bans
    };
    assert_eq!([0, 1, 2, 3].map(bans_after), [0, 0, 0, 1], "the first is within the limit");
    gatekeeper.clock().advance(Duration::from_secs(3));
    assert_eq!([0, 1].map(bans_after), [1; 2], "once in the time of the block");
    assert_eq!(gatekeeper.stats().shadow_refusals_lost, 0);
    // A try that is refused is not final: it waits, and counts when it is admitted.
    let delayed = "
  - { name: trial, key: '{ip}', mode: shadow, limits: [1/hour], ban: { after: 2, within: 1h, for: 1h } }
  - { name: each, key: '{ip}', limits: [1/second burst 1], fair: { wait: 60s } }
";
    let gatekeeper = self::gatekeeper(delayed);
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), None);
    let mut bans = Vec::new();
    for _ in 0..2 {
        let mut waiting = queued(send(&gatekeeper, &ask(1), 60_000));
        bans.push(gatekeeper.stats().shadow_bans);
        gatekeeper.clock().advance(Duration::from_secs(1));
        let ask = ask(1);
        loop {
            let turn = gatekeeper.admit_in_turn(waiting, &ask, false, &|_| Box::pin(pending()));
            match poll(pin!(turn)) {
                Poll::Ready(Ok(served)) => break assert_eq!(served.answer.refusal(), None),
                Poll::Ready(Err(again)) => waiting = again,
                Poll::Pending => panic!("it is its turn"),
            }
        }
        bans.push(gatekeeper.stats().shadow_bans);
    }
    assert_eq!(bans, [0, 0, 0, 1]);
}

/// One unit a second for all callers, up to ten at once, and requests that take them all.
const LARGE_AND_SMALL: &str = "
  - { name: all, key: global, limits: [1/second burst 10], cost: { default: 1, /big: 10 } }
  - { name: each, key: '{ip}', limits: [1000/second], cost: { default: 1, /big: 10 }, fair: { wait: 60s } }
";

#[test]
fn small_requests_go_ahead_of_a_large_one_that_has_no_room() {
    let gatekeeper = gatekeeper(LARGE_AND_SMALL);
    let big = Ask { facts: Facts { path: Some("/big"), ..ask(1).facts }, ..Ask::default() };
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), None);
    let _big = queued(send(&gatekeeper, &big, 60_000));
    // None of them has asked the store when the next one comes.
    let _small = [2, 3, 4, 5].map(|caller| queued(send(&gatekeeper, &ask(caller), 500)));
}

#[test]
fn a_limit_slower_than_one_a_second_serves_whom_it_can() {
    let rule = "\n  - { name: each, key: '{ip}', limits: [1/5s burst 1], fair: { wait: 10500ms } }";
    let gatekeeper = gatekeeper(rule);
    let advance = |millis| gatekeeper.clock().advance(Duration::from_millis(millis));
    let sleep = |_| -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(pending()) };
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), None);
    advance(100);
    let first = queued(send(&gatekeeper, &ask(1), 60_000));
    advance(250);
    let second = queued(send(&gatekeeper, &ask(1), 60_000));
    advance(400);
    assert_eq!(refusal(send(&gatekeeper, &ask(1), 60_000)), Some(Refusal::WaitTooLong));
    advance(4_250);
    let ask = ask(1);
    match poll(pin!(gatekeeper.admit_in_turn(first, &ask, false, &sleep))) {
        Poll::Ready(Ok(served)) => assert_eq!(served.answer.refusal(), None),
        _ => panic!("its unit is there"),
    }
    let mut second = pin!(gatekeeper.admit_in_turn(second, &ask, false, &sleep));
    assert!(poll(second.as_mut()).is_pending());
    advance(350);
    let _third = queued(send(&gatekeeper, &ask, 60_000));
}
