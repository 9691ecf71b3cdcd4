//! One server: the line of calls for it, whether it is worth asking, and the task that keeps it
//! connected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate::store::breaker::{Breaker, Pass};
use tollgate::{Micros, Wait};

use crate::batch::{Answer, Ask, Failure, Job, Manner, Script, Seat, share};
use crate::connect::{Introduction, connect};
use crate::error::{ErrorClass, StoreError};
use crate::pipe::Pipe;
use crate::sentinel::Finder;
use crate::stats::{Counters, NodeStats};
use crate::url::Address;

/// Calls that wait or are on their way. One more is told at once.
pub(crate) const CALLS_MAX: usize = 4096;
/// Pauses between attempts to connect: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(1000);
/// A connection that ended sooner counts as one more attempt that failed.
const SETTLED: Duration = Duration::from_secs(1);

/// One server.
pub(crate) struct Node {
    line: Mutex<Line>,
    /// Instants are told to the breaker as microseconds since this one.
    started: Instant,
    pub(crate) usage: Usage,
    pub(crate) counters: Arc<Counters>,
}

/// How servers are asked.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Whether a script call has keys of one slot only.
    pub(crate) by_slot: bool,
    pub(crate) script: &'static Script,
    /// How long callers wait for an answer.
    pub(crate) patience: Duration,
}

/// Calls that wait for a place in the pipeline, and what is known of the server.
struct Line {
    /// Bound: [`CALLS_MAX`], together with `on_the_way`.
    jobs: VecDeque<Job>,
    /// How many calls ever came: the number of the last.
    entered: u64,
    on_the_way: usize,
    /// The millisecond in which those who have gone were last looked for.
    swept_ms: u64,
    phase: Phase,
    breaker: Breaker,
    /// Of the connection's task, if it waits for calls.
    waker: Option<Waker>,
    /// The connection is to end when what is on its way has come back.
    hang_up: Option<StoreError>,
    address: Option<Address>,
    /// It stays as it is, down, and its task ends.
    retired: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Not connected, and not yet known to be out of reach: calls wait until their deadline.
    Connecting,
    Up,
    /// Out of reach: calls are told why, at once.
    Down(StoreError),
}

impl Node {
    pub(crate) fn new(usage: Usage, counters: Arc<Counters>) -> Node {
        let line = Line {
            jobs: VecDeque::new(),
            entered: 0,
            on_the_way: 0,
            swept_ms: 0,
            phase: Phase::Connecting,
            breaker: Breaker::new(random()),
            waker: None,
            hang_up: None,
            address: None,
            retired: false,
        };
        Node { line: Mutex::new(line), started: Instant::now(), usage, counters }
    }

    /// Runs a command that is no call.
    pub(crate) async fn run(&self, command: Cmd, deadline: Instant) -> Result<Value, StoreError> {
        let answer = self.ask(Ask::Command(command), Manner::default(), None, deadline).await;
        answer.map_err(|failure| failure.error)
    }

    /// Asks, and waits for the answer until the deadline. `pass`: leave that a call has already.
    pub(crate) async fn ask(
        &self,
        ask: Ask,
        manner: Manner,
        pass: Option<Pass>,
        deadline: Instant,
    ) -> Answer {
        let Waiting { mut answer, number, pass } = self.enter(ask, manner, pass, deadline)?;
        let failure = match timeout_at(deadline, &mut answer).await {
            Ok(Ok(Ok(value))) => return Ok(value),
            Ok(Ok(Err(failure))) => failure,
            // The connection's task is gone, and its runtime with it.
            Ok(Err(_)) => StoreError::new(ErrorClass::Closed, "the store was stopped").into(),
            Err(_) => {
                // Once it is closed, a call that still stands in line is never sent.
                answer.close();
                match self.line().is_waiting(number) {
                    true => too_late().undone().into(),
                    false => too_late().into(),
                }
            }
        };
        if let Some(pass) = pass
            && failure.error.class.opens_breaker()
        {
            let now = self.now();
            self.line().breaker.failed(pass, now);
        }
        Err(failure)
    }

    fn enter(
        &self,
        ask: Ask,
        manner: Manner,
        pass: Option<Pass>,
        deadline: Instant,
    ) -> Result<Waiting, Failure> {
        // Whoever comes too late to be asked says nothing about the server.
        if deadline <= Instant::now() {
            return Err(too_late().undone().into());
        }
        let now = self.now();
        let mut line = self.line();
        if let Phase::Down(why) = &line.phase {
            return Err(Failure::undone(why.clone(), ask));
        }
        let is_call = matches!(ask, Ask::Call(_));
        let pass = if is_call { pass.or_else(|| line.breaker.admit(now)) } else { None };
        if is_call && pass.is_none() {
            let error = StoreError::new(ErrorClass::BreakerOpen, "it has not answered lately");
            return Err(error.into());
        }
        if line.is_full(now) {
            if let Some(pass) = pass {
                line.breaker.failed(pass, now);
            }
            let detail = format!("{CALLS_MAX} calls are on their way");
            return Err(StoreError::new(ErrorClass::Overloaded, detail).into());
        }
        let (reply, answer) = oneshot::channel();
        line.entered += 1;
        let number = line.entered;
        line.jobs.push_back(Job { ask, manner, seat: Seat { number, deadline, pass, reply } });
        let waker = line.waker.take();
        drop(line);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(Waiting { answer, number, pass })
    }

    /// Takes what waits, for a flight when there are so many `others`; nothing: whoever has `waker` is
    /// woken by the next call.
    pub(crate) fn take(&self, waker: &Waker, others: usize) -> Result<Vec<Job>, StoreError> {
        let now = Instant::now();
        let mut line = self.line();
        if let Some(why) = line.hang_up.take() {
            return Err(why);
        }
        let mut jobs = Vec::new();
        let share = share(line.jobs.len() + line.on_the_way, others);
        while jobs.len() < share
            && let Some(job) = line.jobs.pop_front()
        {
            // Whoever has gone needs no answer, and is not charged for one; nor is whoever will look
            // too late.
            if job.seat.reply.is_closed() {
                continue;
            }
            if job.seat.deadline <= now {
                let _ = job.seat.reply.send(Err(too_late().undone().into()));
                continue;
            }
            jobs.push(job);
        }
        line.on_the_way += jobs.len();
        if jobs.is_empty() {
            line.waker = Some(waker.clone());
        }
        Ok(jobs)
    }

    /// So many came back. `passes`: of those that were answered in time.
    pub(crate) fn came_back(&self, count: usize, passes: impl Iterator<Item = Pass>) {
        let now = self.now();
        let mut line = self.line();
        line.on_the_way -= count;
        passes.for_each(|pass| line.breaker.succeeded(pass, now));
    }

    /// Ends the present connection: another may lead to another server.
    pub(crate) fn hang_up(&self, why: StoreError) {
        let mut line = self.line();
        line.hang_up = Some(why);
        if let Some(waker) = line.waker.take() {
            waker.wake();
        }
    }

    /// It is no longer part of the cluster: whoever waits asks whoever is, and what is on its way
    /// comes back.
    pub(crate) fn retire(&self) {
        let why = StoreError::new(ErrorClass::Moved, "the node has left the cluster");
        self.set_phase(Phase::Down(why.clone()));
        self.line().retired = true;
        self.hang_up(why);
    }

    fn is_retired(&self) -> bool {
        self.line().retired
    }

    /// Where it is connected to, or tries to be.
    pub(crate) fn address(&self) -> Option<Address> {
        self.line().address.clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.line().phase, Phase::Up)
    }

    pub(crate) fn stats(&self) -> NodeStats {
        let now = self.now();
        let line = self.line();
        NodeStats {
            address: line.address.as_ref().map(Address::to_string).unwrap_or_default(),
            up: matches!(line.phase, Phase::Up),
            down: match &line.phase {
                Phase::Down(why) => Some(why.clone()),
                _ => None,
            },
            breaker_open: line.breaker.is_open(),
            breaker_opened: line.breaker.opened(),
            breaker_wait: line.breaker.wait(now).duration().unwrap_or(Duration::ZERO),
            waiting: line.jobs.len(),
            on_the_way: line.on_the_way,
        }
    }

    fn set_phase(&self, phase: Phase) {
        let now = self.now();
        let mut line = self.line();
        if line.retired {
            return;
        }
        let left = match &phase {
            Phase::Up => {
                // What made it hang up was said of another connection.
                line.hang_up = None;
                line.breaker.may_be_back(now);
                VecDeque::new()
            }
            Phase::Connecting => VecDeque::new(),
            Phase::Down(_) => std::mem::take(&mut line.jobs),
        };
        line.phase = phase.clone();
        drop(line);
        if let Phase::Down(why) = phase {
            for job in left {
                // It was not sent.
                let _ = job.seat.reply.send(Err(Failure::undone(why.clone(), job.ask)));
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing in here is left half done by a panic.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        let since = Instant::now().saturating_duration_since(self.started);
        Micros::ZERO.after(Wait::at_least(since))
    }
}

/// A call that has entered the line.
struct Waiting {
    answer: oneshot::Receiver<Answer>,
    number: u64,
    pass: Option<Pass>,
}

impl Line {
    /// Whether the call of this number was not sent yet. They stand in the order of their numbers.
    fn is_waiting(&self, number: u64) -> bool {
        self.jobs.binary_search_by_key(&number, |job| job.seat.number).is_ok()
    }

    fn is_full(&mut self, now: Micros) -> bool {
        let is_full = |line: &Line| line.jobs.len() + line.on_the_way >= CALLS_MAX;
        // Those who have gone make room, wherever they stand: some have more patience than others.
        // Looked for at most once in a millisecond, because it takes a while.
        if is_full(self) && now.as_u64() / 1000 != self.swept_ms {
            self.swept_ms = now.as_u64() / 1000;
            self.jobs.retain(|job| !job.seat.reply.is_closed());
        }
        is_full(self)
    }
}

fn too_late() -> StoreError {
    StoreError::new(ErrorClass::Timeout, "no answer within the deadline")
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure { error, again: None, pass: None }
    }
}

/// Keeps a node connected, until it is retired.
pub(crate) async fn keep_connected(node: Arc<Node>, finder: Finder, introduction: Introduction) {
    let mut failed = 0;
    while !node.is_retired() {
        match attempt(&node, &finder, &introduction, failed).await {
            Ok((pipe, since)) => {
                let why = pipe.serve(&node).await;
                if since.elapsed() >= SETTLED {
                    failed = 0;
                    // At once, and meanwhile calls may wait: most connections end for a reason
                    // that a new one does not meet.
                    node.set_phase(Phase::Connecting);
                    continue;
                }
                node.counters.count(why.class);
                node.set_phase(Phase::Down(why));
            }
            Err(why) => {
                finder.doubt();
                node.counters.count(why.class);
                node.set_phase(Phase::Down(why));
            }
        }
        failed += 1;
        tokio::time::sleep(pause(failed)).await;
    }
}

async fn attempt(
    node: &Node,
    finder: &Finder,
    introduction: &Introduction,
    failed: u32,
) -> Result<(Pipe, Instant), StoreError> {
    let address = finder.find().await?;
    node.line().address = Some(address.clone());
    let connection = connect(&address, introduction, node.usage.script, failed as usize).await?;
    node.counters.connected();
    node.set_phase(Phase::Up);
    Ok((Pipe::new(connection, node.usage.patience), Instant::now()))
}

/// Doubles each time, up to a second; up to a quarter less, so that instances do not come at once.
fn pause(failed: u32) -> Duration {
    let pause = PAUSE_MIN.saturating_mul(1 << (failed - 1).min(10)).min(PAUSE_MAX);
    pause - pause.mul_f64((random() % 1000) as f64 / 4000.0)
}

/// Not for secrets: only so that instances differ.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;
    use crate::call::Call;

    #[tokio::test]
    async fn whoever_comes_too_late_to_be_asked_says_nothing_about_the_server() {
        let patience = Duration::from_millis(10);
        let usage = Usage { by_slot: false, script: &crate::tests::COUNTING, patience };
        let node = Node::new(usage, Arc::default());
        for _ in 0..100 {
            let call = Call { slot: 0, keys: vec![], limits: vec![], body: None, now: None };
            let answer = node.ask(Ask::Call(call), Manner::default(), None, Instant::now()).await;
            assert_eq!(answer.unwrap_err().error.class, ErrorClass::Timeout);
        }
        let stats = node.stats();
        assert_eq!((stats.breaker_opened, stats.waiting), (0, 0));
    }

    #[tokio::test]
    async fn those_who_have_gone_make_room_behind_whoever_still_waits() {
        let patience = Duration::from_millis(10);
        let usage = Usage { by_slot: false, script: &crate::tests::COUNTING, patience };
        let node = Node::new(usage, Arc::default());
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut patient = std::pin::pin!(node.run(redis::cmd("PING"), deadline));
        let enter = |one: Pin<&mut dyn Future<Output = _>>| {
            let _: Poll<Result<Value, StoreError>> =
                one.poll(&mut Context::from_waker(Waker::noop()));
        };
        enter(patient.as_mut());
        for _ in 1..CALLS_MAX {
            enter(std::pin::pin!(node.run(redis::cmd("PING"), deadline)));
        }
        assert_eq!(node.stats().waiting, CALLS_MAX);
        enter(std::pin::pin!(node.run(redis::cmd("PING"), deadline)));
        assert_eq!(node.stats().waiting, 2, "the patient one and the last");
    }

    #[test]
    fn pauses_double_up_to_a_second_and_differ() {
        for (failed, most) in [(1, 50), (2, 100), (3, 200), (5, 800), (6, 1000), (60, 1000)] {
            let pauses: Vec<_> = (0..100).map(|_| pause(failed).as_millis()).collect();
            let most_ms: u128 = most;
            assert!(pauses.iter().all(|ms| (most_ms * 3 / 4 - 1..=most_ms).contains(ms)));
            let differ = pauses.iter().any(|ms| *ms != pauses[0]);
            assert!(differ, "instances would come at once: {pauses:?}");
        }
    }
}
