//! The futures of decisions are small whatever the store's are: a listener moves them with its own.

use std::mem::size_of_val;
use std::time::Duration;

use tollgate::{Either, ManualClock, MemoryStore, Micros};
use tollgate_rules::{
    Ask, DescriptorAsk, Gatekeeper, InfallibleStore, ReservationId, Source, compile,
};

use crate::yielding_store::YieldingStore;

/// The most bytes of a future.
const FUTURE_BYTES_MAX: usize = 2_048;

/// Fails if a future of a gatekeeper on this store is too large.
fn check_sizes<S: InfallibleStore>(store: S, name: &str) {
    let rules = compile(&[Source::from_text(
        "rules.yaml",
        "rules: [{ name: a, key: global, limits: [9/s] }]",
    )]);
    let rules = rules.rules.expect("valid rules");
    let gate = Gatekeeper::new(rules, store, ManualClock::new(Micros::ZERO));
    let (ask, now) = (Ask::default(), gate.clock_instant(Micros::from_secs(1)));
    let described = DescriptorAsk { domain: "d", descriptors: &[] };
    let id: ReservationId = "0".repeat(32).parse().unwrap();
    let second = Duration::from_secs(1);
    let asks = [ask];
    let sizes = [
        ("decide_by", size_of_val(&gate.decide_by(gate.rules(), &ask, now))),
        ("peek_by", size_of_val(&gate.peek_by(gate.rules(), &ask, now))),
        ("refund_by", size_of_val(&gate.refund_by(gate.rules(), &ask, now))),
        (
            "decide_requests_by",
            size_of_val(&gate.decide_requests_by(gate.rules(), &asks, now, |_| {})),
        ),
        (
            "decide_descriptors_by",
            size_of_val(&gate.decide_descriptors_by(gate.rules(), &described, now)),
        ),
        ("reserve_by", size_of_val(&gate.reserve_by(gate.rules(), &ask, second, now))),
        ("admit_by", size_of_val(&gate.admit_by(gate.rules(), &ask, true, now))),
        ("commit_by", size_of_val(&gate.commit_by(id, 1, now))),
        ("cancel_by", size_of_val(&gate.cancel_by(id, now.instant()))),
    ];
    for (future, bytes) in sizes {
        println!("{future} on {name}: {bytes} bytes");
        assert!(bytes <= FUTURE_BYTES_MAX, "{future} on {name}: {bytes} bytes");
    }
}

#[test]
fn futures_are_small_on_every_store() {
    check_sizes(MemoryStore::new(10), "the memory store");
    check_sizes(YieldingStore::new(10), "a store with large futures");
    let store: Either<MemoryStore, YieldingStore> = Either::Left(MemoryStore::new(10));
    check_sizes(store, "either");
}
