//! The stopwatch. This is the only file here that reads a clock.
//!
//! There are two clocks, because a shared machine takes the core away now and then. *Processor time* of the
//! calling thread does not count that, so the tables show it. Elapsed time says when to stop.
//!
//! `unsafe`: the standard library has no clock for processor time.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// A running stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    elapsed: Instant,
    processor_ns: u64,
}

impl Stopwatch {
    /// Starts a stopwatch.
    #[expect(clippy::disallowed_methods, reason = "measures; decides nothing about a limit")]
    pub fn start() -> Stopwatch {
        Stopwatch { elapsed: Instant::now(), processor_ns: processor_ns() }
    }

    /// The elapsed time.
    #[expect(clippy::disallowed_methods, reason = "measures; decides nothing about a limit")]
    pub fn elapsed(&self) -> Duration {
        Instant::now() - self.elapsed
    }

    /// Nanoseconds of processor time of this thread; call it on the thread that started the stopwatch.
    pub fn processor_ns(&self) -> u64 {
        processor_ns() - self.processor_ns
    }
}

fn processor_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
        .expect("Linux has a clock of processor time for every thread")
}

/// Nanoseconds of processor time, user and system, of all threads of another process, including threads that have
/// ended. `None` if there is no such process.
pub fn processor_ns_of(process: u32) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: writes one clock number, which outlives the call.
    let result = unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &raw mut clock) };
    if result == 0 { read(clock) } else { None }
}

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The median; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}
