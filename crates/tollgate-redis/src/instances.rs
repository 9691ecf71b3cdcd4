//! Control: what instances tell each other through the store.
//!
//! Four times a second each instance reports that it is alive, sends the changes made on it, and
//! receives those of others: blocks, overrides, rules. Changes made while the store is down are
//! sent when it is back; after a store was emptied, the instances send it everything again.
//! Decisions never wait for this: they look up blocks in [`Blocks`], which this keeps up to date.

mod census;
mod exchange;
mod fact_audit;
mod fact_replica;
mod fact_seal;
mod latest_seal;
mod shared_fact;
mod store_instances;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tollgate::{Clock, Micros};
use tollgate_shared::blocks::{Blocks, KeyHash};

use crate::error::{ErrorClass, StoreError};
use crate::transport::command::RedisCommand;
use crate::transport::link::{AbortOnDropTask, Link};
use crate::transport::value::RedisValue;
use census::InstanceCensus;
use exchange::{ExchangeReply, InstanceKeys};
pub use fact_replica::SharedChangeId;
use fact_replica::{ExchangeRequest, FactBacklog, FactReplica, RemoteChanges};
use fact_seal::FactSealer;
pub use fact_seal::SealRefusal;
pub use shared_fact::OVERRIDES_MAX;
use shared_fact::{FactKind, FactName, FactTime, SharedFact};
pub(crate) use store_instances::StoreInstances;

/// Interval at which an instance reports that it is alive and asks for changes.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(250);
/// The shortest time between two calls, however much is decided.
const EXCHANGE_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The same where nobody waits for it: a store that was emptied has better things to do than to hear
/// everything at once from everybody.
const RESEND_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Timeout of a call: rules can be long, and no request waits for them.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which ended facts are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The slot of everything that is named `{control}`.
const CONTROL_SLOT: u16 = 12_069;

/// The receiver of changes by other instances. The task that talks to the store calls it, so slow
/// work belongs elsewhere.
pub trait InstanceSink: Send + Sync + 'static {
    /// Reports the number of live instances, this one included.
    fn live_instances(&self, count: u32);
    /// Overrides were set or taken back.
    fn overrides_changed(&self, changed: Vec<SharedOverride>);
    /// Rules were put, or taken back (`None`).
    fn rules_changed(&self, rules: Option<SharedRules>);
}

/// The sink of a store that is only watched.
struct NoChanges;

impl InstanceSink for NoChanges {
    fn live_instances(&self, _: u32) {}
    fn overrides_changed(&self, _: Vec<SharedOverride>) {}
    fn rules_changed(&self, _: Option<SharedRules>) {}
}

/// An override that holds for all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOverride {
    /// The identity: the same for the same rule and key.
    pub id: [u8; 16],
    /// The text published with it, which names rule and key.
    pub text: Box<str>,
    /// It was taken back.
    pub removed: bool,
}

/// Rules that an operator put in place of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRules {
    /// The text.
    pub text: Box<str>,
    /// A fingerprint of what the files said when it was put.
    pub replaced_fingerprint: Box<str>,
    /// Grows with each that is put; by the store's clock, in microseconds.
    pub version: u64,
    /// True if an instance with the same secret has put it; without one, whoever can write to the store may
    /// have.
    pub verified: bool,
}

/// The state of a published change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishStatus {
    /// The store has the change; every instance reads it with its next exchange.
    Published,
    /// The store is unavailable; the change is sent when it is back.
    Pending,
    /// There is no room for more changes of this kind; the change applies to this instance only.
    NoRoom,
    /// The change is too long to publish; it applies to this instance only.
    TooLong,
}

/// Figures about the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceChannelStats {
    /// True if the last call was answered.
    pub up: bool,
    /// Instances that were alive when it was last answered.
    pub live_instances: u32,
    /// Acts that others do not know of yet.
    pub unpublished: usize,
    /// Overrides that are known, those that were taken back within a day included.
    pub overrides: usize,
    /// Calls that were answered,
    pub calls: u64,
    /// and that were not.
    pub failures: u64,
    /// Facts for which the store had no room.
    pub no_room: u64,
    /// Facts in the store that are not in our words, each time they were seen.
    pub unreadable_facts: u64,
    /// Rules and overrides in the store that were not taken, each time they were seen, in the order of
    /// [`SealRefusal::ALL`].
    pub refused_facts: [u64; SealRefusal::ALL.len()],
    /// Rules and overrides that were sealed by an instance with a secret, while this one has none and
    /// cannot check them.
    pub unchecked_facts: u64,
    /// Times that the store had lost data that it had at an earlier call: it was restarted without persistence,
    /// emptied, or has evicted what instances share.
    pub data_losses: u64,
    /// True if this instance has a secret, and seals what is decided here.
    pub seals: bool,
}

/// The channel between instances. Cheap to clone; its task ends with the last clone.
#[derive(Clone)]
pub struct InstanceChannel {
    state: Arc<ChannelState>,
    _task: Arc<AbortOnDropTask>,
}

struct ChannelState {
    facts: Mutex<FactReplica>,
    blocks: Arc<Blocks>,
    clock: Box<dyn Clock>,
    sink: Arc<dyn InstanceSink>,
    /// Something was decided here.
    wake: Notify,
    /// Calls so far; who waits for an answer looks when it grows.
    progress: watch::Sender<u64>,
    leaving: AtomicBool,
    /// The error of the last call, if it failed.
    last_error: Mutex<Option<StoreError>>,
    live_instances: AtomicU32,
    calls: AtomicU64,
    failures: AtomicU64,
    no_room: AtomicU64,
    unreadable_facts: AtomicU64,
    refused_facts: [AtomicU64; SealRefusal::ALL.len()],
    unchecked_facts: AtomicU64,
    data_losses: AtomicU64,
}

impl InstanceChannel {
    /// Begins to tell and to hear, on the runtime that this is called on.
    pub(crate) fn start(
        link: Link,
        (prefix, secret): (&str, Option<&[u8]>),
        blocks: Arc<Blocks>,
        sink: Arc<dyn InstanceSink>,
        clock: impl Clock + 'static,
    ) -> InstanceChannel {
        InstanceChannel::spawn(link, (prefix, secret), (blocks, sink), clock, Some(random()))
    }

    /// Begins to watch a store for data that it loses, on the runtime that this is called on. This server is no
    /// instance there: nothing is told, and nothing is heard.
    pub(crate) fn watch(link: Link, prefix: &str, clock: impl Clock + 'static) -> InstanceChannel {
        let nothing = (Arc::default(), Arc::new(NoChanges) as Arc<dyn InstanceSink>);
        InstanceChannel::spawn(link, (prefix, None), nothing, clock, None)
    }

    fn spawn(
        link: Link,
        (prefix, secret): (&str, Option<&[u8]>),
        (blocks, sink): (Arc<Blocks>, Arc<dyn InstanceSink>),
        clock: impl Clock + 'static,
        instance_name: Option<String>,
    ) -> InstanceChannel {
        let zero = AtomicU64::default;
        let shared = Arc::new(ChannelState {
            facts: Mutex::new(FactReplica::new(FactSealer::new(secret, prefix))),
            blocks,
            clock: Box::new(clock),
            sink,
            wake: Notify::new(),
            progress: watch::channel(0).0,
            leaving: AtomicBool::default(),
            last_error: Mutex::default(),
            live_instances: AtomicU32::default(),
            calls: zero(),
            failures: zero(),
            no_room: zero(),
            unreadable_facts: zero(),
            refused_facts: Default::default(),
            unchecked_facts: zero(),
            data_losses: zero(),
        });
        let (keys, seen) = (InstanceKeys::new(prefix), ExchangeState::default());
        let beat =
            ExchangeTask { link, keys, instance_name, state: shared.clone(), exchange_state: seen };
        let task = AbortOnDropTask::spawn(&Handle::current(), beat.run());
        InstanceChannel { state: shared, _task: Arc::new(task) }
    }

    /// Blocks a key, here at once; a later end stays. `None`: there is no room, not even here.
    pub fn block(&self, hash: KeyHash, until: Micros) -> Option<SharedChangeId> {
        let now = self.state.now();
        let blocked = self.state.blocks.block(hash, until, now);
        blocked.then(|| self.publish(FactName::block(hash), Some(until), false, ""))
    }

    /// Lifts a block, here at once. Whether there was one in force.
    pub fn unblock(&self, hash: KeyHash) -> bool {
        let found = self.state.blocks.unblock(hash, self.state.now());
        // Also if there is none here: another instance may have blocked it this moment.
        let _ = self.publish(FactName::block(hash), None, true, "");
        found
    }

    /// Tells of an override of a caller's under a rule. `text` says all of it, and names both.
    pub fn set_override(
        &self,
        (rule, key): (&str, &str),
        text: &str,
        until: Option<Micros>,
    ) -> SharedChangeId {
        self.publish(FactName::of_override(rule, key), until, false, text)
    }

    /// Tells that an override was taken back. `text` names rule and key.
    pub fn remove_override(&self, (rule, key): (&str, &str), text: &str) -> SharedChangeId {
        self.publish(FactName::of_override(rule, key), None, true, text)
    }

    /// Tells of rules that were put over files with this fingerprint.
    pub fn put_rules(&self, text: &str, over: &str) -> SharedChangeId {
        self.publish(FactName::RULES, None, false, &format!("{over}\n{text}"))
    }

    /// Tells that the files are to hold again.
    pub fn remove_rules(&self) -> SharedChangeId {
        self.publish(FactName::RULES, None, true, "")
    }

    /// Waits until other instances can know of a change; returns its state at once if the store is
    /// unavailable.
    pub async fn published(&self, act: SharedChangeId, within: Duration) -> PublishStatus {
        let mut progress = self.state.progress.subscribe();
        let told = async {
            loop {
                let (told, failing) = {
                    let book = self.state.lock_facts();
                    (book.is_published(act), book.is_failing())
                };
                match told {
                    Err(never) => return never,
                    Ok(true) => return PublishStatus::Published,
                    Ok(false) if failing || progress.changed().await.is_err() => {
                        return PublishStatus::Pending;
                    }
                    Ok(false) => {}
                }
            }
        };
        timeout(within, told).await.unwrap_or(PublishStatus::Pending)
    }

    /// The last change: when it is published, all earlier ones are.
    pub fn last_change(&self) -> SharedChangeId {
        self.state.lock_facts().last_change()
    }

    /// Figures for metrics.
    pub fn stats(&self) -> InstanceChannelStats {
        let shared = &self.state;
        let (up, waiting, overrides, seals) = {
            let book = shared.lock_facts();
            let overrides = book.count(FactKind::Override);
            (book.is_up(), book.unpublished(), overrides, book.seals())
        };
        InstanceChannelStats {
            up,
            live_instances: shared.live_instances.load(Ordering::Relaxed),
            unpublished: waiting,
            overrides,
            calls: shared.calls.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            no_room: shared.no_room.load(Ordering::Relaxed),
            unreadable_facts: shared.unreadable_facts.load(Ordering::Relaxed),
            refused_facts: shared.refused_facts.each_ref().map(|one| one.load(Ordering::Relaxed)),
            unchecked_facts: shared.unchecked_facts.load(Ordering::Relaxed),
            data_losses: shared.data_losses.load(Ordering::Relaxed),
            seals,
        }
    }

    /// The error of the last call, if it failed.
    pub fn last_error(&self) -> Option<StoreError> {
        self.state.lock_last_error().clone()
    }

    /// The blocks of all instances.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.state.blocks
    }

    /// Tells what there is to tell and that this instance stops, as far as that takes no longer.
    pub async fn leave(&self, within: Duration) {
        let mut progress = self.state.progress.subscribe();
        self.state.leaving.store(true, Ordering::Relaxed);
        self.state.wake.notify_one();
        // `u64::MAX` is the task's last word.
        let left = progress.wait_for(|calls| *calls == u64::MAX);
        let _ = timeout(within, left).await;
    }

    fn publish(
        &self,
        name: FactName,
        until: Option<Micros>,
        gone: bool,
        payload: &str,
    ) -> SharedChangeId {
        let now = self.state.now();
        let when = FactTime::Here { at: now, after: 0 };
        let fact = SharedFact::new(when, until, gone, payload.into());
        let act = self.state.lock_facts().publish(name, fact, now);
        self.state.wake.notify_one();
        act
    }
}

impl ChannelState {
    fn lock_facts(&self) -> MutexGuard<'_, FactReplica> {
        // Every change of it is whole before anything in here can panic.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_last_error(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Passes changes by other instances to the sink.
    fn notify_sink(&self, live: u32, news: RemoteChanges) {
        if self.live_instances.swap(live, Ordering::Relaxed) != live {
            self.sink.live_instances(live);
        }
        self.blocks.move_ends(news.clock_moved_us);
        let mut overrides = Vec::new();
        for (name, fact) in news.facts {
            match name.kind {
                FactKind::Block if fact.removed => drop(self.blocks.unblock(name.id, self.now())),
                FactKind::Block => {
                    let until = fact.until.unwrap_or(Micros::MAX);
                    let _ = self.blocks.set(name.id, until, self.now());
                }
                FactKind::Override => overrides.push(SharedOverride {
                    id: name.id,
                    text: fact.payload,
                    removed: fact.removed,
                }),
                FactKind::Rules => self.sink.rules_changed(rules_of(&fact)),
            }
        }
        if !overrides.is_empty() {
            self.sink.overrides_changed(overrides);
        }
    }
}

fn rules_of(fact: &SharedFact) -> Option<SharedRules> {
    let FactTime::Stamp(version) = fact.decided_at else { return None };
    let (over, text) = fact.payload.split_once('\n').filter(|_| !fact.removed)?;
    let (text, over) = (text.into(), over.into());
    Some(SharedRules { text, replaced_fingerprint: over, version, verified: fact.verified })
}

/// The task that talks to the store.
struct ExchangeTask {
    link: Link,
    keys: InstanceKeys,
    /// A name that no other instance has; `None` if this server only watches.
    instance_name: Option<String>,
    state: Arc<ChannelState>,
    exchange_state: ExchangeState,
}

/// The task's knowledge of the store.
#[derive(Default)]
struct ExchangeState {
    census: InstanceCensus,
    /// Connections that had become ready before the last call.
    connections: u64,
    /// A reading of the store's clock and its time: this instance's clock may be set meanwhile.
    clock: Option<(Instant, u64)>,
}

impl ExchangeTask {
    async fn run(mut self) {
        let mut swept = Instant::now();
        loop {
            let started = Instant::now();
            let more = self.exchange().await;
            if self.state.leaving.load(Ordering::Relaxed) {
                return self.announce_leaving().await;
            }
            if swept.elapsed() >= SWEEP_EVERY {
                swept = Instant::now();
                let now = self.state.now();
                self.state.lock_facts().drop_ended(now);
                self.state.blocks.sweep(now);
            }
            let (next, pace) = match more {
                Ok(FactBacklog::Changes) => (started + EXCHANGE_PAUSE_MIN, EXCHANGE_PAUSE_MIN),
                Ok(FactBacklog::Resends) => (started + RESEND_PAUSE_MIN, EXCHANGE_PAUSE_MIN),
                Ok(FactBacklog::Empty) => (started + EXCHANGE_INTERVAL, EXCHANGE_PAUSE_MIN),
                // What is decided meanwhile can wait: there is nobody to tell.
                Err(_) => (started + EXCHANGE_INTERVAL, EXCHANGE_INTERVAL),
            };
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.state.wake.notified() => sleep_until(started + pace).await,
            }
        }
    }

    /// Tells and hears. What else there is.
    async fn exchange(&mut self) -> Result<FactBacklog, StoreError> {
        let shared = self.state.clone();
        let connections = self.link.stats().connections;
        if connections != self.exchange_state.connections {
            self.exchange_state.connections = connections;
            shared.lock_facts().start_over(shared.now());
        }
        let sending = shared.lock_facts().next_request(shared.now());
        let cmd = exchange::command(&self.keys, self.instance_name.as_deref(), &random(), &sending);
        let reply = self.send_command(cmd).await.and_then(ExchangeReply::read);
        *shared.lock_last_error() = reply.as_ref().err().cloned();
        let outcome = match reply {
            Ok(reply) => Ok(self.apply_reply(&sending, reply)),
            Err(error) => {
                self.record_failure();
                Err(error)
            }
        };
        shared.progress.send_modify(|calls| *calls += 1);
        outcome
    }

    fn apply_reply(&mut self, sending: &ExchangeRequest, reply: ExchangeReply) -> FactBacklog {
        let (shared, at) = (&self.state, Instant::now());
        self.exchange_state.clock = Some((at, reply.now));
        let live = self.exchange_state.census.observe(reply.live_instances, at);
        shared.calls.fetch_add(1, Ordering::Relaxed);
        shared.unreadable_facts.fetch_add(reply.unreadable_facts, Ordering::Relaxed);
        let news = shared.lock_facts().apply_reply(sending, reply, shared.now());
        shared.no_room.fetch_add(news.no_room, Ordering::Relaxed);
        shared.data_losses.fetch_add(news.lost_data.into(), Ordering::Relaxed);
        shared.unchecked_facts.fetch_add(news.unchecked, Ordering::Relaxed);
        for (counter, more) in shared.refused_facts.iter().zip(news.refused) {
            counter.fetch_add(more, Ordering::Relaxed);
        }
        let more = news.backlog;
        shared.notify_sink(live, news);
        more
    }

    fn record_failure(&mut self) {
        let (shared, now) = (&self.state, self.state.now());
        self.exchange_state.census.forget_fewer();
        shared.failures.fetch_add(1, Ordering::Relaxed);
        let mut book = shared.lock_facts();
        book.record_failure(now);
        if let Some((at, clock)) = self.exchange_state.clock {
            let store_now = clock.saturating_add(at.elapsed().as_micros() as u64);
            let moved = book.follow_clock(store_now, now);
            drop(book);
            shared.blocks.move_ends(moved);
        }
    }

    /// The others need not wait until they miss this instance.
    async fn announce_leaving(&self) {
        if let Some(name) = &self.instance_name {
            let leave = RedisCommand::new("ZREM").arg(self.keys.live()).arg(name);
            let _ = self.send_command(leave).await;
        }
        self.state.progress.send_replace(u64::MAX);
    }

    async fn send_command(&self, command: RedisCommand) -> Result<RedisValue, StoreError> {
        let late = || StoreError::new(ErrorClass::Timeout, "instances cannot tell each other");
        let reply = timeout(CALL_TIMEOUT, self.link.run(command, Some(CONTROL_SLOT))).await;
        reply.unwrap_or_else(|_| Err(late()))
    }
}

/// 128 bits that nobody else has.
fn random() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
