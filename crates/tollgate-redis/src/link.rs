//! The way to a shared store: calls go in, answers come out within the deadline, whatever happens
//! in between.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::batch::{Ask, Failure, Manner};
use crate::call::Call;
use crate::connect::Introduction;
use crate::error::{ErrorClass, StoreError};
use crate::node::{Node, keep_connected};
use crate::options::Options;
use crate::sentinel::Finder;
use crate::stats::{Counters, Health, LinkStats};
use crate::url::{StoreUrl, Topology};

/// Commands that are no calls may take longer: nobody's request waits for them.
const RUN_TIMEOUT_MIN: Duration = Duration::from_millis(250);
/// Times that one call is asked, at one node or several.
const TRIES_MAX: u32 = 4;

/// The way to a shared store. Clones share it; the last one stops its tasks.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    timeout: Duration,
    counters: Arc<Counters>,
    node: Arc<Node>,
    health: Arc<Mutex<Health>>,
    _tasks: Vec<Task>,
}

/// A task that ends with whoever holds it.
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Begins to connect, on the runtime it is called on. Does not wait, and does not fail.
    pub(crate) fn start(url: &StoreUrl, options: &Options) -> Link {
        let counters = Arc::new(Counters::default());
        let introduction = Introduction {
            login: url.login.clone(),
            database: url.database,
            tls: url.tls.clone(),
            must_be_primary: url.topology != Topology::Cluster,
        };
        let node = Arc::new(Node::new(url.is_cluster(), counters.clone()));
        let finder = Finder::Fixed(url.hosts[0].clone());
        let task = Task::spawn(keep_connected(node.clone(), finder, introduction));
        let health = Arc::default();
        let inner = Inner { timeout: options.timeout, counters, node, health, _tasks: vec![task] };
        Link { inner: Arc::new(inner) }
    }

    /// Asks the script. The answer is the call's own part of the script's reply.
    pub(crate) async fn call(&self, call: Call) -> Result<Value, StoreError> {
        let slot = call.slot;
        let deadline = Instant::now() + self.inner.timeout;
        self.inner.ask(Ask::Call(call), Some(slot), deadline).await
    }

    /// Runs another command: where the slot is, or anywhere.
    pub(crate) async fn run(&self, command: Cmd, slot: Option<u16>) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.inner.timeout.max(RUN_TIMEOUT_MIN);
        self.inner.ask(Ask::Command(command), slot, deadline).await
    }

    /// What is counted.
    pub(crate) fn stats(&self) -> LinkStats {
        let health = self.inner.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.inner.counters.fill(vec![self.inner.node.stats()], health)
    }
}

impl Inner {
    async fn ask(
        &self,
        mut ask: Ask,
        _slot: Option<u16>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        self.counters.called();
        let mut manner = Manner::default();
        for left in (0..TRIES_MAX).rev() {
            let Failure { error, again } = match self.node.ask(ask, manner, deadline).await {
                Ok(value) => {
                    self.counters.answered();
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            self.counters.count(error.class);
            let Some(question) = again else { return Err(error) };
            if left == 0 || Instant::now() >= deadline {
                return Err(error);
            }
            match error.class {
                ErrorClass::NoScript if !manner.source => manner.source = true,
                ErrorClass::Closed if left + 1 == TRIES_MAX => {}
                _ => return Err(error),
            }
            self.counters.retried();
            ask = question;
        }
        unreachable!("the last round returns")
    }
}
