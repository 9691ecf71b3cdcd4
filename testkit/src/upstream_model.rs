//! A model of an upstream with a concurrency bound in front of it, on a virtual clock: servers, service times, a queue
//! without end, and clients that send at a rate or as fast as they are answered.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tollgate::queue::AdaptiveConcurrency;
use tollgate::{Micros, Wait};

use crate::random::SplitMix64;

/// A bound on the work in flight: fixed, or a controller that moves it.
pub trait ConcurrencyBound {
    /// The most work that may be in flight now.
    fn limit(&self) -> u32;
    /// Work began; `in_flight` includes it.
    fn began(&mut self, in_flight: u32);
    /// Work ended after `latency_us`; `in_flight` is what is left.
    fn ended(&mut self, latency_us: u64, in_flight: u32, now_us: u64);
}

impl ConcurrencyBound for AdaptiveConcurrency {
    fn limit(&self) -> u32 {
        self.limit()
    }

    fn began(&mut self, in_flight: u32) {
        self.began(in_flight);
    }

    fn ended(&mut self, latency_us: u64, in_flight: u32, now_us: u64) {
        self.ended(Wait::from_micros(latency_us), in_flight, Micros::new(now_us));
    }
}

/// A bound that never moves.
#[derive(Clone, Copy, Debug)]
pub struct FixedBound(pub u32);

impl ConcurrencyBound for FixedBound {
    fn limit(&self) -> u32 {
        self.0
    }

    fn began(&mut self, _: u32) {}

    fn ended(&mut self, _: u64, _: u32, _: u64) {}
}

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceTimes {
    /// All alike.
    Constant,
    /// Exponential, with the same mean.
    Exponential,
}

/// The clients of a model.
#[derive(Clone, Copy, Debug)]
pub enum ModelClients {
    /// Requests at random, at this multiple of what the upstream could answer in its first phase; refused ones are gone.
    Open {
        /// Requests per request that the upstream can answer.
        load: f64,
    },
    /// Clients that send their next request when they are answered, and after `retry_us` when they are refused.
    Closed {
        /// Number of clients.
        clients: u32,
        /// Mean pause after a refusal.
        retry_us: u64,
    },
}

/// A period with one capacity.
#[derive(Clone, Copy, Debug)]
pub struct ModelPhase {
    /// Length of the period.
    pub length_us: u64,
    /// The part at its start that is not measured.
    pub settling_us: u64,
    /// Number of servers.
    pub servers: u32,
    /// Mean service time.
    pub service_us: u64,
}

/// The traffic and the upstream of a run.
#[derive(Clone, Debug)]
pub struct UpstreamModel {
    /// The phases, one after the other.
    pub phases: Vec<ModelPhase>,
    /// The distribution of service times.
    pub times: ServiceTimes,
    /// The clients.
    pub clients: ModelClients,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// The measurements of one phase, after its settling time.
#[derive(Clone, Debug)]
pub struct PhaseResult {
    /// Requests answered per second.
    pub goodput: f64,
    /// The latency that one in a hundred answered requests exceeds.
    pub p99_us: u64,
    /// The mean of the limit, taken at each arrival.
    pub limit_mean: f64,
    /// The lowest limit.
    pub limit_min: u32,
    /// The highest limit.
    pub limit_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModelEvent {
    Arrival,
    End { began_us: u64 },
}

struct ModelRun<'a> {
    model: &'a UpstreamModel,
    random: SplitMix64,
    events: BinaryHeap<Reverse<(u64, u64, ModelEvent)>>,
    events_made: u64,
    /// Work that waits for a server, by the time it began. Bound: the limit in front.
    queue: VecDeque<u64>,
    running: u32,
    phase: ModelPhase,
}

#[derive(Default)]
struct PhaseTally {
    latencies_us: Vec<u64>,
    limits: (u64, u64),
    limit_min: Option<u32>,
    limit_max: u32,
}

impl UpstreamModel {
    /// Runs all phases with this bound in front.
    pub fn run(&self, bound: &mut dyn ConcurrencyBound) -> Vec<PhaseResult> {
        let mut run = ModelRun {
            model: self,
            random: SplitMix64::seeded(self.seed),
            events: BinaryHeap::new(),
            events_made: 0,
            queue: VecDeque::new(),
            running: 0,
            phase: self.phases[0],
        };
        run.first_arrivals();
        let mut start_us = 0;
        let mut results = Vec::new();
        for phase in &self.phases {
            run.phase = *phase;
            run.start_waiting(start_us);
            results.push(run.run_phase(start_us, bound));
            start_us += phase.length_us;
        }
        results
    }

    /// The best fixed bound of one phase alone: the lowest 99th percentile among those that answer at least 99 % of the
    /// most that any answers.
    pub fn best_fixed(&self, phase: usize) -> (u32, PhaseResult) {
        let alone = UpstreamModel { phases: vec![self.phases[phase]], ..self.clone() };
        let clients = match self.clients {
            ModelClients::Open { load } => {
                let rate = |phase: &ModelPhase| f64::from(phase.servers) / phase.service_us as f64;
                let share = rate(&self.phases[0]) / rate(&self.phases[phase]);
                ModelClients::Open { load: load * share }
            }
            closed => closed,
        };
        let alone = UpstreamModel { clients, ..alone };
        let run = |limit| (limit, alone.run(&mut FixedBound(limit)).remove(0));
        let servers = self.phases[phase].servers;
        let limits = (servers / 2).max(1)..=servers * 2 + 2;
        let all: Vec<_> = limits.step_by((servers as usize / 20).max(1)).map(run).collect();
        let most = all.iter().map(|(_, result)| result.goodput).fold(0.0, f64::max);
        let good = all.into_iter().filter(|(_, result)| result.goodput >= 0.99 * most);
        good.min_by_key(|(_, result)| result.p99_us).expect("the most is among them")
    }
}

impl ModelRun<'_> {
    fn run_phase(&mut self, start_us: u64, bound: &mut dyn ConcurrencyBound) -> PhaseResult {
        let (measured_us, end_us) =
            (start_us + self.phase.settling_us, start_us + self.phase.length_us);
        let mut tally = PhaseTally::default();
        while let Some(&Reverse((now_us, _, event))) = self.events.peek()
            && now_us < end_us
        {
            self.events.pop();
            let is_measured = now_us >= measured_us;
            match event {
                ModelEvent::Arrival => {
                    self.arrive(now_us, bound);
                    if is_measured {
                        tally.see_limit(bound.limit());
                    }
                }
                ModelEvent::End { began_us } => {
                    self.end(began_us, now_us, bound);
                    if is_measured {
                        tally.latencies_us.push(now_us - began_us);
                    }
                }
            }
        }
        tally.result(end_us - measured_us)
    }

    fn first_arrivals(&mut self) {
        match self.model.clients {
            ModelClients::Open { .. } => self.schedule(0, ModelEvent::Arrival),
            ModelClients::Closed { clients, retry_us } => {
                for _ in 0..clients {
                    let at_us = self.random.below(retry_us.max(1));
                    self.schedule(at_us, ModelEvent::Arrival);
                }
            }
        }
    }

    fn arrive(&mut self, now_us: u64, bound: &mut dyn ConcurrencyBound) {
        let in_flight = self.in_flight();
        let is_admitted = in_flight < bound.limit();
        if is_admitted {
            bound.began(in_flight + 1);
            self.queue.push_back(now_us);
            self.start_waiting(now_us);
        }
        match self.model.clients {
            ModelClients::Open { load } => {
                let first = &self.model.phases[0];
                let mean_us = first.service_us as f64 / f64::from(first.servers) / load;
                let next_us = now_us + self.exponential(mean_us);
                self.schedule(next_us, ModelEvent::Arrival);
            }
            ModelClients::Closed { retry_us, .. } if !is_admitted => {
                let next_us = now_us + self.exponential(retry_us as f64);
                self.schedule(next_us, ModelEvent::Arrival);
            }
            ModelClients::Closed { .. } => {}
        }
    }

    fn end(&mut self, began_us: u64, now_us: u64, bound: &mut dyn ConcurrencyBound) {
        self.running -= 1;
        self.start_waiting(now_us);
        bound.ended(now_us - began_us, self.in_flight(), now_us);
        if let ModelClients::Closed { .. } = self.model.clients {
            self.schedule(now_us, ModelEvent::Arrival);
        }
    }

    fn start_waiting(&mut self, now_us: u64) {
        while self.running < self.phase.servers
            && let Some(began_us) = self.queue.pop_front()
        {
            self.running += 1;
            let mean_us = self.phase.service_us;
            let service_us = match self.model.times {
                ServiceTimes::Constant => mean_us,
                ServiceTimes::Exponential => self.exponential(mean_us as f64),
            };
            self.schedule(now_us + service_us, ModelEvent::End { began_us });
        }
    }

    fn in_flight(&self) -> u32 {
        self.running + self.queue.len() as u32
    }

    fn schedule(&mut self, at_us: u64, event: ModelEvent) {
        self.events_made += 1;
        self.events.push(Reverse((at_us, self.events_made, event)));
    }

    fn exponential(&mut self, mean_us: f64) -> u64 {
        let unit = (self.random.number() >> 11) as f64 / (1_u64 << 53) as f64;
        (-mean_us * (1.0 - unit).ln()).ceil().max(1.0) as u64
    }
}

impl PhaseTally {
    fn see_limit(&mut self, limit: u32) {
        self.limits = (self.limits.0 + u64::from(limit), self.limits.1 + 1);
        self.limit_min = Some(self.limit_min.map_or(limit, |min| min.min(limit)));
        self.limit_max = self.limit_max.max(limit);
    }

    fn result(mut self, length_us: u64) -> PhaseResult {
        self.latencies_us.sort_unstable();
        let index = self.latencies_us.len() * 99 / 100;
        PhaseResult {
            goodput: self.latencies_us.len() as f64 * 1e6 / length_us as f64,
            p99_us: self.latencies_us.get(index).copied().unwrap_or(0),
            limit_mean: self.limits.0 as f64 / self.limits.1.max(1) as f64,
            limit_min: self.limit_min.unwrap_or(0),
            limit_max: self.limit_max,
        }
    }
}
