//! Runs a load: threads of connections that take the requests of a schedule, one at a time.
//!
//! The number of connections bounds the requests in flight. If all are busy, the next request waits, and its
//! latency counts from the time when it should have been sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::connection::{BenchConnection, LoadPeer};
use super::keys::KeySampler;
use super::record::{LoadOutcome, LoadRecord, RequestTimes};
use super::schedule::LoadSchedule;
use crate::data_plane::gateway::precise_timer::PreciseTimer;

/// Time for opening all connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between the last thread being ready and the first request.
const LEAD: Duration = Duration::from_millis(10);

/// A load to run.
#[derive(Debug)]
pub(super) struct LoadPlan {
    pub(super) peer: LoadPeer,
    pub(super) schedule: LoadSchedule,
    pub(super) connections: usize,
    pub(super) keys: KeySampler,
    /// Longest wait for one answer, and for the last answers after the end of the schedule.
    pub(super) timeout: Duration,
}

/// Counts of a load that runs, for the progress bar.
#[derive(Debug, Default)]
pub(super) struct LoadProgress {
    pub(super) allowed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// Shared by all threads of a load.
struct LoadRun {
    plan: LoadPlan,
    progress: Arc<LoadProgress>,
    /// Number of the next request.
    next: AtomicU64,
    timer: PreciseTimer,
    all_ready: Barrier,
    start: OnceLock<Instant>,
    has_failed: AtomicBool,
}

/// Runs the load and returns what happened; an error if a connection cannot be opened.
pub(super) fn run_load(plan: LoadPlan, progress: Arc<LoadProgress>) -> Result<LoadRecord, String> {
    let connections = plan.connections;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(connections);
    let (schedule, end) = (plan.schedule, plan.end());
    let run = Arc::new(LoadRun {
        plan,
        progress,
        next: AtomicU64::new(0),
        timer: PreciseTimer::default(),
        all_ready: Barrier::new(threads),
        start: OnceLock::new(),
        has_failed: AtomicBool::new(false),
    });
    let share = |index: usize| (connections + threads - 1 - index) / threads;
    let threads: Vec<_> = (0..threads)
        .map(|index| {
            let (run, share) = (run.clone(), share(index));
            thread::spawn(move || run_thread(&run, share))
        })
        .collect();
    let mut total = LoadRecord::new(schedule.duration());
    for thread in threads {
        total.merge(thread.join().expect("a thread of the load does not panic")?);
    }
    let sent = run.next.load(Ordering::Relaxed).min(schedule.requests());
    total.add_not_sent(sent..schedule.requests(), |number| schedule.offset(number), end);
    Ok(total)
}

/// Opens a thread's share of the connections, waits for the other threads, and drives its connections to the end.
fn run_thread(run: &Arc<LoadRun>, connections: usize) -> Result<LoadRecord, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let opened = match &runtime {
        Ok(runtime) => runtime.block_on(open_all(&run.plan.peer, connections)),
        Err(error) => Err(error.to_string()),
    };
    run.has_failed.fetch_or(opened.is_err(), Ordering::Relaxed);
    run.all_ready.wait();
    let record = LoadRecord::new(run.plan.schedule.duration());
    let (opened, runtime) = (opened?, runtime.map_err(|error| error.to_string())?);
    if run.has_failed.load(Ordering::Relaxed) {
        return Ok(record);
    }
    let record = Arc::new(Mutex::new(record));
    let start = *run.start.get_or_init(|| Instant::now() + LEAD);
    let cpu_before = thread_cpu_time();
    runtime.block_on(async {
        let mut driven = JoinSet::new();
        for connection in opened {
            driven.spawn(drive(run.clone(), start, connection, record.clone()));
        }
        driven.join_all().await;
    });
    let cpu = thread_cpu_time().saturating_sub(cpu_before);
    let wall = Instant::now().saturating_duration_since(start);
    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner).clone();
    record.busy_percent = (cpu.as_micros() * 100 / wall.as_micros().max(1)) as u64;
    Ok(record)
}

/// Opens all connections of a thread at once.
async fn open_all(peer: &LoadPeer, connections: usize) -> Result<Vec<BenchConnection>, String> {
    let mut opening = JoinSet::new();
    for _ in 0..connections {
        let peer = peer.clone();
        opening.spawn(async move { BenchConnection::open(&peer).await });
    }
    let opened = timeout(CONNECT_TIMEOUT, opening.join_all()).await;
    opened.map_err(|_| "connecting takes too long".to_string())?.into_iter().collect()
}

/// Sends requests over one connection until the schedule is done.
async fn drive(
    run: Arc<LoadRun>,
    start: Instant,
    connection: BenchConnection,
    record: Arc<Mutex<LoadRecord>>,
) {
    let plan = &run.plan;
    let mut connection = Some(connection);
    while let Some(number) = run.take_number(start) {
        let intended = plan.schedule.offset(number);
        let ready = start.elapsed().max(intended);
        let wait = (start + intended).saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            run.timer.sleep(wait).await;
        }
        let key = format!("bench-{}", plan.keys.key(number));
        let sent = start.elapsed();
        let answer = timeout(plan.timeout, ask(&plan.peer, &mut connection, &key)).await;
        let outcome = answer.unwrap_or(LoadOutcome::TimedOut);
        if matches!(outcome, LoadOutcome::TimedOut) {
            // The answer may still come; it must not be taken for that of the next request.
            connection = None;
        }
        run.progress.count(&outcome);
        let times = RequestTimes { intended, ready, sent, answered: start.elapsed() };
        record.lock().unwrap_or_else(PoisonError::into_inner).add(&times, outcome);
    }
}

/// Sends one request, over a new connection if there is none.
async fn ask(peer: &LoadPeer, connection: &mut Option<BenchConnection>, key: &str) -> LoadOutcome {
    let kept = match connection.take() {
        Some(mut open) => open.is_ready().await.then_some(open),
        None => None,
    };
    let mut open = match kept {
        Some(open) => open,
        None => match BenchConnection::open(peer).await {
            Ok(open) => open,
            Err(error) => return LoadOutcome::Failed(format!("cannot connect: {error}")),
        },
    };
    match open.send(key).await {
        Ok(outcome) => {
            *connection = Some(open);
            outcome
        }
        Err(error) => LoadOutcome::Failed(error),
    }
}

impl LoadPlan {
    /// The time, counted from the start, after which no request is sent.
    fn end(&self) -> Duration {
        self.schedule.duration() + self.timeout
    }
}

impl LoadRun {
    /// Takes the number of the next request; `None` after the last one and after the end.
    fn take_number(&self, start: Instant) -> Option<u64> {
        if start.elapsed() > self.plan.end() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.plan.schedule.requests()).then_some(number)
    }
}

impl LoadProgress {
    fn count(&self, outcome: &LoadOutcome) {
        let counter = match outcome {
            LoadOutcome::Allowed => &self.allowed,
            LoadOutcome::Refused => &self.refused,
            LoadOutcome::TimedOut | LoadOutcome::Failed(_) => &self.errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Processor time of the calling thread; zero where the system does not tell.
fn thread_cpu_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::from_secs(time.tv_sec as u64) + Duration::from_nanos(time.tv_nsec as u64)
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}
