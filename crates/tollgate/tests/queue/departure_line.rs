//! Random arrivals, leavers and late timers in a departure line, beside a model that moves
//! everybody, and behind a real limit.

use proptest::prelude::*;
use tollgate::queue::{DepartureLine, LineTicket};
use tollgate::{Algorithm, Limit, Limiter, Micros, Receipt, Wait};

use crate::properties::config;

/// One operation of a sequence.
#[derive(Clone, Debug)]
enum LineOperation {
    Join {
        after_us: u64,
        interval_us: u64,
    },
    /// The request that joined as number `nth` from the end leaves; it may be gone already.
    Leave {
        nth: usize,
    },
    /// Moves the clock and tries to depart.
    Depart {
        micros: u64,
    },
}

fn operation() -> impl Strategy<Value = LineOperation> {
    prop_oneof![
        4 => (0..1_000u64, 0..200u64)
            .prop_map(|(after_us, interval_us)| LineOperation::Join { after_us, interval_us }),
        1 => (0..8usize).prop_map(|nth| LineOperation::Leave { nth }),
        4 => (0..200u64).prop_map(|micros| LineOperation::Depart { micros }),
    ]
}

/// A line as its documentation has it: everybody behind a leaver is moved.
#[derive(Default)]
struct NaiveLine {
    /// Number, scheduled instant and interval.
    places: Vec<(usize, u64, u64)>,
    free_at: u64,
}

impl NaiveLine {
    fn head(&self) -> Option<(usize, u64)> {
        self.places.first().map(|&(number, scheduled, _)| (number, scheduled.max(self.free_at)))
    }

    /// The place of a request: behind all that are due before it, or when it is.
    fn place_of(&self, scheduled: u64) -> usize {
        let before = self.places.iter().rposition(|&(_, due, _)| due <= scheduled);
        before.map_or(0, |before| before + 1)
    }

    fn expected_departure(&self, scheduled: u64) -> u64 {
        let ahead = &self.places[..self.place_of(scheduled)];
        let intervals: u64 = ahead.iter().map(|&(_, _, interval)| interval).sum();
        let head = self.head().filter(|_| !ahead.is_empty());
        head.map_or(self.free_at, |(_, departs_at)| departs_at + intervals).max(scheduled)
    }

    fn depart(&mut self, now: u64) -> Option<usize> {
        let (number, _) = self.head().filter(|&(_, departs_at)| departs_at <= now)?;
        self.free_at = now + self.places.remove(0).2;
        Some(number)
    }

    fn leave(&mut self, number: usize) -> Option<usize> {
        let at = self.places.iter().position(|place| place.0 == number)?;
        let (_, _, interval) = self.places.remove(at);
        for (_, scheduled, _) in &mut self.places[at..] {
            *scheduled = scheduled.saturating_sub(interval);
        }
        Some(number)
    }
}

proptest! {
    #![proptest_config(config())]

    /// Would catch: a wrong departure after leavers ahead, behind or at the head; a request that is
    /// lost or departs twice; a bound exceeded.
    #[test]
    fn a_departure_line_is_the_naive_one(
        places_max in 0..12usize,
        operations in prop::collection::vec(operation(), 0..100),
    ) {
        let (mut line, mut model) = (DepartureLine::new(places_max), NaiveLine::default());
        let (mut tickets, mut now): (Vec<LineTicket>, u64) = (Vec::new(), 1_000);
        for operation in operations {
            match operation {
                LineOperation::Join { after_us, interval_us } => {
                    let (number, scheduled) = (tickets.len(), now + after_us);
                    let joined =
                        line.join(Micros::new(scheduled), Wait::from_micros(interval_us), number);
                    prop_assert_eq!(joined.is_ok(), model.places.len() < places_max);
                    if let Ok(joined) = joined {
                        let departs_at = joined.departs_at.as_u64();
                        prop_assert_eq!(departs_at, model.expected_departure(scheduled));
                        let place = model.place_of(scheduled);
                        model.places.insert(place, (number, scheduled, interval_us));
                        tickets.push(joined.ticket);
                    }
                }
                LineOperation::Leave { nth } => {
                    let Some(number) = tickets.len().checked_sub(nth + 1) else { continue };
                    prop_assert_eq!(line.leave(tickets[number]), model.leave(number));
                }
                LineOperation::Depart { micros } => {
                    now += micros;
                    prop_assert_eq!(line.depart(Micros::new(now)), model.depart(now));
                }
            }
            let head = model.head().map(|(number, at)| (tickets[number], Micros::new(at)));
            prop_assert_eq!(line.head(), head);
            prop_assert_eq!(line.len(), model.places.len());
            let idle = model.places.is_empty() && model.free_at <= now;
            prop_assert_eq!(line.is_idle(Micros::new(now)), idle);
        }
    }
}

/// A request that waits behind the limit of [`ShapedKey`].
#[derive(Debug)]
struct DelayedRequest {
    receipt: Receipt,
    cost: u64,
    arrived_us: u64,
}

/// One key under a queue of a real limit, with a line for its departures.
struct ShapedKey {
    limiter: Limiter,
    limit: Limit,
    line: DepartureLine<DelayedRequest>,
    /// Time of one unit, rounded down.
    unit_us: u64,
    now_us: u64,
    /// Instant, cost and waiting time of each departure.
    departures: Vec<(u64, u64, u64)>,
}

impl ShapedKey {
    fn new(rate: u64, burst: u64) -> ShapedKey {
        let builder = Limit::per_second(rate).burst(burst);
        let limit = builder.algorithm(Algorithm::LeakyBucket).queue().build().unwrap();
        ShapedKey {
            limiter: Limiter::with_capacity(10),
            limit,
            line: DepartureLine::new(burst as usize),
            unit_us: 1_000_000 / rate,
            now_us: 1_790_000_000_000_000,
            departures: Vec::new(),
        }
    }

    fn arrive(&mut self, cost: u64) -> Option<LineTicket> {
        let now = Micros::new(self.now_us);
        let decision = self.limiter.at(now).take(&self.limit, "key", cost);
        if !decision.allowed() {
            return None;
        }
        let receipt = decision.receipt();
        let request = DelayedRequest { receipt, cost, arrived_us: self.now_us };
        let interval = Wait::from_micros(cost * self.unit_us);
        let joined = self.line.join(now.after(decision.delay()), interval, request);
        Some(joined.expect("the limit admits no more than it has room for").ticket)
    }

    fn leave(&mut self, ticket: LineTicket) {
        if let Some(request) = self.line.leave(ticket) {
            let moment = self.limiter.at(Micros::new(self.now_us));
            moment.refund(&self.limit, "key", request.receipt, request.cost);
        }
    }

    /// Moves the clock to `until_us`; everybody departs `late_us` after the earliest instant.
    fn run(&mut self, until_us: u64, late_us: u64) {
        while let Some((_, departs_at)) = self.line.head() {
            let at = departs_at.as_u64().max(self.now_us) + late_us;
            if at > until_us {
                break;
            }
            let DelayedRequest { cost, arrived_us, .. } =
                self.line.depart(Micros::new(at)).unwrap();
            self.departures.push((at, cost, at - arrived_us));
        }
        self.now_us = until_us;
    }
}

proptest! {
    #![proptest_config(config())]

    /// Would catch: two departures closer than the interval, a wait that is longer than the
    /// capacity takes, units that are lost when clients leave.
    #[test]
    fn the_output_of_a_limit_is_even_whoever_leaves(
        rate in 1..200u64,
        burst in 1..20u64,
        steps in prop::collection::vec((0..300_000u64, 1..4u64, any::<bool>(), 0..6usize), 1..60),
        late_us in prop_oneof![Just(0u64), 0..5_000u64],
    ) {
        let mut key = ShapedKey::new(rate, burst);
        let mut tickets = Vec::new();
        for (pause_us, cost, leaves, nth) in steps {
            key.run(key.now_us + pause_us, late_us);
            tickets.extend(key.arrive(cost));
            if leaves && nth < tickets.len() {
                key.leave(tickets[tickets.len() - 1 - nth]);
            }
        }
        key.run(key.now_us + 60_000_000 + burst * 1_000_000, late_us);
        prop_assert_eq!(key.line.len(), 0);
        for pair in key.departures.windows(2) {
            let ((first, cost, _), (second, _, _)) = (pair[0], pair[1]);
            prop_assert!(second - first >= cost * key.unit_us, "{} us", second - first);
        }
        if late_us == 0 {
            let wait_us_max = (burst * 1_000_000).div_ceil(rate);
            let longest = key.departures.iter().map(|&(_, _, waited)| waited).max();
            prop_assert!(longest.unwrap_or(0) <= wait_us_max, "{longest:?} of {wait_us_max} us");
        }
    }
}
