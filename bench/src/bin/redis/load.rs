//! The load on contestants: callers that wait for each answer (closed loop), or a given rate that does not
//! depend on the answers (open loop). One thread generates it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::{JoinSet, LocalSet, yield_now};
use tollgate_bench::random::BenchRandom;
use tollgate_bench::rounds::SampleTiming;
use tollgate_bench::stopwatch::{Stopwatch, processor_ns_of};

use crate::contestants::RedisContestant;
use crate::servers::RedisBenchServers;

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RedisLoad {
    /// A number of callers, each with one request in flight.
    Closed { callers: usize },
    /// A number of requests per second, at random intervals.
    Open { per_s: f64 },
}

/// The keys that callers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisKeyChoice {
    /// A number of keys, all equally likely.
    Many(u64),
    /// One key for all callers.
    One,
}

/// The measurements of one sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RedisSample {
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Processor time of all Redis processes for each decision.
    pub(crate) redis_us: f64,
    /// Processor time of the client's thread for each decision.
    pub(crate) client_us: f64,
    /// Script calls for each decision.
    pub(crate) calls: f64,
    /// Time in scripts for each decision, by Redis' own statistics.
    pub(crate) script_us: f64,
    /// Share of decisions that allowed the request.
    pub(crate) allowed: f64,
    /// Share of decisions that got no answer or were not made by Redis.
    pub(crate) failed: f64,
}

/// Maximum of requests in flight in an open loop; one more is not sent and counts as failed.
const IN_FLIGHT_MAX: usize = 20_000;
/// Number of answers without a wait after which a caller yields to the others.
const YIELD_EVERY: u32 = 64;
/// Interval of timed decisions if answers may come without a wait: two readings of the clock cost as much as
/// a decision in this process.
const TIME_EVERY: u32 = 16;

struct RedisRun {
    contestants: Vec<Rc<RedisContestant>>,
    keys: RedisKeyChoice,
    finished: Cell<bool>,
    asked: Cell<u64>,
    answered: Cell<u64>,
    allowed: Cell<u64>,
    failed: Cell<u64>,
    /// Latencies in nanoseconds.
    waits: RefCell<Histogram<u64>>,
    random: RefCell<BenchRandom>,
}

impl RedisRun {
    fn next_key(&self) -> u64 {
        match self.keys {
            RedisKeyChoice::Many(count) => self.random.borrow_mut().below(count),
            RedisKeyChoice::One => 0,
        }
    }

    fn count(&self, answer: Result<bool, String>) {
        self.answered.set(self.answered.get() + 1);
        match answer {
            Ok(allowed) => self.allowed.set(self.allowed.get() + u64::from(allowed)),
            Err(_) => self.failed.set(self.failed.get() + 1),
        }
    }

    fn record_wait(&self, wait: Duration) {
        self.waits.borrow_mut().saturating_record(wait.as_nanos() as u64);
    }
}

/// Puts the contestants under load and measures. Each caller uses one contestant.
pub(crate) async fn sample(
    contestants: &[Rc<RedisContestant>],
    keys: RedisKeyChoice,
    load: RedisLoad,
    span: SampleTiming,
    servers: &RedisBenchServers,
) -> RedisSample {
    let run = Rc::new(RedisRun {
        contestants: contestants.to_vec(),
        keys,
        finished: Cell::new(false),
        asked: Cell::default(),
        answered: Cell::default(),
        allowed: Cell::default(),
        failed: Cell::default(),
        waits: RefCell::new(Histogram::new_with_max(60_000_000_000, 3).expect("valid bounds")),
        random: RefCell::new(BenchRandom::new(1)),
    });
    // Read before and after everything: a command to the server in between would delay the others.
    let calls_before = servers.script_calls();
    let local = LocalSet::new();
    let counted = local.run_until(async {
        let mut tasks = JoinSet::new();
        match load {
            RedisLoad::Closed { callers } => {
                for index in 0..callers {
                    tasks.spawn_local(caller(Rc::clone(&run), index));
                }
            }
            RedisLoad::Open { per_s } => {
                tasks.spawn_local(generator(Rc::clone(&run), per_s));
            }
        }
        let counted = watch(&run, span, servers).await;
        run.finished.set(true);
        while tasks.join_next().await.is_some() {}
        counted
    });
    let counted = counted.await;
    let calls = servers.script_calls();
    let per_answer = |count: u64| count as f64 / run.answered.get() as f64;
    RedisSample {
        calls: per_answer(calls.count - calls_before.count),
        script_us: per_answer(calls.inside_us - calls_before.inside_us),
        ..counted
    }
}

/// Waits for the end of the warm-up, then measures for the duration of the sample.
async fn watch(run: &RedisRun, span: SampleTiming, servers: &RedisBenchServers) -> RedisSample {
    tokio::time::sleep(span.warm_up).await;
    run.waits.borrow_mut().reset();
    let cpu = || servers.pids().iter().filter_map(|pid| processor_ns_of(*pid)).sum::<u64>();
    let before = (run.answered.get(), run.allowed.get(), run.failed.get());
    let (cpu_before, stopwatch) = (cpu(), Stopwatch::start());
    tokio::time::sleep(span.duration).await;
    let (cpu_ns, client_ns, elapsed) =
        (cpu() - cpu_before, stopwatch.processor_ns(), stopwatch.elapsed());
    let answered = (run.answered.get() - before.0) as f64;
    let allowed = (run.allowed.get() - before.1) as f64;
    let failed = (run.failed.get() - before.2) as f64;
    let waits = run.waits.borrow();
    let wait_us = |quantile| waits.value_at_quantile(quantile) as f64 / 1_000.0;
    RedisSample {
        per_s: answered / elapsed.as_secs_f64(),
        p50_us: wait_us(0.5),
        p99_us: wait_us(0.99),
        p999_us: wait_us(0.999),
        redis_us: cpu_ns as f64 / 1_000.0 / answered,
        client_us: client_ns as f64 / 1_000.0 / answered,
        calls: 0.0,
        script_us: 0.0,
        allowed: allowed / answered,
        failed: failed / answered,
    }
}

/// One caller: sends a request, waits for the answer, and repeats.
async fn caller(run: Rc<RedisRun>, index: usize) {
    let contestant = Rc::clone(&run.contestants[index % run.contestants.len()]);
    let timed = if contestant.may_answer_at_once() { TIME_EVERY } else { 1 };
    let mut count = 0_u32;
    while !run.finished.get() {
        let key = run.next_key();
        if count.is_multiple_of(timed) {
            let stopwatch = WallStopwatch::start();
            let answer = contestant.ask(key).await;
            run.record_wait(stopwatch.elapsed());
            run.count(answer);
        } else {
            let answer = contestant.ask(key).await;
            run.count(answer);
        }
        count = count.wrapping_add(1);
        if count.is_multiple_of(YIELD_EVERY) {
            yield_now().await;
        }
    }
}

/// Sends requests at random instants without waiting for answers. The latency of a late request counts from the
/// instant at which it was due.
async fn generator(run: Rc<RedisRun>, per_s: f64) {
    let mean_ns = 1e9 / per_s;
    let mut random = BenchRandom::new(2);
    let clock = WallStopwatch::start();
    let mut due_ns = 0.0;
    let mut tasks = JoinSet::new();
    while !run.finished.get() {
        let now_ns = clock.elapsed().as_nanos() as f64;
        while due_ns <= now_ns {
            let due = Duration::from_nanos(due_ns as u64);
            due_ns += random.exponential(mean_ns);
            let number = run.asked.get();
            run.asked.set(number + 1);
            if tasks.len() >= IN_FLIGHT_MAX {
                run.count(Err("too many are on the way".into()));
                continue;
            }
            let run = Rc::clone(&run);
            tasks.spawn_local(async move {
                let contestant = &run.contestants[number as usize % run.contestants.len()];
                let answer = contestant.ask(run.next_key()).await;
                run.record_wait(clock.elapsed().saturating_sub(due));
                run.count(answer);
            });
        }
        while tasks.try_join_next().is_some() {}
        // Polls the sockets and continues at once: a timer would be a millisecond late.
        yield_now().await;
    }
    while tasks.join_next().await.is_some() {}
}

/// Elapsed time without the cost of reading processor time.
#[derive(Clone, Copy)]
struct WallStopwatch(tokio::time::Instant);

impl WallStopwatch {
    fn start() -> WallStopwatch {
        WallStopwatch(tokio::time::Instant::now())
    }

    fn elapsed(self) -> Duration {
        tokio::time::Instant::now() - self.0
    }
}
