//! Rounds of samples: every contestant once, then all of them again.

use std::time::Duration;

use crate::stopwatch::median;

/// The times of one sample.
#[derive(Clone, Copy, Debug)]
pub struct SampleTiming {
    /// Time under load before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
}

/// The measurements of one sample of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerSample {
    /// Requests answered per second.
    pub requests_per_s: f64,
    /// Microseconds of processor time, user and system, that a request cost the server.
    pub server_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
}

/// A number measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Figure {
    /// Summarises values; `None` if there are none.
    pub fn from_values(values: impl Iterator<Item = f64>) -> Option<Figure> {
        let values: Vec<f64> = values.collect();
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(Figure { median: median(&values), min, max })
    }

    /// Half of the range as a percentage of the median.
    pub fn spread(&self) -> String {
        format!("±{:.0} %", (self.max - self.min) / 2.0 / self.median * 100.0)
    }
}

/// Everything measured: for each contestant one sample of each round, in the order of the rounds.
#[derive(Debug, Default)]
pub struct RoundResults(pub Vec<(String, Vec<ServerSample>)>);

impl RoundResults {
    /// Measures the contestants in turn; each round begins with a different one. `sample` takes a sample of the
    /// contestant at an index of `names`. A warm-up round does not count: most callers are new to the servers in
    /// it, which costs more.
    pub fn measure(
        names: &[String],
        rounds: usize,
        sample: impl Fn(usize) -> Result<ServerSample, String>,
    ) -> Result<RoundResults, String> {
        let sample =
            |index| sample(index).map_err(|problem| format!("{}: {problem}", names[index]));
        let mut results = RoundResults::default();
        results.0.extend(names.iter().map(|name| (name.clone(), Vec::with_capacity(rounds))));
        eprintln!("a round that does not count");
        (0..names.len()).try_for_each(|index| sample(index).map(drop))?;
        for round in 0..rounds {
            eprintln!("round {} of {rounds}", round + 1);
            for turn in 0..names.len() {
                let index = (round + turn) % names.len();
                results.0[index].1.push(sample(index)?);
            }
        }
        Ok(results)
    }

    /// The samples of one contestant, if it was measured.
    fn samples(&self, name: &str) -> Option<&[ServerSample]> {
        self.0.iter().find(|(its_name, _)| its_name == name).map(|(_, samples)| &samples[..])
    }

    /// Summarises one number of a contestant.
    pub fn figure(&self, name: &str, of: impl Fn(&ServerSample) -> f64) -> Option<Figure> {
        Figure::from_values(self.samples(name)?.iter().map(of))
    }

    /// Compares two contestants round by round: samples of one round are seconds apart, and the
    /// machine's speed drifts by the minute.
    pub fn compare(
        &self,
        a: &str,
        b: &str,
        compare: impl Fn(&ServerSample, &ServerSample) -> f64,
    ) -> Option<Figure> {
        let pairs = self.samples(a)?.iter().zip(self.samples(b)?);
        Figure::from_values(pairs.map(|(a, b)| compare(a, b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn contestants_are_compared_within_a_round() {
        let sample = |server_us| ServerSample { server_us, ..ServerSample::default() };
        let samples = |values: [f64; 3]| values.map(sample).to_vec();
        // The machine is three times slower in the second round; b always costs half of a.
        let results = RoundResults(vec![
            ("a".into(), samples([2.0, 6.0, 2.0])),
            ("b".into(), samples([1.0, 3.0, 1.0])),
        ]);
        let measured = results.compare("a", "b", |a, b| a.server_us / b.server_us);
        assert_eq!(measured, Some(Figure { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(results.compare("a", "c", |a, _| a.server_us), None);
    }

    #[test]
    fn each_round_begins_with_another_one_and_the_first_does_not_count() {
        let turns = RefCell::new(Vec::new());
        let sample = |index: usize| {
            turns.borrow_mut().push(index);
            Ok(ServerSample {
                requests_per_s: turns.borrow().len() as f64,
                ..ServerSample::default()
            })
        };
        let results = RoundResults::measure(&["a".into(), "b".into()], 2, sample).unwrap();
        assert_eq!(*turns.borrow(), [0, 1, 0, 1, 1, 0]);
        let of_a = results.figure("a", |it| it.requests_per_s);
        assert_eq!(of_a, Some(Figure { median: 4.5, min: 3.0, max: 6.0 }));
        let refused = RoundResults::measure(&["a".into()], 1, |_| Err("it is gone".into()));
        assert_eq!(refused.unwrap_err(), "a: it is gone");
    }
}
