//! Rounds of samples: every case once, then all of them again.

use std::rc::Rc;

use tollgate_bench::rounds::{Figure, SampleTiming};

use crate::contestants::RedisContestant;
use crate::load::{self, RedisKeyChoice, RedisLoad, RedisSample};
use crate::servers::RedisBenchServers;

/// Maximum number of attempts for one sample.
const TRIES: usize = 5;

/// One thing to measure.
pub(crate) struct RedisCase {
    pub(crate) name: String,
    /// The instances; callers are divided among them.
    pub(crate) contestants: Vec<Rc<RedisContestant>>,
    pub(crate) servers: Rc<RedisBenchServers>,
    pub(crate) keys: RedisKeyChoice,
    pub(crate) load: RedisLoad,
    /// Name of the case with the same load for comparison.
    pub(crate) peer: &'static str,
}

/// A case with one sample of each round, in the order of the rounds.
pub(crate) struct RedisCaseSamples {
    pub(crate) name: String,
    pub(crate) load: RedisLoad,
    pub(crate) peer: &'static str,
    pub(crate) samples: Vec<RedisSample>,
}

impl RedisCaseSamples {
    pub(crate) fn figure(&self, of: impl Fn(&RedisSample) -> f64) -> Option<Figure> {
        Figure::from_values(self.samples.iter().map(of))
    }

    /// Compares with another case round by round: samples of one round are seconds apart, and the machine's speed
    /// drifts by the minute.
    pub(crate) fn compare(
        &self,
        other: &RedisCaseSamples,
        compare: impl Fn(&RedisSample, &RedisSample) -> f64,
    ) -> Option<Figure> {
        Figure::from_values(self.samples.iter().zip(&other.samples).map(|(a, b)| compare(a, b)))
    }
}

/// Measures the cases in turn; each round begins with a different case.
pub(crate) async fn rounds(
    title: &str,
    cases: Vec<RedisCase>,
    rounds: usize,
    span: SampleTiming,
) -> Result<Vec<RedisCaseSamples>, String> {
    let empty = |case: &RedisCase| RedisCaseSamples {
        name: case.name.clone(),
        load: case.load,
        peer: case.peer,
        samples: Vec::with_capacity(rounds),
    };
    let mut all: Vec<RedisCaseSamples> = cases.iter().map(empty).collect();
    for round in 0..rounds {
        eprintln!("{title}: round {} of {rounds}", round + 1);
        for turn in 0..cases.len() {
            let index = (round + turn) % cases.len();
            let case = &cases[index];
            all[index].samples.push(sample(case, span).await?);
        }
    }
    Ok(all)
}

/// Takes one sample. A shared machine may stall for as long as a sample lasts; the sample is repeated then.
async fn sample(case: &RedisCase, span: SampleTiming) -> Result<RedisSample, String> {
    for _ in 0..TRIES {
        let sample =
            load::sample(&case.contestants, case.keys, case.load, span, &case.servers).await;
        if sample.per_s > 0.0 {
            return Ok(sample);
        }
        eprintln!("{}: nothing was answered; once more", case.name);
    }
    Err(format!("{}: nothing was answered, {TRIES} times", case.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_compared_within_a_round() {
        let measured = |values: [f64; 3]| RedisCaseSamples {
            name: String::new(),
            load: RedisLoad::Closed { callers: 1 },
            peer: "",
            samples: values.map(|per_s| RedisSample { per_s, ..RedisSample::default() }).to_vec(),
        };
        // The machine is three times slower in the second round; b always has half of a.
        let (a, b) = (measured([6.0, 2.0, 6.0]), measured([3.0, 1.0, 3.0]));
        let times = a.compare(&b, |a, b| a.per_s / b.per_s);
        assert_eq!(times, Some(Figure { median: 2.0, min: 2.0, max: 2.0 }));
    }
}
