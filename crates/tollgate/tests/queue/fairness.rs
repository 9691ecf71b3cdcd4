//! Fairness of the queue, measured on a virtual clock.

use std::collections::BTreeMap;

use tollgate::Micros;
use tollgate::queue::{FairQueue, FlowKey, QueueBounds, QueuedCost, Weight};

use crate::seeded::random::SplitMix64;

const FOREVER: Micros = Micros::MAX;
const MILLIS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// Jain's index: 1 if all shares are equal, 1/n if one has everything.
fn jain_index(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn jain_s_index_knows_equal_from_unequal() {
    assert_eq!(jain_index(&[7, 7, 7, 7]), 1.0);
    assert_eq!(jain_index(&[7, 0, 0, 0]), 0.25);
}

/// Callers that send at a fixed rate, one service at a time, on a virtual clock.
struct VirtualTraffic {
    queue: FairQueue<u64>,
    /// Time between two requests of each caller.
    intervals: Vec<u64>,
    next_send: Vec<u64>,
    sent: Vec<u64>,
    served: Vec<u64>,
}

impl VirtualTraffic {
    fn new(bounds: QueueBounds, intervals: Vec<u64>) -> VirtualTraffic {
        // Callers do not start together.
        let next_send = intervals.iter().enumerate().map(|(at, it)| it * at as u64 / 50).collect();
        let zeros = vec![0; intervals.len()];
        let queue = FairQueue::new(bounds);
        VirtualTraffic { queue, intervals, next_send, sent: zeros.clone(), served: zeros }
    }

    /// Serves one waiter each `service_us`; waiters leave after `patience_us`.
    fn run(&mut self, until_us: u64, service_us: u64, patience_us: u64) {
        for now in (0..until_us).step_by(service_us as usize) {
            for caller in 0..self.intervals.len() {
                while self.next_send[caller] <= now {
                    self.sent[caller] += 1;
                    let deadline = Micros::new(self.next_send[caller] + patience_us);
                    let flow = FlowKey(caller as u64);
                    let _ = self.queue.push(flow, QueuedCost::ONE, deadline, caller as u64);
                    self.next_send[caller] += self.intervals[caller];
                }
            }
            while self.queue.expire(Micros::new(now)).is_some() {}
            if let Some(caller) = self.queue.pop() {
                self.served[caller as usize] += 1;
            }
        }
    }
}

/// 100 services a second for 50 callers, 2 a second each; one sends 500 a second, with two
/// seconds of patience.
#[test]
fn a_greedy_caller_takes_nothing_from_49_polite_ones() {
    // Polite requests a minute, and who is compared.
    for (per_minute, everybody) in [(114, false), (240, true)] {
        let mut intervals = vec![60 * SECOND / per_minute; 49];
        intervals.push(2 * MILLIS);
        let bounds = QueueBounds { per_flow: 10, total: 200 };
        let mut traffic = VirtualTraffic::new(bounds, intervals);
        traffic.run(120 * SECOND, 10 * MILLIS, 2 * SECOND);
        let compared = if everybody { &traffic.served[..] } else { &traffic.served[..49] };
        assert!(jain_index(compared) >= 0.99, "{per_minute} a minute: {:?}", traffic.served);
        // Below their share, polite callers get what they ask for.
        if !everybody {
            for (sent, served) in traffic.sent.iter().zip(compared) {
                assert!(served * 100 >= sent * 98, "{served} of {sent}");
            }
        }
        let all: u64 = traffic.served.iter().sum();
        assert_eq!(all, 12_000, "every service was used: the greedy caller gets what is left");
    }
}

/// Would catch: shares counted in requests instead of cost, weights that are rounded away.
#[test]
fn weights_are_respected_within_2_percent() {
    let weights = [500, 1_000, 1_000, 2_500, 10_000u32];
    for units_max in [1, 20] {
        let mut random = SplitMix64::new(units_max);
        let mut queue = FairQueue::new(QueueBounds { per_flow: 4, total: 100 });
        let mut served = [0u64; 5];
        for _ in 0..10_000 {
            for (flow, &thousandths) in weights.iter().enumerate() {
                while queue.flow_len(FlowKey(flow as u64)) < 2 {
                    let units = 1 + random.word() % units_max;
                    let weight = Weight::from_thousandths(thousandths).unwrap();
                    let cost = QueuedCost { units, weight };
                    queue.push(FlowKey(flow as u64), cost, FOREVER, (flow, units)).unwrap();
                }
            }
            let (flow, units) = queue.pop().expect("everybody waits");
            served[flow] += units;
        }
        let (total, weight_sum) = (served.iter().sum::<u64>(), weights.iter().sum::<u32>());
        for (served, weight) in served.iter().zip(weights) {
            let share = *served as f64 / total as f64 * f64::from(weight_sum) / f64::from(weight);
            assert!((0.98..=1.02).contains(&share), "{share} of its share, of weight {weight}");
        }
    }
}

/// Would catch: newcomers that go ahead of an old waiter, without end.
#[test]
fn fresh_keys_without_end_do_not_starve_an_old_one() {
    for (old_units, fresh_a_step) in [(1, 1), (1, 3), (20, 1), (20, 3)] {
        let mut queue = FairQueue::new(QueueBounds { per_flow: 1, total: 500 });
        let mut fresh = 1..;
        for key in fresh.by_ref().take(100) {
            queue.push(FlowKey(key), QueuedCost::ONE, FOREVER, key).unwrap();
        }
        let cost = QueuedCost { units: old_units, weight: Weight::ONE };
        queue.push(FlowKey(0), cost, FOREVER, 0).unwrap();
        let mut services = 0u64;
        while queue.pop().expect("somebody waits") != 0 {
            services += 1;
            // One unit of virtual time lasts as long as the services of all who wait.
            assert!(services <= 500 * old_units, "served {services} others");
            for key in fresh.by_ref().take(fresh_a_step) {
                let _ = queue.push(FlowKey(key), QueuedCost::ONE, FOREVER, key);
            }
        }
        if old_units == 1 {
            assert_eq!(services, 100, "newcomers with the same cost are behind");
        }
    }
}

/// A caller with large costs gets the same units as the others, and no more.
#[test]
fn large_costs_buy_nothing() {
    let mut queue = FairQueue::new(QueueBounds { per_flow: 3, total: 100 });
    let mut served: BTreeMap<u64, u64> = BTreeMap::new();
    let costs = [1, 1, 7, 50];
    let mut total = 0;
    while total < 40_000 {
        for (flow, &units) in costs.iter().enumerate() {
            let cost = QueuedCost { units, weight: Weight::ONE };
            while queue.push(FlowKey(flow as u64), cost, FOREVER, flow as u64).is_ok() {}
        }
        let flow = queue.pop().expect("everybody waits");
        *served.entry(flow).or_default() += costs[flow as usize];
        total += costs[flow as usize];
    }
    for (flow, units) in served {
        assert!(units.abs_diff(10_000) <= 50, "{units} units of flow {flow}");
    }
}
