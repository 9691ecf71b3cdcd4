//! The way to a shared store: calls go in, answers come out within the deadline, whatever happens
//! in between.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate::store::breaker::Pass;

use crate::batch::{Ask, Failure, Manner, Script};
use crate::call::Call;
use crate::cluster::{Cluster, keep_map};
use crate::connect::{Introduction, Reach};
use crate::error::{ErrorClass, StoreError};
use crate::health::keep_watch;
use crate::node::{Node, Usage, keep_connected};
use crate::options::Options;
use crate::script;
use crate::sentinel::{Finder, watch};
use crate::stats::{Counters, Health, LinkStats};
use crate::url::{StoreUrl, Topology};

/// Commands that are no calls may take longer: nobody's request waits for them, and a text of rules
/// takes its time.
const RUN_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// Times that one call is asked, at one node or several, and only while there is time.
const TRIES_MAX: u32 = 6;

/// The way to a shared store. Clones share it; the last one stops its tasks.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    url: StoreUrl,
    options: Options,
    script: &'static Script,
    runtime: Handle,
    timeout: Duration,
    counters: Arc<Counters>,
    servers: Servers,
    health: Arc<Mutex<Health>>,
    /// Bound: three.
    _tasks: Vec<Task>,
}

/// Who is asked.
#[derive(Clone)]
enum Servers {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// A task that ends with whoever holds it.
pub(crate) struct Task(Option<JoinHandle<()>>);

impl Task {
    pub(crate) fn spawn(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(Some(runtime.spawn(work)))
    }

    /// It has been told to end, and does so by itself.
    pub(crate) fn let_finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Link {
    /// Begins to connect, on the runtime it is called on. Does not wait, and does not fail.
    pub(crate) fn start(url: &StoreUrl, options: &Options) -> Link {
        const DECIDE: Script = Script {
            load: script::load,
            assemble: script::assemble,
            eval: script::eval,
            split: script::split,
        };
        Link::with_script(url, options, &DECIDE)
    }

    pub(crate) fn with_script(url: &StoreUrl, options: &Options, script: &'static Script) -> Link {
        Link::on(Handle::current(), url, options, script)
    }

    /// Another way to the same store, with connections and a breaker of its own: for what is long and
    /// not urgent, so that decisions do not wait behind it. A way of its own for each that asks.
    pub(crate) fn beside(&self) -> Link {
        let Inner { url, options, script, runtime, .. } = &*self.inner;
        let timeout = options.timeout.max(RUN_TIMEOUT_MIN);
        Link::on(runtime.clone(), url, &Options { timeout, ..options.clone() }, script)
    }

    fn on(runtime: Handle, url: &StoreUrl, options: &Options, script: &'static Script) -> Link {
        let counters = Arc::new(Counters::default());
        let reach = Reach::new(url.tls.clone(), options.timeout);
        let introduction = Introduction {
            login: url.login.clone(),
            database: url.database,
            reach: reach.clone(),
            must_be_primary: url.topology != Topology::Cluster,
        };
        let usage = Usage { by_slot: url.is_cluster(), script, patience: options.timeout };
        let mut tasks = Vec::new();
        let servers = if url.is_cluster() {
            let seeds = url.hosts.clone();
            let cluster =
                Arc::new(Cluster::new(seeds, introduction, usage, counters.clone(), &runtime));
            tasks.push(Task::spawn(&runtime, keep_map(cluster.clone())));
            Servers::Cluster(cluster)
        } else {
            let node = Arc::new(Node::new(usage, counters.clone()));
            let finder = Finder::of(url, &reach);
            if let Finder::Sentinels(sentinels) = &finder {
                tasks.push(Task::spawn(&runtime, watch(node.clone(), sentinels.clone())));
            }
            tasks.push(Task::spawn(&runtime, keep_connected(node.clone(), finder, introduction)));
            Servers::One(node)
        };
        let health: Arc<Mutex<Health>> = Arc::default();
        let known = servers.clone();
        tasks.push(Task::spawn(&runtime, keep_watch(move || known.nodes(), health.clone())));
        Link {
            inner: Arc::new(Inner {
                url: url.clone(),
                options: options.clone(),
                script,
                runtime,
                timeout: options.timeout,
                counters,
                servers,
                health,
                _tasks: tasks,
            }),
        }
    }

    /// How long the answer to a request is waited for, however many calls it takes.
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Until when an answer to a request that begins now is of use.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.timeout
    }

    /// Asks the script. The answer is the call's own part of the script's reply.
    pub(crate) async fn call_by(&self, call: Call, deadline: Instant) -> Result<Value, StoreError> {
        let slot = call.slot;
        self.inner.ask(Ask::Call(call), Some(slot), deadline).await
    }

    /// As [`Link::call_by`], for a request that is one call.
    #[cfg(test)]
    pub(crate) async fn call(&self, call: Call) -> Result<Value, StoreError> {
        self.call_by(call, self.deadline()).await
    }

    /// Counts a failure that no single call is to blame for.
    pub(crate) fn count(&self, class: ErrorClass) {
        self.inner.counters.count(class);
    }

    /// Runs another command: where the slot is, or anywhere.
    pub(crate) async fn run(&self, command: Cmd, slot: Option<u16>) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.inner.timeout.max(RUN_TIMEOUT_MIN);
        self.inner.ask(Ask::Command(command), slot, deadline).await
    }

    /// Whether keys are spread over slots that different nodes have.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.inner.servers, Servers::Cluster(_))
    }

    /// What is counted.
    pub(crate) fn stats(&self) -> LinkStats {
        let health = self.inner.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nodes = self.inner.servers.nodes();
        self.inner.counters.fill(nodes.iter().map(|node| node.stats()).collect(), health)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("timeout", &self.inner.timeout).finish_non_exhaustive()
    }
}

impl Servers {
    fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Servers::One(node) => vec![node.clone()],
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    async fn route(&self, slot: Option<u16>, deadline: Instant) -> Result<Arc<Node>, StoreError> {
        match self {
            Servers::One(node) => Ok(node.clone()),
            Servers::Cluster(cluster) => cluster.route(slot, deadline).await,
        }
    }
}

/// How a question is asked the next time, if it is.
#[derive(Default)]
struct Next {
    manner: Manner,
    /// Leave of the breaker, if the question was only half asked.
    pass: Option<Pass>,
    /// Whom, if not whoever has the slot.
    node: Option<Arc<Node>>,
    tries: u32,
}

impl Inner {
    async fn ask(
        &self,
        mut ask: Ask,
        slot: Option<u16>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        self.counters.called();
        let mut next = Next::default();
        loop {
            let node = match next.node.take() {
                Some(node) => node,
                None => match self.servers.route(slot, deadline).await {
                    Ok(node) => node,
                    Err(error) => {
                        self.counters.count(error.class);
                        return Err(error.undone());
                    }
                },
            };
            let answer = node.ask(ask, next.manner, next.pass.take(), deadline).await;
            let Failure { error, again, pass } = match answer {
                Ok(value) => {
                    self.counters.answered();
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            next.pass = pass;
            self.counters.count(error.class);
            next.tries += 1;
            let time_left = next.tries < TRIES_MAX && Instant::now() < deadline;
            let worth_it = self.learn(&mut next, &error, &node);
            match again {
                Some(question) if worth_it && time_left => ask = *question,
                Some(_) => return Err(error.undone()),
                None => return Err(error),
            }
            self.counters.retried();
        }
    }

    /// What an error teaches: whether to ask again, whom, and how.
    fn learn(&self, next: &mut Next, error: &StoreError, node: &Arc<Node>) -> bool {
        let asking = std::mem::take(&mut next.manner.asking);
        match (error.class, &self.servers) {
            (ErrorClass::NoScript, _) if !next.manner.source => {
                next.manner.source = true;
                next.manner.asking = asking;
                next.node = Some(node.clone());
                true
            }
            (ErrorClass::Closed, Servers::One(_)) => next.tries == 1,
            (ErrorClass::Moved, Servers::Cluster(cluster)) => {
                cluster.moved(&error.detail, node);
                true
            }
            (ErrorClass::Ask, Servers::Cluster(cluster)) => {
                next.node = cluster.asked(&error.detail, node);
                next.manner.asking = true;
                next.manner.alone = true;
                next.node.is_some()
            }
            (ErrorClass::TryAgain, Servers::Cluster(_)) => {
                // Alone: with others, their keys may have been the ones that were missing. If neither
                // side has all of its own, whoever asks can ask for them one by one.
                !std::mem::replace(&mut next.manner.alone, true)
            }
            (ErrorClass::BreakerOpen | ErrorClass::Other | ErrorClass::CrossSlot, _) => false,
            (_, Servers::Cluster(cluster)) => {
                cluster.refresh_soon();
                error.class == ErrorClass::Closed && next.tries == 1
            }
            _ => false,
        }
    }
}
