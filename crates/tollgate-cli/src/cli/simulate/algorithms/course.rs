//! The course of one algorithm through traffic: every decision, and what the limiter remembers over time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::check::Act;
use tollgate::{Algorithm, Check, Decision, Limit, LimitError, MemoryStore, Micros};

use super::traffic::{TrafficSpan, TrafficTrace};
use crate::chart::ChartPoint;

/// Parts of the horizontal axis at which a window's level is read.
const LEVEL_SAMPLES: u64 = 800;

/// Numbers that every algorithm is given.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ComparedLimit {
    pub(in super::super) units: u64,
    pub(in super::super) period: Duration,
    /// Capacity of the buckets.
    pub(in super::super) burst: u64,
}

/// One algorithm's decisions.
pub(super) struct AlgorithmCourse {
    pub(super) limit: Limit,
    pub(super) answers: Vec<CourseAnswer>,
    /// Units in use over time, in thousandths, by the place on the horizontal axis.
    pub(super) level: Vec<ChartPoint>,
}

/// The answer to one request.
pub(super) struct CourseAnswer {
    pub(super) at: Micros,
    pub(super) key: Arc<str>,
    pub(super) cost: u64,
    pub(super) decision: Decision,
}

impl ComparedLimit {
    /// The limit with each algorithm; a leaky bucket also as a queue.
    pub(super) fn with_each_algorithm(&self) -> Result<Vec<Limit>, LimitError> {
        let mut limits = Vec::new();
        for algorithm in Algorithm::ALL {
            let mut builder = Limit::per(self.units, self.period).algorithm(algorithm);
            if algorithm.is_bucket() {
                builder = builder.burst(self.burst);
            }
            limits.push(builder.clone().build()?);
            if algorithm == Algorithm::LeakyBucket {
                limits.push(builder.queue().build()?);
            }
        }
        Ok(limits)
    }
}

impl AlgorithmCourse {
    /// The courses of these limits through the same traffic.
    pub(super) fn run_each(limits: Vec<Limit>, traffic: &TrafficTrace) -> Vec<AlgorithmCourse> {
        limits.into_iter().map(|limit| AlgorithmCourse::run(limit, traffic)).collect()
    }

    /// Decides all requests by one limit.
    fn run(limit: Limit, traffic: &TrafficTrace) -> AlgorithmCourse {
        // Twice the keys there can be, so that no two share a state.
        let store = MemoryStore::new(2 * traffic.requests.len());
        let mut answers = Vec::with_capacity(traffic.requests.len());
        let mut level = traffic.has_one_level().then(|| LevelReader::new(&store, &limit, traffic));
        for request in &traffic.requests {
            if let Some(level) = &mut level {
                level.read_until(request.at);
            }
            let check = Check::new(&limit, request.key.as_bytes()).cost(request.cost);
            let decision = store.decide_one(&check, request.at);
            let (key, cost) = (Arc::clone(&request.key), request.cost);
            answers.push(CourseAnswer { at: request.at, key, cost, decision });
            if let Some(level) = &mut level {
                level.read_at(request.at);
            }
        }
        let level = level.map(|mut level| {
            // Not at the last instant itself: a window that ends there would end in a line down to nothing.
            level.read_until(Micros::new(traffic.span().to_us - 1));
            level.points
        });
        AlgorithmCourse { level: level.unwrap_or_default(), limit, answers }
    }

    /// Name of the algorithm as in a rules file.
    pub(super) fn name(&self) -> String {
        let name = self.limit.algorithm().name();
        if self.limit.is_queue() { format!("{name}, queue") } else { name.into() }
    }

    /// The answers that admit at once, admit later, and refuse.
    pub(super) fn counts(&self) -> [u64; 3] {
        let mut counts = [0; 3];
        for answer in &self.answers {
            counts[answer.fate() as usize] += 1;
        }
        counts
    }

    /// The units that are admitted.
    pub(super) fn admitted_units(&self) -> u64 {
        let admitted = self.answers.iter().filter(|answer| answer.decision.allowed());
        admitted.map(|answer| answer.cost).fold(0, u64::saturating_add)
    }

    /// The longest delay of an admitted request.
    pub(super) fn longest_delay_us(&self) -> u64 {
        self.answers.iter().map(CourseAnswer::delay_us).max().unwrap_or(0)
    }

    /// The most units that one caller was served in any period, at the instants at which they were served.
    pub(super) fn most_in_a_period(&self) -> u64 {
        let mut by_key: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for answer in self.answers.iter().filter(|answer| answer.decision.allowed()) {
            by_key.entry(&answer.key).or_default().push((answer.served_at_us(), answer.cost));
        }
        let most = by_key.into_values().map(|served| most_in(served, self.limit.period_us()));
        most.max().unwrap_or(0)
    }
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RequestFate {
    Admitted,
    Delayed,
    Refused,
}

impl RequestFate {
    pub(in super::super) fn new(is_allowed: bool, delay_us: u64) -> RequestFate {
        match (is_allowed, delay_us) {
            (false, _) => RequestFate::Refused,
            (true, 0) => RequestFate::Admitted,
            (true, _) => RequestFate::Delayed,
        }
    }
}

impl CourseAnswer {
    pub(super) fn fate(&self) -> RequestFate {
        RequestFate::new(self.decision.allowed(), self.delay_us())
    }

    /// The delay of an admitted request.
    pub(super) fn delay_us(&self) -> u64 {
        match self.decision.allowed() {
            true => self.decision.delay().as_micros().unwrap_or(0),
            false => 0,
        }
    }

    /// The instant at which an admitted request is served.
    pub(super) fn served_at_us(&self) -> u64 {
        self.at.as_u64().saturating_add(self.delay_us())
    }
}

/// The most units in any window of this length, which includes its end and excludes its start.
pub(super) fn most_in(mut served: Vec<(u64, u64)>, period_us: u64) -> u64 {
    served.sort_unstable();
    let (mut most, mut sum, mut first) = (0_u64, 0_u64, 0);
    for &(at, cost) in &served {
        sum = sum.saturating_add(cost);
        while at - served[first].0 >= period_us {
            sum = sum.saturating_sub(served[first].1);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Reads the units in use without charging any.
struct LevelReader<'a> {
    store: &'a MemoryStore,
    limit: &'a Limit,
    span: TrafficSpan,
    key: Arc<str>,
    last_at: u64,
    /// Bound: [`LEVEL_SAMPLES`], and three for each request.
    points: Vec<ChartPoint>,
}

impl LevelReader<'_> {
    fn new<'a>(
        store: &'a MemoryStore,
        limit: &'a Limit,
        traffic: &'a TrafficTrace,
    ) -> LevelReader<'a> {
        let key =
            traffic.requests.first().map_or_else(|| "".into(), |first| Arc::clone(&first.key));
        let span = traffic.span();
        let points = vec![ChartPoint { x: span.place(span.from_us), y: 0 }];
        LevelReader { store, limit, span, key, last_at: span.from_us, points }
    }

    /// Reads the level between the last reading and this instant.
    fn read_until(&mut self, at: Micros) {
        let at = at.as_u64();
        if self.limit.algorithm().is_bucket() {
            // A bucket empties in a straight line; only the instant at which it is empty is a corner.
            let empty_at = self.peek(self.last_at).reset_after().as_micros();
            let empty_at = empty_at.map_or(u64::MAX, |wait| self.last_at.saturating_add(wait));
            if empty_at > self.last_at && empty_at < at {
                self.read_at(Micros::new(empty_at));
            }
        } else {
            let step = (self.span.length_us() / LEVEL_SAMPLES).max(1);
            let mut sample = self.last_at - (self.last_at - self.span.from_us) % step + step;
            while sample < at {
                self.read_at(Micros::new(sample));
                sample += step;
            }
        }
        self.read_at(Micros::new(at));
    }

    fn read_at(&mut self, at: Micros) {
        let decision = self.peek(at.as_u64());
        let y = level_of(self.limit, &decision);
        let x = self.span.place(at.as_u64());
        let is_step = !self.limit.algorithm().is_bucket();
        if let Some(last) = self.points.last().copied()
            && last.y != y
            && is_step
        {
            self.points.push(ChartPoint { x, y: last.y });
        }
        if let [.., before, last] = &mut self.points[..]
            && before.y == y
            && last.y == y
        {
            last.x = x;
        } else {
            self.points.push(ChartPoint { x, y });
        }
        self.last_at = at.as_u64();
    }

    fn peek(&self, at_us: u64) -> Decision {
        let check = Check::new(self.limit, self.key.as_bytes()).act(Act::Peek);
        self.store.decide_one(&check, Micros::new(at_us))
    }
}

/// Units in use, in thousandths.
fn level_of(limit: &Limit, decision: &Decision) -> u64 {
    if !limit.algorithm().is_bucket() {
        return limit.capacity().saturating_sub(decision.remaining()).saturating_mul(1_000);
    }
    let reset_us = u128::from(decision.reset_after().as_micros().unwrap_or(0));
    let level = reset_us * u128::from(limit.units()) * 1_000 / u128::from(limit.period_us());
    u64::try_from(level).unwrap_or(u64::MAX)
}
