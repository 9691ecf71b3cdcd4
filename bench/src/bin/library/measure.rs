//! Rounds of samples: every contestant once, then all of them again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use tollgate_bench::keys::{KeyDistribution, KeyStream};
use tollgate_bench::machine;
use tollgate_bench::stopwatch::{Stopwatch, median};

use crate::allocations;
use crate::contestants::{CallerBuffers, LibraryContestant, LibraryQuota};

/// Keys between two readings of the stopwatch.
const BLOCK: usize = 4_096;

/// The number of threads and the keys of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ThreadLayout {
    /// One thread, all keys.
    One,
    /// Two threads, both with all keys.
    TwoShared,
    /// One thread with the first half of the keys, for comparison with `TwoApart`.
    OneApart,
    /// Two threads, each with its own half of the keys.
    TwoApart,
}

/// A case that is measured for each contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LibraryCase {
    pub(crate) keys: u64,
    pub(crate) shape: KeyDistribution,
    pub(crate) quota: LibraryQuota,
    pub(crate) threads: ThreadLayout,
}

/// The duration and number of samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryEffort {
    pub(crate) rounds: usize,
    pub(crate) sample: Duration,
}

/// Everything measured so far. Bound: cases times contestants.
#[derive(Default)]
pub(crate) struct LibraryResults {
    checks_per_us: HashMap<(LibraryCase, &'static str), Vec<f64>>,
    /// Number of checks watched for allocations, and number of allocations.
    allocations: HashMap<&'static str, (u64, u64)>,
}

impl LibraryResults {
    /// Million checks per second of all threads together, as the median over the rounds.
    pub(crate) fn rate(&self, case: LibraryCase, name: &'static str) -> Option<f64> {
        self.checks_per_us.get(&(case, name)).map(|samples| median(samples))
    }

    /// Nanoseconds per check in a case with one thread.
    pub(crate) fn ns(&self, case: LibraryCase, name: &'static str) -> Option<f64> {
        self.rate(case, name).map(|rate| 1_000.0 / rate)
    }

    /// Allocations per check.
    pub(crate) fn allocations(&self, name: &'static str) -> Option<f64> {
        let &(checks, allocations) = self.allocations.get(name)?;
        Some(allocations as f64 / checks as f64)
    }
}

/// Measures the contestants in these cases, interleaved.
pub(crate) fn rounds(
    contestants: &[Box<dyn LibraryContestant>],
    cases: &[LibraryCase],
    effort: LibraryEffort,
    results: &mut LibraryResults,
) {
    let streams: Vec<Vec<KeyStream>> = cases.iter().map(streams).collect();
    for round in 0..effort.rounds {
        for (case, streams) in cases.iter().zip(&streams) {
            for contestant in contestants {
                let samples = sample(&**contestant, streams, round, effort.sample);
                let rate =
                    samples.iter().map(|sample| sample.checks as f64 * 1_000.0 / sample.ns as f64);
                let key = (*case, contestant.name());
                results.checks_per_us.entry(key).or_default().push(rate.sum());
                if let [one] = &samples[..]
                    && case.quota != LibraryQuota::Idle
                {
                    let counted = results.allocations.entry(contestant.name()).or_default();
                    *counted = (counted.0 + one.checks, counted.1 + one.allocations);
                }
            }
            eprintln!(
                "  round {} of {}: {} keys, {}, {}, {:?}",
                round + 1,
                effort.rounds,
                case.keys,
                case.shape.name(),
                case.quota.name(),
                case.threads
            );
        }
    }
}

/// One stream for each thread.
fn streams(case: &LibraryCase) -> Vec<KeyStream> {
    let (all, half) = (0..case.keys, case.keys / 2);
    let ranges = match case.threads {
        ThreadLayout::One => vec![all],
        ThreadLayout::TwoShared => vec![all.clone(), all],
        ThreadLayout::OneApart => vec![Range { start: 0, end: half }],
        ThreadLayout::TwoApart => vec![0..half, half..case.keys],
    };
    let seeds = 1..;
    ranges
        .into_iter()
        .zip(seeds)
        .map(|(range, seed)| KeyStream::new(range, case.shape, seed))
        .collect()
}

struct LibrarySample {
    checks: u64,
    ns: u64,
    allocations: u64,
}

/// Runs one thread per stream, each on its own core.
fn sample(
    contestant: &dyn LibraryContestant,
    streams: &[KeyStream],
    round: usize,
    duration: Duration,
) -> Vec<LibrarySample> {
    let start = Barrier::new(streams.len());
    let run = |core: usize, stream: &KeyStream| {
        machine::pin(core);
        let mut blocks = blocks(stream, round);
        let mut desk = CallerBuffers::default();
        let mut ask = || {
            let block = blocks.next().expect("they come again and again");
            contestant.ask(stream, block.clone(), &mut desk);
            block.len() as u64
        };
        start.wait();
        let warm_up = Stopwatch::start();
        while warm_up.elapsed() < duration / 8 {
            ask();
        }
        let (before, watch) = (allocations::allocation_count(), Stopwatch::start());
        let mut checks = 0;
        while watch.elapsed() < duration {
            checks += ask();
        }
        let ns = watch.processor_ns();
        LibrarySample { checks, ns, allocations: allocations::allocation_count() - before }
    };
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |(core, stream)| scope.spawn(move || run(core, stream));
        let threads: Vec<_> = streams.iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("it measured")).collect()
    })
}

/// The stream block by block, without end, with a different start in each round.
fn blocks(stream: &KeyStream, round: usize) -> impl Iterator<Item = Range<usize>> {
    let count = stream.len() / BLOCK;
    (round * 37..).map(move |index| {
        let from = index % count * BLOCK;
        from..from + BLOCK
    })
}
