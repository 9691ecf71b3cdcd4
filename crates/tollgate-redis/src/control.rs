//! Control: what instances tell each other through the store.
//!
//! Four times a second each instance says that it is alive, tells what was decided at it, and hears
//! what was decided elsewhere: blocks, overrides, rules. What cannot be told while the store is down
//! is told when it is back; a store that was emptied is told everything again by whoever knows it.
//! Nothing here is on the way of a decision: blocks are looked up in [`Blocks`], which this keeps.

mod book;
mod census;
mod fact;
mod instances;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tollgate::{Clock, Micros};

use crate::blocks::{Blocks, KeyHash};
use crate::error::{ErrorClass, StoreError};
use crate::link::{Link, Task};
pub use book::Act;
use book::{Book, More, News, Sending};
use census::Census;
pub use fact::OVERRIDES_MAX;
use fact::{Fact, Kind, Name, When};
pub(crate) use instances::Instances;
use wire::{Keys, Reply};

/// How often an instance says that it is alive and asks what is new.
const BEAT: Duration = Duration::from_millis(250);
/// The shortest time between two calls, however much is decided.
const PACE: Duration = Duration::from_millis(10);
/// The same where nobody waits for it: a store that was emptied has better things to do than to hear
/// everything at once from everybody.
const SLOW_PACE: Duration = Duration::from_millis(20);
/// How long a call may take: rules can be long, and nobody waits for them with a request.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How often what has ended is swept away.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The slot of everything that is named `{control}`.
const SLOT: u16 = 12_069;

/// Who is told what others have decided. Called by the task that talks to the store: whatever takes
/// long belongs elsewhere.
pub trait ControlSink: Send + Sync + 'static {
    /// So many instances are alive, this one included.
    fn live(&self, count: u32);
    /// Overrides were set or taken back.
    fn overrides(&self, changed: Vec<SharedOverride>);
    /// Rules were put, or taken back (`None`).
    fn rules(&self, rules: Option<SharedRules>);
}

/// An override that holds for all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOverride {
    /// Which one: the same for the same rule and key.
    pub id: [u8; 16],
    /// What was told with it, which names rule and key.
    pub text: Box<str>,
    /// It was taken back.
    pub gone: bool,
}

/// Rules that an operator put in place of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRules {
    /// The text.
    pub text: Box<str>,
    /// A fingerprint of what the files said when it was put.
    pub over: Box<str>,
    /// Grows with each that is put; by the store's clock, in microseconds.
    pub version: u64,
}

/// Whether others know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The store has it: every instance hears of it within a beat.
    Everyone,
    /// The store cannot be reached: they will hear of it when it is back.
    Later,
    /// There is no room for more of the kind: it holds here only.
    NoRoom,
    /// It is too long to be told: it holds here only.
    TooLong,
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlStats {
    /// Whether the last call was answered.
    pub up: bool,
    /// Instances that were alive when it was last answered.
    pub live: u32,
    /// Acts that others do not know of yet.
    pub waiting: usize,
    /// Overrides that are known, those that were taken back within a day included.
    pub overrides: usize,
    /// Calls that were answered,
    pub calls: u64,
    /// and that were not.
    pub failures: u64,
    /// Facts for which the store had no room.
    pub no_room: u64,
    /// Facts in the store that are not in our words, each time they were seen.
    pub strange: u64,
}

/// What instances tell each other. Cheap to clone; the task ends with the last of them.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

struct Shared {
    book: Mutex<Book>,
    blocks: Arc<Blocks>,
    clock: Box<dyn Clock>,
    sink: Arc<dyn ControlSink>,
    /// Something was decided here.
    wake: Notify,
    /// Calls so far; who waits for an answer looks when it grows.
    progress: watch::Sender<u64>,
    leaving: AtomicBool,
    /// Why the last call was not answered, if it was not.
    failed: Mutex<Option<StoreError>>,
    live: AtomicU32,
    calls: AtomicU64,
    failures: AtomicU64,
    no_room: AtomicU64,
    strange: AtomicU64,
}

impl Control {
    /// Begins to tell and to hear, on the runtime that this is called on.
    pub(crate) fn start(
        link: Link,
        prefix: &str,
        blocks: Arc<Blocks>,
        sink: Arc<dyn ControlSink>,
        clock: impl Clock + 'static,
    ) -> Control {
        let zero = AtomicU64::default;
        let shared = Arc::new(Shared {
            book: Mutex::default(),
            blocks,
            clock: Box::new(clock),
            sink,
            wake: Notify::new(),
            progress: watch::channel(0).0,
            leaving: AtomicBool::default(),
            failed: Mutex::default(),
            live: AtomicU32::default(),
            calls: zero(),
            failures: zero(),
            no_room: zero(),
            strange: zero(),
        });
        let (keys, seen) = (Keys::new(prefix), Seen::default());
        let beat = Beat { link, keys, me: random(), shared: shared.clone(), seen };
        let task = Task::spawn(&Handle::current(), beat.run());
        Control { shared, _task: Arc::new(task) }
    }

    /// Blocks a key, here at once; a later end stays. `None`: there is no room, not even here.
    pub fn block(&self, hash: KeyHash, until: Micros) -> Option<Act> {
        let now = self.shared.now();
        let blocked = self.shared.blocks.block(hash, until, now);
        blocked.then(|| self.tell(Name::block(hash), Some(until), false, ""))
    }

    /// Lifts a block, here at once. Whether there was one in force.
    pub fn unblock(&self, hash: KeyHash) -> bool {
        let found = self.shared.blocks.unblock(hash, self.shared.now());
        // Also if there is none here: another instance may have blocked it this moment.
        let _ = self.tell(Name::block(hash), None, true, "");
        found
    }

    /// Tells of an override of a caller's under a rule. `text` says all of it, and names both.
    pub fn set_override(
        &self,
        (rule, key): (&str, &str),
        text: &str,
        until: Option<Micros>,
    ) -> Act {
        self.tell(Name::of_override(rule, key), until, false, text)
    }

    /// Tells that an override was taken back. `text` names rule and key.
    pub fn remove_override(&self, (rule, key): (&str, &str), text: &str) -> Act {
        self.tell(Name::of_override(rule, key), None, true, text)
    }

    /// Tells of rules that were put over files with this fingerprint.
    pub fn put_rules(&self, text: &str, over: &str) -> Act {
        self.tell(Name::RULES, None, false, &format!("{over}\n{text}"))
    }

    /// Tells that the files are to hold again.
    pub fn take_back_rules(&self) -> Act {
        self.tell(Name::RULES, None, true, "")
    }

    /// Whether others know of an act, waiting for that if the store answers at all.
    pub async fn told(&self, act: Act, within: Duration) -> Told {
        let mut progress = self.shared.progress.subscribe();
        let told = async {
            loop {
                let (told, failing) = {
                    let book = self.shared.book();
                    (book.is_told(act), book.is_failing())
                };
                match told {
                    Err(never) => return never,
                    Ok(true) => return Told::Everyone,
                    Ok(false) if failing || progress.changed().await.is_err() => {
                        return Told::Later;
                    }
                    Ok(false) => {}
                }
            }
        };
        timeout(within, told).await.unwrap_or(Told::Later)
    }

    /// The act that was last: whoever waits for it waits for all.
    pub fn last_act(&self) -> Act {
        self.shared.book().last_act()
    }

    /// How it stands.
    pub fn stats(&self) -> ControlStats {
        let shared = &self.shared;
        let (up, waiting, overrides) = {
            let book = shared.book();
            (book.is_up(), book.waiting(), book.count(Kind::Override))
        };
        ControlStats {
            up,
            live: shared.live.load(Ordering::Relaxed),
            waiting,
            overrides,
            calls: shared.calls.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            no_room: shared.no_room.load(Ordering::Relaxed),
            strange: shared.strange.load(Ordering::Relaxed),
        }
    }

    /// Why the last call was not answered, if it was not.
    pub fn why_failing(&self) -> Option<StoreError> {
        self.shared.failed().clone()
    }

    /// The blocks of all instances.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.shared.blocks
    }

    /// Tells what there is to tell and that this instance stops, as far as that takes no longer.
    pub async fn leave(&self, within: Duration) {
        let mut progress = self.shared.progress.subscribe();
        self.shared.leaving.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
        // `u64::MAX` is the task's last word.
        let left = progress.wait_for(|calls| *calls == u64::MAX);
        let _ = timeout(within, left).await;
    }

    fn tell(&self, name: Name, until: Option<Micros>, gone: bool, payload: &str) -> Act {
        let now = self.shared.now();
        let when = When::Here { at: now, after: 0 };
        let fact = Fact { when, until, gone, payload: payload.into() };
        let act = self.shared.book().tell(name, fact, now);
        self.shared.wake.notify_one();
        act
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Every change of it is whole before anything in here can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Tells whoever wants to know what others have decided.
    fn pass_on(&self, live: u32, news: News) {
        if self.live.swap(live, Ordering::Relaxed) != live {
            self.sink.live(live);
        }
        self.blocks.move_ends(news.moved);
        let mut overrides = Vec::new();
        for (name, fact) in news.facts {
            match name.kind {
                Kind::Block if fact.gone => drop(self.blocks.unblock(name.id, self.now())),
                Kind::Block => {
                    let until = fact.until.unwrap_or(Micros::MAX);
                    let _ = self.blocks.set(name.id, until, self.now());
                }
                Kind::Override => overrides.push(SharedOverride {
                    id: name.id,
                    text: fact.payload,
                    gone: fact.gone,
                }),
                Kind::Rules => self.sink.rules(rules_of(&fact)),
            }
        }
        if !overrides.is_empty() {
            self.sink.overrides(overrides);
        }
    }
}

fn rules_of(fact: &Fact) -> Option<SharedRules> {
    let When::Stamp(version) = fact.when else { return None };
    let (over, text) = fact.payload.split_once('\n').filter(|_| !fact.gone)?;
    Some(SharedRules { text: text.into(), over: over.into(), version })
}

/// The task that talks to the store.
struct Beat {
    link: Link,
    keys: Keys,
    /// A name that no other instance has.
    me: String,
    shared: Arc<Shared>,
    seen: Seen,
}

/// What the task has seen of the store.
#[derive(Default)]
struct Seen {
    census: Census,
    /// Connections that had become ready before the last call.
    connections: u64,
    /// What the store's clock showed, and when: this instance's own may be set meanwhile.
    clock: Option<(Instant, u64)>,
}

impl Beat {
    async fn run(mut self) {
        let mut swept = Instant::now();
        loop {
            let started = Instant::now();
            let more = self.call().await;
            if self.shared.leaving.load(Ordering::Relaxed) {
                return self.leave().await;
            }
            if swept.elapsed() >= SWEEP_EVERY {
                swept = Instant::now();
                let now = self.shared.now();
                self.shared.book().drop_ended(now);
                self.shared.blocks.sweep(now);
            }
            let (next, pace) = match more {
                Ok(More::New) => (started + PACE, PACE),
                Ok(More::Old) => (started + SLOW_PACE, PACE),
                Ok(More::Nothing) => (started + BEAT, PACE),
                // What is decided meanwhile can wait: there is nobody to tell.
                Err(_) => (started + BEAT, BEAT),
            };
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.shared.wake.notified() => sleep_until(started + pace).await,
            }
        }
    }

    /// Tells and hears. What else there is.
    async fn call(&mut self) -> Result<More, StoreError> {
        let shared = self.shared.clone();
        let connections = self.link.stats().connections;
        if connections != self.seen.connections {
            self.seen.connections = connections;
            shared.book().start_over(shared.now());
        }
        let sending = shared.book().sending(shared.now());
        let cmd = wire::command(&self.keys, &self.me, &random(), &sending);
        let reply = self.carry(cmd).await.and_then(Reply::read);
        *shared.failed() = reply.as_ref().err().cloned();
        let outcome = match reply {
            Ok(reply) => Ok(self.heard(&sending, reply)),
            Err(error) => {
                self.failed();
                Err(error)
            }
        };
        shared.progress.send_modify(|calls| *calls += 1);
        outcome
    }

    fn heard(&mut self, sending: &Sending, reply: Reply) -> More {
        let (shared, at) = (&self.shared, Instant::now());
        self.seen.clock = Some((at, reply.now));
        let live = self.seen.census.heard(reply.live, at);
        shared.calls.fetch_add(1, Ordering::Relaxed);
        shared.strange.fetch_add(reply.strange, Ordering::Relaxed);
        let news = shared.book().heard(sending, reply, shared.now());
        shared.no_room.fetch_add(news.no_room, Ordering::Relaxed);
        let more = news.more;
        shared.pass_on(live, news);
        more
    }

    fn failed(&mut self) {
        let (shared, now) = (&self.shared, self.shared.now());
        self.seen.census.failed();
        shared.failures.fetch_add(1, Ordering::Relaxed);
        let mut book = shared.book();
        book.failed(now);
        if let Some((at, clock)) = self.seen.clock {
            let store_now = clock.saturating_add(at.elapsed().as_micros() as u64);
            let moved = book.keep_time(store_now, now);
            drop(book);
            shared.blocks.move_ends(moved);
        }
    }

    /// The others need not wait until they miss this instance.
    async fn leave(&self) {
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(self.keys.live()).arg(&self.me);
        let _ = self.carry(cmd).await;
        self.shared.progress.send_replace(u64::MAX);
    }

    async fn carry(&self, cmd: Cmd) -> Result<Value, StoreError> {
        let late = || StoreError::new(ErrorClass::Timeout, "instances cannot tell each other");
        let reply = timeout(CALL_MAX, self.link.run(cmd, Some(SLOT))).await;
        reply.unwrap_or_else(|_| Err(late()))
    }
}

/// 128 bits that nobody else has.
fn random() -> String {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
