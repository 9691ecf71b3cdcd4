//! One server: the line of calls for it, whether it is worth asking, and the task that keeps it
//! connected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tollgate::store::breaker::{Breaker, BreakerPass};
use tollgate::{Micros, Wait};

use crate::error::{ErrorClass, StoreError};
use crate::transport::batch::{
    NodeFailure, NodeRequest, NodeResult, PendingReply, QueuedRequest, Script, SendOptions,
    calls_per_flight,
};
use crate::transport::command::RedisCommand;
use crate::transport::connect::{HandshakeOptions, connect};
use crate::transport::pipe::Pipe;
use crate::transport::sentinel::ServerFinder;
use crate::transport::stats::{LinkCounters, NodeStats};
use crate::transport::url::Address;
use crate::transport::value::RedisValue;

/// Calls queued or in flight. One more fails at once.
pub(crate) const CALLS_MAX: usize = 4096;
/// Pauses between attempts to connect: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(1000);
/// A connection that ended sooner counts as one more attempt that failed.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// One server.
pub(crate) struct RedisNode {
    queue: Mutex<CallQueue>,
    /// The origin of the breaker's clock.
    started: Instant,
    pub(crate) options: NodeOptions,
    pub(crate) counters: Arc<LinkCounters>,
}

/// The options of a node.
#[derive(Clone, Copy)]
pub(crate) struct NodeOptions {
    /// True if a script call may only have keys of one slot.
    pub(crate) by_slot: bool,
    pub(crate) script: &'static Script,
    /// Timeout of callers.
    pub(crate) caller_timeout: Duration,
}

/// Calls that wait for a place in the pipeline, and what is known of the server.
struct CallQueue {
    /// Bound: [`CALLS_MAX`], together with `in_flight`.
    jobs: VecDeque<QueuedRequest>,
    /// Number of calls so far, and so the number of the last.
    last_number: u64,
    in_flight: usize,
    /// The millisecond in which those who have gone were last looked for.
    swept_ms: u64,
    phase: NodePhase,
    breaker: Breaker,
    /// The waker of the connection's task, if it waits for calls.
    waker: Option<Waker>,
    /// The connection is to end when what is on its way has come back.
    disconnect_reason: Option<StoreError>,
    address: Option<Address>,
    /// It stays as it is, down, and its task ends.
    retired: bool,
}

#[derive(Clone, Debug)]
enum NodePhase {
    /// Not connected, and not yet known to be out of reach: calls wait until their deadline.
    Connecting,
    Up,
    /// Unreachable: calls fail at once with this error.
    Down(StoreError),
}

impl RedisNode {
    pub(crate) fn new(usage: NodeOptions, counters: Arc<LinkCounters>) -> RedisNode {
        let line = CallQueue {
            jobs: VecDeque::new(),
            last_number: 0,
            in_flight: 0,
            swept_ms: 0,
            phase: NodePhase::Connecting,
            breaker: Breaker::new(random()),
            waker: None,
            disconnect_reason: None,
            address: None,
            retired: false,
        };
        RedisNode { queue: Mutex::new(line), started: Instant::now(), options: usage, counters }
    }

    /// Runs a command that is no call.
    pub(crate) async fn run(
        &self,
        command: RedisCommand,
        deadline: Instant,
    ) -> Result<RedisValue, StoreError> {
        let answer =
            self.ask(NodeRequest::Command(command), SendOptions::default(), None, deadline).await;
        answer.map_err(|failure| failure.error)
    }

    /// Asks, and waits for the answer until the deadline. `pass`: leave that a call has already.
    pub(crate) async fn ask(
        &self,
        ask: NodeRequest,
        manner: SendOptions,
        pass: Option<BreakerPass>,
        deadline: Instant,
    ) -> NodeResult {
        let QueuedCall { mut answer, number, pass } = self.enqueue(ask, manner, pass, deadline)?;
        let failure = match timeout_at(deadline, &mut answer).await {
            Ok(Ok(Ok(value))) => return Ok(value),
            Ok(Ok(Err(failure))) => failure,
            // The connection's task is gone, and its runtime with it.
            Ok(Err(_)) => StoreError::new(ErrorClass::Closed, "the store was stopped").into(),
            Err(_) => {
                // Once it is closed, a call that still stands in line is never sent.
                answer.close();
                match self.lock_queue().is_waiting(number) {
                    true => too_late().mark_not_executed().into(),
                    false => too_late().into(),
                }
            }
        };
        if let Some(pass) = pass
            && failure.error.class.opens_breaker()
        {
            let now = self.now();
            self.lock_queue().breaker.failed(pass, now);
        }
        Err(failure)
    }

    fn enqueue(
        &self,
        ask: NodeRequest,
        manner: SendOptions,
        pass: Option<BreakerPass>,
        deadline: Instant,
    ) -> Result<QueuedCall, NodeFailure> {
        // A call that comes too late to be sent says nothing about the server.
        if deadline <= Instant::now() {
            return Err(too_late().mark_not_executed().into());
        }
        let now = self.now();
        let mut line = self.lock_queue();
        if let NodePhase::Down(why) = &line.phase {
            return Err(NodeFailure::not_executed(why.clone(), ask));
        }
        let is_call = matches!(ask, NodeRequest::Call(_));
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
        line.last_number += 1;
        let number = line.last_number;
        line.jobs.push_back(QueuedRequest {
            request: ask,
            options: manner,
            pending_reply: PendingReply { arrival_number: number, deadline, pass, reply },
        });
        let waker = line.waker.take();
        drop(line);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(QueuedCall { answer, number, pass })
    }

    /// Takes queued calls for the next flight, `others` being in flight. If there is none, the next
    /// call wakes `waker`.
    pub(crate) fn take_queued(
        &self,
        waker: &Waker,
        others: usize,
    ) -> Result<Vec<QueuedRequest>, StoreError> {
        let now = Instant::now();
        let mut line = self.lock_queue();
        if let Some(why) = line.disconnect_reason.take() {
            return Err(why);
        }
        let mut jobs = Vec::new();
        let share = calls_per_flight(line.jobs.len() + line.in_flight, others);
        while jobs.len() < share
            && let Some(job) = line.jobs.pop_front()
        {
            // A caller that has gone needs no answer and must not be charged; nor must one whose
            // deadline has passed.
            if job.pending_reply.reply.is_closed() {
                continue;
            }
            if job.pending_reply.deadline <= now {
                let _ = job.pending_reply.reply.send(Err(too_late().mark_not_executed().into()));
                continue;
            }
            jobs.push(job);
        }
        line.in_flight += jobs.len();
        if jobs.is_empty() {
            line.waker = Some(waker.clone());
        }
        Ok(jobs)
    }

    /// Removes finished calls from the count; `passes` are those of calls that were answered in
    /// time.
    pub(crate) fn complete(&self, count: usize, passes: impl Iterator<Item = BreakerPass>) {
        let now = self.now();
        let mut line = self.lock_queue();
        line.in_flight -= count;
        passes.for_each(|pass| line.breaker.succeeded(pass, now));
    }

    /// Ends the present connection: another may lead to another server.
    pub(crate) fn disconnect(&self, why: StoreError) {
        let mut line = self.lock_queue();
        line.disconnect_reason = Some(why);
        if let Some(waker) = line.waker.take() {
            waker.wake();
        }
    }

    /// Removes the node from use, because it left the cluster: queued calls go to other nodes, and
    /// those in flight are answered.
    pub(crate) fn retire(&self) {
        let why = StoreError::new(ErrorClass::Moved, "the node has left the cluster");
        self.set_phase(NodePhase::Down(why.clone()));
        self.lock_queue().retired = true;
        self.disconnect(why);
    }

    fn is_retired(&self) -> bool {
        self.lock_queue().retired
    }

    /// The address of the connection, or of the attempt to connect.
    pub(crate) fn address(&self) -> Option<Address> {
        self.lock_queue().address.clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.lock_queue().phase, NodePhase::Up)
    }

    pub(crate) fn stats(&self) -> NodeStats {
        let now = self.now();
        let line = self.lock_queue();
        NodeStats {
            address: line.address.as_ref().map(Address::to_string).unwrap_or_default(),
            up: matches!(line.phase, NodePhase::Up),
            down: match &line.phase {
                NodePhase::Down(why) => Some(why.clone()),
                _ => None,
            },
            breaker_open: line.breaker.is_open(),
            breaker_opened: line.breaker.times_opened(),
            breaker_wait: line.breaker.wait(now).duration().unwrap_or(Duration::ZERO),
            waiting: line.jobs.len(),
            in_flight: line.in_flight,
        }
    }

    fn set_phase(&self, phase: NodePhase) {
        let now = self.now();
        let mut line = self.lock_queue();
        if line.retired {
            return;
        }
        let left = match &phase {
            NodePhase::Up => {
                // What made it hang up was said of another connection.
                line.disconnect_reason = None;
                line.breaker.allow_probe(now);
                VecDeque::new()
            }
            NodePhase::Connecting => VecDeque::new(),
            NodePhase::Down(_) => std::mem::take(&mut line.jobs),
        };
        line.phase = phase.clone();
        drop(line);
        if let NodePhase::Down(why) = phase {
            for job in left {
                // It was not sent.
                let _ = job
                    .pending_reply
                    .reply
                    .send(Err(NodeFailure::not_executed(why.clone(), job.request)));
            }
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, CallQueue> {
        // Nothing in here is left half done by a panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        let since = Instant::now().saturating_duration_since(self.started);
        Micros::ZERO.after(Wait::at_least(since))
    }
}

/// A call that has entered the line.
struct QueuedCall {
    answer: oneshot::Receiver<NodeResult>,
    number: u64,
    pass: Option<BreakerPass>,
}

impl CallQueue {
    /// Returns true if the call of this number is still queued. Calls are queued in the order of
    /// their numbers.
    fn is_waiting(&self, number: u64) -> bool {
        self.jobs.binary_search_by_key(&number, |job| job.pending_reply.arrival_number).is_ok()
    }

    fn is_full(&mut self, now: Micros) -> bool {
        let is_full = |line: &CallQueue| line.jobs.len() + line.in_flight >= CALLS_MAX;
        // Those who have gone make room, wherever they stand: some have more patience than others.
        // Looked for at most once in a millisecond, because it takes a while.
        if is_full(self) && now.as_u64() / 1000 != self.swept_ms {
            self.swept_ms = now.as_u64() / 1000;
            self.jobs.retain(|job| !job.pending_reply.reply.is_closed());
        }
        is_full(self)
    }
}

fn too_late() -> StoreError {
    StoreError::new(ErrorClass::Timeout, "no answer within the deadline")
}

impl From<StoreError> for NodeFailure {
    fn from(error: StoreError) -> NodeFailure {
        NodeFailure { error, retry_request: None, pass: None }
    }
}

/// Keeps a node connected, until it is retired.
pub(crate) async fn keep_connected(
    node: Arc<RedisNode>,
    finder: ServerFinder,
    introduction: HandshakeOptions,
) {
    let mut failed = 0;
    while !node.is_retired() {
        match connect_once(&node, &finder, &introduction, failed).await {
            Ok((pipe, since)) => {
                let why = pipe.serve(&node).await;
                if since.elapsed() >= STABLE_AFTER {
                    failed = 0;
                    // At once, and meanwhile calls may wait: most connections end for a reason
                    // that a new one does not meet.
                    node.set_phase(NodePhase::Connecting);
                    continue;
                }
                node.counters.count(why.class);
                node.set_phase(NodePhase::Down(why));
            }
            Err(why) => {
                finder.try_next_sentinel();
                node.counters.count(why.class);
                node.set_phase(NodePhase::Down(why));
            }
        }
        failed += 1;
        tokio::time::sleep(reconnect_pause(failed)).await;
    }
}

async fn connect_once(
    node: &RedisNode,
    finder: &ServerFinder,
    introduction: &HandshakeOptions,
    failed: u32,
) -> Result<(Pipe, Instant), StoreError> {
    let address = finder.find().await?;
    node.lock_queue().address = Some(address.clone());
    let connection = connect(&address, introduction, node.options.script, failed as usize).await?;
    node.counters.connected();
    node.set_phase(NodePhase::Up);
    Ok((Pipe::new(connection, node.options.caller_timeout), Instant::now()))
}

/// Doubles each time, up to a second; up to a quarter less, so that instances do not come at once.
fn reconnect_pause(failed: u32) -> Duration {
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
    use crate::script::call::ScriptCall;

    #[tokio::test]
    async fn whoever_comes_too_late_to_be_asked_says_nothing_about_the_server() {
        let caller_timeout = Duration::from_millis(10);
        let usage = NodeOptions {
            by_slot: false,
            script: &crate::transport::tests::COUNTING,
            caller_timeout,
        };
        let node = RedisNode::new(usage, Arc::default());
        for _ in 0..100 {
            let call = ScriptCall { slot: 0, keys: vec![], limits: vec![], body: None, now: None };
            let answer = node
                .ask(NodeRequest::Call(call), SendOptions::default(), None, Instant::now())
                .await;
            assert_eq!(answer.unwrap_err().error.class, ErrorClass::Timeout);
        }
        let stats = node.stats();
        assert_eq!((stats.breaker_opened, stats.waiting), (0, 0));
    }

    #[tokio::test]
    async fn those_who_have_gone_make_room_behind_whoever_still_waits() {
        let caller_timeout = Duration::from_millis(10);
        let usage = NodeOptions {
            by_slot: false,
            script: &crate::transport::tests::COUNTING,
            caller_timeout,
        };
        let node = RedisNode::new(usage, Arc::default());
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut patient = std::pin::pin!(node.run(RedisCommand::new("PING"), deadline));
        let enter = |one: Pin<&mut dyn Future<Output = _>>| {
            let _: Poll<Result<RedisValue, StoreError>> =
                one.poll(&mut Context::from_waker(Waker::noop()));
        };
        enter(patient.as_mut());
        for _ in 1..CALLS_MAX {
            enter(std::pin::pin!(node.run(RedisCommand::new("PING"), deadline)));
        }
        assert_eq!(node.stats().waiting, CALLS_MAX);
        enter(std::pin::pin!(node.run(RedisCommand::new("PING"), deadline)));
        assert_eq!(node.stats().waiting, 2, "the patient one and the last");
    }

    #[test]
    fn pauses_double_up_to_a_second_and_differ() {
        for (failed, most) in [(1, 50), (2, 100), (3, 200), (5, 800), (6, 1000), (60, 1000)] {
            let pauses: Vec<_> = (0..100).map(|_| reconnect_pause(failed).as_millis()).collect();
            let most_ms: u128 = most;
            assert!(pauses.iter().all(|ms| (most_ms * 3 / 4 - 1..=most_ms).contains(ms)));
            let differ = pauses.iter().any(|ms| *ms != pauses[0]);
            assert!(differ, "instances would come at once: {pauses:?}");
        }
    }
}
