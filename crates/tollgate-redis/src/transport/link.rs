//! The way to a shared store: calls go in, answers come out within the deadline, whatever happens
//! in between.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate::store::breaker::BreakerPass;

use crate::error::{ErrorClass, StoreError};
use crate::options::RedisOptions;
use crate::script;
use crate::script::call::ScriptCall;
use crate::transport::batch::{NodeFailure, NodeRequest, Script, SendOptions};
use crate::transport::cluster::{Cluster, keep_map};
use crate::transport::command::RedisCommand;
use crate::transport::connect::{Connector, HandshakeOptions};
use crate::transport::health::watch_health;
use crate::transport::node::{NodeOptions, RedisNode, keep_connected};
use crate::transport::sentinel::{ServerFinder, watch_primary};
use crate::transport::stats::{Health, LinkCounters, LinkStats};
use crate::transport::url::{StoreUrl, Topology};
use crate::transport::value::RedisValue;

/// Commands that are no calls may take longer: nobody's request waits for them, and a text of rules
/// takes its time.
const RUN_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// Times that one call is asked, at one node or several, and only while there is time.
const TRIES_MAX: u32 = 6;

/// The way to a shared store. Clones share it; the last one stops its tasks.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<LinkInner>,
}

struct LinkInner {
    url: StoreUrl,
    options: RedisOptions,
    script: &'static Script,
    runtime: Handle,
    timeout: Duration,
    counters: Arc<LinkCounters>,
    servers: LinkServers,
    health: Arc<Mutex<Health>>,
    /// Bound: three.
    _tasks: Vec<AbortOnDropTask>,
}

/// The servers behind a URL.
#[derive(Clone)]
enum LinkServers {
    One(Arc<RedisNode>),
    Cluster(Arc<Cluster>),
}

/// A task that is aborted when its owner is dropped.
pub(crate) struct AbortOnDropTask(Option<JoinHandle<()>>);

impl AbortOnDropTask {
    pub(crate) fn spawn(
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortOnDropTask {
        AbortOnDropTask(Some(runtime.spawn(work)))
    }

    /// It has been told to end, and does so by itself.
    pub(crate) fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for AbortOnDropTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Link {
    /// Begins to connect, on the runtime it is called on. Does not wait, and does not fail.
    pub(crate) fn start(url: &StoreUrl, options: &RedisOptions) -> Link {
        const DECIDE: Script = Script {
            load: script::load,
            assemble: script::assemble,
            eval: script::eval,
            split: script::split,
        };
        Link::with_script(url, options, &DECIDE)
    }

    pub(crate) fn with_script(
        url: &StoreUrl,
        options: &RedisOptions,
        script: &'static Script,
    ) -> Link {
        Link::start_on(Handle::current(), url, options, script)
    }

    /// Another way to the same store, with connections and a breaker of its own: for what is long and
    /// not urgent, so that decisions do not wait behind it. A way of its own for each that asks.
    pub(crate) fn separate_link(&self) -> Link {
        let LinkInner { url, options, script, runtime, .. } = &*self.inner;
        let timeout = options.timeout.max(RUN_TIMEOUT_MIN);
        Link::start_on(runtime.clone(), url, &RedisOptions { timeout, ..options.clone() }, script)
    }

    fn start_on(
        runtime: Handle,
        url: &StoreUrl,
        options: &RedisOptions,
        script: &'static Script,
    ) -> Link {
        let counters = Arc::new(LinkCounters::default());
        let reach = Connector::new(url.tls.clone(), options.timeout);
        let introduction = HandshakeOptions {
            login: url.login.clone(),
            database: url.database,
            connector: reach.clone(),
            must_be_primary: url.topology != Topology::Cluster,
        };
        let usage =
            NodeOptions { by_slot: url.is_cluster(), script, caller_timeout: options.timeout };
        let mut tasks = Vec::new();
        let servers = if url.is_cluster() {
            let seeds = url.hosts.clone();
            let cluster =
                Arc::new(Cluster::new(seeds, introduction, usage, counters.clone(), &runtime));
            tasks.push(AbortOnDropTask::spawn(&runtime, keep_map(cluster.clone())));
            LinkServers::Cluster(cluster)
        } else {
            let node = Arc::new(RedisNode::new(usage, counters.clone()));
            let finder = ServerFinder::of(url, &reach);
            if let ServerFinder::Sentinels(sentinels) = &finder {
                tasks.push(AbortOnDropTask::spawn(
                    &runtime,
                    watch_primary(node.clone(), sentinels.clone()),
                ));
            }
            tasks.push(AbortOnDropTask::spawn(
                &runtime,
                keep_connected(node.clone(), finder, introduction),
            ));
            LinkServers::One(node)
        };
        let health: Arc<Mutex<Health>> = Arc::default();
        let known = servers.clone();
        tasks.push(AbortOnDropTask::spawn(
            &runtime,
            watch_health(move || known.nodes(), health.clone()),
        ));
        Link {
            inner: Arc::new(LinkInner {
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

    /// Timeout of a request, for all of its calls together.
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// The deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.inner.timeout
    }

    /// Asks the script. The answer is the call's own part of the script's reply.
    pub(crate) async fn call_by(
        &self,
        call: ScriptCall,
        deadline: Instant,
    ) -> Result<RedisValue, StoreError> {
        let slot = call.slot;
        self.inner.send_with_retries(NodeRequest::Call(call), Some(slot), deadline).await
    }

    /// Runs one call like [`Link::call_by`], with the usual deadline.
    #[cfg(test)]
    pub(crate) async fn call(&self, call: ScriptCall) -> Result<RedisValue, StoreError> {
        self.call_by(call, self.deadline()).await
    }

    /// Counts a failure that no single call is to blame for.
    pub(crate) fn count(&self, class: ErrorClass) {
        self.inner.counters.count(class);
    }

    /// Runs another command: where the slot is, or anywhere.
    pub(crate) async fn run(
        &self,
        command: RedisCommand,
        slot: Option<u16>,
    ) -> Result<RedisValue, StoreError> {
        let deadline = Instant::now() + self.inner.timeout.max(RUN_TIMEOUT_MIN);
        self.inner.send_with_retries(NodeRequest::Command(command), slot, deadline).await
    }

    /// Returns true if keys are spread over slots of different nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.inner.servers, LinkServers::Cluster(_))
    }

    /// Figures for metrics.
    pub(crate) fn stats(&self) -> LinkStats {
        let health = self.inner.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nodes = self.inner.servers.nodes();
        self.inner.counters.snapshot(nodes.iter().map(|node| node.stats()).collect(), health)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("timeout", &self.inner.timeout).finish_non_exhaustive()
    }
}

impl LinkServers {
    fn nodes(&self) -> Vec<Arc<RedisNode>> {
        match self {
            LinkServers::One(node) => vec![node.clone()],
            LinkServers::Cluster(cluster) => cluster.nodes(),
        }
    }

    async fn route(
        &self,
        slot: Option<u16>,
        deadline: Instant,
    ) -> Result<Arc<RedisNode>, StoreError> {
        match self {
            LinkServers::One(node) => Ok(node.clone()),
            LinkServers::Cluster(cluster) => cluster.route(slot, deadline).await,
        }
    }
}

/// The plan of the next attempt.
#[derive(Default)]
struct RetryPlan {
    options: SendOptions,
    /// Leave of the breaker, if the question was only half asked.
    pass: Option<BreakerPass>,
    /// The node to ask, if not the owner of the slot.
    node: Option<Arc<RedisNode>>,
    tries: u32,
}

impl LinkInner {
    async fn send_with_retries(
        &self,
        mut ask: NodeRequest,
        slot: Option<u16>,
        deadline: Instant,
    ) -> Result<RedisValue, StoreError> {
        self.counters.called();
        let mut next = RetryPlan::default();
        loop {
            let node = match next.node.take() {
                Some(node) => node,
                None => match self.servers.route(slot, deadline).await {
                    Ok(node) => node,
                    Err(error) => {
                        self.counters.count(error.class);
                        return Err(error.mark_not_executed());
                    }
                },
            };
            let answer = node.ask(ask, next.options, next.pass.take(), deadline).await;
            let NodeFailure { error, retry_request: again, pass } = match answer {
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
            let worth_it = self.plan_retry(&mut next, &error, &node);
            match again {
                Some(question) if worth_it && time_left => ask = *question,
                Some(_) => return Err(error.mark_not_executed()),
                None => return Err(error),
            }
            self.counters.retried();
        }
    }

    /// Plans the next attempt after an error; false if there is none.
    fn plan_retry(&self, next: &mut RetryPlan, error: &StoreError, node: &Arc<RedisNode>) -> bool {
        let asking = std::mem::take(&mut next.options.asking);
        match (error.class, &self.servers) {
            (ErrorClass::NoScript, _) if !next.options.with_source => {
                next.options.with_source = true;
                next.options.asking = asking;
                next.node = Some(node.clone());
                true
            }
            (ErrorClass::Closed, LinkServers::One(_)) => next.tries == 1,
            (ErrorClass::Moved, LinkServers::Cluster(cluster)) => {
                cluster.moved(&error.detail, node);
                true
            }
            (ErrorClass::Ask, LinkServers::Cluster(cluster)) => {
                next.node = cluster.ask_target(&error.detail, node);
                next.options.asking = true;
                next.options.ungrouped = true;
                next.node.is_some()
            }
            (ErrorClass::TryAgain, LinkServers::Cluster(_)) => {
                // Alone: with others, their keys may have been the missing ones. If neither node
                // has all keys of this call, the caller can ask for them one by one.
                !std::mem::replace(&mut next.options.ungrouped, true)
            }
            (ErrorClass::BreakerOpen | ErrorClass::Other | ErrorClass::CrossSlot, _) => false,
            (_, LinkServers::Cluster(cluster)) => {
                cluster.refresh_soon();
                error.class == ErrorClass::Closed && next.tries == 1
            }
            _ => false,
        }
    }
}
