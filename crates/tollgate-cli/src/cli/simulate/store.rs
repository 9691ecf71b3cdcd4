//! The store of a simulation: memory, or a Redis that decides at the times of the trace.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tollgate::{Check, Decision, Key, MemoryStore, Micros, Now, Outcome, Receipt, Store, Wait};
use tollgate_redis::{KeyPrefix, RedisOptions, RedisStore, StoreError, TimeSource};
use tollgate_rules::expect_ready;

use super::{Args, CommandFailure, Report};
use crate::settings::StoreChoice;

/// Timeout of one call: only the simulation waits for it.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of connecting.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Interval between two checks of the connection.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The store of a simulation.
#[derive(Debug)]
pub(super) enum SimStore {
    Memory(Box<MemoryStore>),
    Redis(Box<SimRedisStore>),
}

/// A Redis store with its runtime.
#[derive(Debug)]
pub(super) struct SimRedisStore {
    store: RedisStore,
    runtime: Runtime,
    /// The first error. Answers made up in its place must not be printed.
    first_error: Mutex<Option<StoreError>>,
}

impl SimStore {
    /// Opens the store of the options, with a unique prefix of keys.
    pub(super) fn open(args: &Args) -> Result<SimStore, CommandFailure> {
        Ok(match &args.store {
            StoreChoice::Memory => {
                let max_keys = usize::try_from(args.max_keys).unwrap_or(usize::MAX);
                SimStore::Memory(Box::new(MemoryStore::new(max_keys)))
            }
            StoreChoice::Redis(url) => {
                let cannot =
                    |error| CommandFailure::Input(Report::new(format!("cannot start: {error}")));
                let runtime = Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(cannot)?;
                let options = RedisOptions {
                    timeout: TIMEOUT,
                    prefix: prefix().map_err(CommandFailure::Input)?,
                    key_secret: None,
                    time: TimeSource::Caller,
                };
                let store = runtime.block_on(async {
                    let store = RedisStore::at(url, &options);
                    connected(&store, &url.to_string()).await.map(|()| store)
                })?;
                SimStore::Redis(Box::new(SimRedisStore {
                    store,
                    runtime,
                    first_error: Mutex::default(),
                }))
            }
        })
    }

    /// The table of the memory store.
    pub(super) fn memory(&self) -> Option<&MemoryStore> {
        match self {
            SimStore::Memory(store) => Some(store),
            SimStore::Redis(_) => None,
        }
    }

    /// Runs a future that uses this store.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> Result<T, CommandFailure> {
        let redis = match self {
            SimStore::Memory(_) => return Ok(expect_ready(answer)),
            SimStore::Redis(redis) => redis,
        };
        let answer = redis.runtime.block_on(answer);
        match redis.first_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(answer),
            Some(error) => Err(CommandFailure::Input(Report::new(error.to_string()))),
        }
    }
}

/// Waits for a connection.
async fn connected(store: &RedisStore, url: &str) -> Result<(), CommandFailure> {
    let is_up = async {
        while !store.link_stats().is_up() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(CONNECT_MAX, is_up).await.map_err(|_| {
        let stats = store.link_stats();
        let why = stats.nodes.iter().find_map(|node| node.down.as_ref());
        let why = why.map_or_else(|| "no connection".into(), ToString::to_string);
        let problem = format!("cannot reach the store {url}: {why}");
        CommandFailure::Input(Report::new(problem).hint("start it, or leave out --store"))
    })
}

/// A random prefix, so that simulations do not share keys.
fn prefix() -> Result<KeyPrefix, Report> {
    let mut random = [0; 8];
    let filled = aws_lc_rs::rand::fill(&mut random);
    filled.map_err(|_| Report::new("cannot get random numbers from the system"))?;
    let prefix = format!("tollgate-simulate-{}", const_hex::encode(random));
    prefix.parse().map_err(|error| Report::new(format!("{prefix}: {error}")))
}

impl SimRedisStore {
    /// Returns the answer; on an error, records it and returns the other value.
    async fn or_record_error<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
        other: impl FnOnce() -> T,
    ) -> Result<T, Infallible> {
        Ok(answer.await.unwrap_or_else(|error| {
            let mut failed = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(error);
            other()
        }))
    }
}

impl Store for SimStore {
    type Error = Infallible;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, Infallible> {
        match self {
            SimStore::Memory(store) => Store::decide_each(&**store, checks, now, outcomes).await,
            SimStore::Redis(redis) => {
                let none = vec![Outcome::default(); checks.len()];
                let other = || Decision::of_outcomes(checks, &none, now.instant());
                redis
                    .or_record_error(
                        redis.store.decide_each(checks, now.instant(), outcomes),
                        other,
                    )
                    .await
            }
        }
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), Infallible> {
        match self {
            SimStore::Memory(store) => Store::refund(&**store, check, receipt, now).await,
            SimStore::Redis(redis) => {
                redis.or_record_error(Store::refund(&redis.store, check, receipt, now), || ()).await
            }
        }
    }

    async fn reset(&self, check: &Check<'_>, now: Micros) -> Result<bool, Infallible> {
        match self {
            SimStore::Memory(store) => Store::reset(&**store, check, now).await,
            SimStore::Redis(redis) => {
                redis.or_record_error(Store::reset(&redis.store, check, now), || false).await
            }
        }
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
        match self {
            SimStore::Memory(store) => Store::balance(&**store, check, now).await,
            SimStore::Redis(redis) => {
                redis.or_record_error(Store::balance(&redis.store, check, now), || 0).await
            }
        }
    }

    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, Infallible> {
        match self {
            SimStore::Memory(store) => Store::block(&**store, key, until, now).await,
            SimStore::Redis(redis) => {
                redis.or_record_error(Store::block(&redis.store, key, until, now), || false).await
            }
        }
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
        match self {
            SimStore::Memory(store) => Store::unblock(&**store, key, now).await,
            SimStore::Redis(redis) => {
                redis.or_record_error(Store::unblock(&redis.store, key, now), || false).await
            }
        }
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        match self {
            SimStore::Memory(store) => store.blocked(key, now),
            SimStore::Redis(redis) => Store::blocked(&redis.store, key, now),
        }
    }

    fn any_block(&self, now: Micros) -> bool {
        match self {
            SimStore::Memory(store) => store.any_block(now),
            SimStore::Redis(redis) => Store::any_block(&redis.store, now),
        }
    }
}
