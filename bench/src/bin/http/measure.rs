//! Rounds of samples: every contestant once, then all of them again.

use std::time::Duration;

use tollgate_bench::stopwatch::median;

use crate::contestants::Contestant;
use crate::generator::{self, Load, Sample};

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) connections: usize,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
}

/// Everything measured: for each contestant one sample of each round, in the order of the rounds.
#[derive(Default)]
pub(crate) struct Results(pub(crate) Vec<(&'static str, Vec<Sample>)>);

/// A number measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Measured {
    /// `None` of none.
    pub(crate) fn of(values: &[f64]) -> Option<Measured> {
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(Measured { median: median(values), min, max })
    }
}

impl Results {
    /// Measures the contestants in turn, each round beginning with another one. A round before the
    /// first does not count: in it the servers meet most callers for the first time, which costs
    /// more.
    pub(crate) fn measure(contestants: &[Contestant], effort: Effort) -> Result<Results, String> {
        let mut results = Results::default();
        results.0.extend(contestants.iter().map(|contestant| (contestant.name, Vec::new())));
        eprintln!("a round that does not count");
        contestants.iter().try_for_each(|contestant| sample(contestant, effort).map(drop))?;
        for round in 0..effort.rounds {
            eprintln!("round {} of {}", round + 1, effort.rounds);
            for turn in 0..contestants.len() {
                let index = (round + turn) % contestants.len();
                let sample = sample(&contestants[index], effort)?;
                results.0[index].1.push(sample);
            }
        }
        Ok(results)
    }

    fn samples(&self, name: &str) -> Option<&[Sample]> {
        self.0.iter().find(|(its_name, _)| *its_name == name).map(|(_, samples)| &samples[..])
    }

    /// Compares two contestants round by round: samples of one round are seconds apart, and the
    /// machine's speed drifts by the minute.
    pub(crate) fn compare(
        &self,
        a: &str,
        b: &str,
        compare: impl Fn(&Sample, &Sample) -> f64,
    ) -> Option<Measured> {
        let pairs = self.samples(a)?.iter().zip(self.samples(b)?);
        Measured::of(&pairs.map(|(a, b)| compare(a, b)).collect::<Vec<_>>())
    }
}

fn sample(contestant: &Contestant, effort: Effort) -> Result<Sample, String> {
    let load = Load {
        address: contestant.address,
        server: contestant.server,
        requests: &contestant.requests,
        connections: effort.connections,
        warm_up: effort.warm_up,
        duration: effort.duration,
    };
    generator::measure(&load).map_err(|problem| format!("{}: {problem}", contestant.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_are_compared_within_a_round() {
        let sample = |server_us| Sample { server_us, ..Sample::default() };
        let samples = |values: [f64; 3]| values.map(sample).to_vec();
        // The machine is three times slower in the second round; b always costs half of a.
        let results =
            Results(vec![("a", samples([2.0, 6.0, 2.0])), ("b", samples([1.0, 3.0, 1.0]))]);
        let measured = results.compare("a", "b", |a, b| a.server_us / b.server_us);
        assert_eq!(measured, Some(Measured { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(results.compare("a", "c", |a, _| a.server_us), None);
    }
}
