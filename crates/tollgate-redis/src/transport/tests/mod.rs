//! The way to real servers, with a script that counts: each call adds one to each of its keys.

mod cluster;
mod error_replies;
mod faults;
mod queueing;
mod sentinel;
mod single;
#[cfg(feature = "tls")]
mod tls;
mod torn_replies;

use std::thread::JoinHandle;
use std::time::Duration;

use testkit::redis::TestRedis;
use testkit::wait;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::error::{ErrorClass, StoreError};
use crate::options::RedisOptions;
use crate::script::call::ScriptCall;
use crate::transport::batch::Script;
use crate::transport::command::RedisCommand;
use crate::transport::link::Link;
use crate::transport::url::StoreUrl;
use crate::transport::value::RedisValue;

/// Longer than any machine needs to answer, for tests that are not about time.
const PLENTY: Duration = Duration::from_secs(5);
/// What a decision may take by default.
const DEADLINE: Duration = Duration::from_millis(10);

const TEXT: &str = "local sums = {}
for i, key in ipairs(KEYS) do sums[i] = redis.call('INCR', key) end
return sums";

/// The reply has one number for each key: calls that share a command have one key each here.
pub(crate) static COUNTING: Script = Script {
    load: || RedisCommand::new("SCRIPT").arg("LOAD").arg(TEXT),
    assemble: |calls| with_keys(RedisCommand::new("EVALSHA").arg(sha1()), calls),
    eval: |calls| with_keys(RedisCommand::new("EVAL").arg(TEXT), calls),
    split: |value, count| match value {
        RedisValue::Array(sums) if sums.len() == count => sums.into_iter().map(Ok).collect(),
        sums @ RedisValue::Array(_) if count == 1 => vec![Ok(sums)],
        _ => vec![Err(StoreError::new(ErrorClass::Protocol, "no sums")); count],
    },
};

fn with_keys(mut command: RedisCommand, calls: &[ScriptCall]) -> RedisCommand {
    command.push_number(calls.iter().map(|call| call.keys.len() as u64).sum());
    for key in calls.iter().flat_map(|call| &call.keys) {
        command.push(key);
    }
    command
}

fn sha1() -> String {
    crate::script::sha1_hex(TEXT)
}

fn call_of(key: &str, slot: u16) -> ScriptCall {
    ScriptCall { slot, keys: vec![key.into()], limits: Vec::new(), body: None, now: None }
}

/// A store on a thread of its own, as in a server; whoever asks is on another.
struct CountingStore {
    link: Link,
    callers: Runtime,
    /// Closed when the store is to end.
    over: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CountingStore {
    fn at(url: &str, timeout: Duration) -> CountingStore {
        let url = StoreUrl::parse(url).unwrap();
        let options = RedisOptions { timeout, ..RedisOptions::default() };
        let (over, ending) = oneshot::channel::<()>();
        let (told, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                told.send(Link::with_script(&url, &options, &COUNTING)).unwrap();
                let _ = ending.await;
            });
        });
        let link = started.recv().unwrap();
        CountingStore { link, callers: runtime(), over: Some(over), thread: Some(thread) }
    }

    fn of(server: &TestRedis) -> CountingStore {
        CountingStore::at(&server.url(), PLENTY)
    }

    /// Adds one to `key`; the sum.
    fn add(&self, key: &str) -> Result<i64, StoreError> {
        self.callers.block_on(add(&self.link, key, 0))
    }

    /// What one call fails with.
    fn class(&self) -> Result<i64, ErrorClass> {
        self.add("a").map_err(|error| error.class)
    }

    /// Asks until it fails like this.
    fn until_class(&self, class: ErrorClass) -> StoreError {
        wait::until(class.name(), || self.add("a").err().filter(|error| error.class == class))
    }

    /// Asks until it is answered; the sum.
    fn until_answered(&self, key: &str) -> i64 {
        wait::until("an answer", || self.add(key).ok())
    }

    fn run(&self, name: &'static str, words: &[&str]) -> Result<RedisValue, StoreError> {
        let mut command = RedisCommand::new(name);
        words.iter().for_each(|word| command.push(word));
        self.callers.block_on(self.link.run(command, None))
    }

    fn errors(&self, class: ErrorClass) -> u64 {
        self.link.stats().errors_of(class)
    }
}

impl Drop for CountingStore {
    fn drop(&mut self) {
        self.over = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the store's thread panicked");
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn add(link: &Link, key: &str, slot: u16) -> Result<i64, StoreError> {
    match link.call(call_of(key, slot)).await? {
        RedisValue::Int(sum) => Ok(sum),
        value => panic!("{value:?} is no sum"),
    }
}
