//! The contestants and their quotas.

use std::rc::Rc;
use std::time::Duration;

use tollgate::{
    Algorithm, Check, Clock, Consistency, DecidedBy, Limit, Now, Outcome, Store, SystemClock, Terms,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStats, SharedStore, StoreUrl, TimeSource};

use crate::naive::NaiveRedisLimiter;
use crate::redis_crate::RedisCrateTransport;

/// A token bucket, the same for all contestants that are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RedisQuota {
    pub(crate) capacity: u64,
    pub(crate) per_hour: u64,
}

/// A quota that is never exhausted, so that only the path to an answer is measured.
pub(crate) const UNREACHED_QUOTA: RedisQuota =
    RedisQuota { capacity: 100_000_000, per_hour: 3_600 * 100_000_000 };
/// A quota that is exhausted at once.
pub(crate) const EXHAUSTED_QUOTA: RedisQuota = RedisQuota { capacity: 1, per_hour: 1 };

impl RedisQuota {
    fn limit(self) -> Limit {
        let limit = Limit::per_hour(self.per_hour).burst(self.capacity);
        limit.algorithm(Algorithm::TokenBucket).name("bench").build().expect("valid numbers")
    }
}

/// Timeout of an answer; long, so that slow answers are measured and not cut off.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of keys whose states are kept in this process for when Redis is unavailable.
const LOCAL_KEYS: usize = 200_000;

/// Names of keys, generated before the clock starts.
pub(crate) type BenchKeyNames = Rc<[Box<str>]>;

/// Generates the names `user:0000000` and so on.
pub(crate) fn key_names(count: usize) -> BenchKeyNames {
    (0..count).map(|number| format!("user:{number:07}").into()).collect()
}

/// A limiter that is measured.
pub(crate) struct RedisContestant {
    kind: RedisContestantKind,
    names: BenchKeyNames,
}

enum RedisContestantKind {
    PingOnly(NaiveRedisLimiter),
    Naive(NaiveRedisLimiter, RedisQuota),
    Tollgate(SharedStore<RedisStore>, Box<Limit>, Terms),
    RedisCrate(RedisCrateTransport),
    OurTransport(RedisStore, Box<Limit>),
}

impl RedisContestant {
    /// A contestant that decides nothing: one PING for each request shows the cost of the machine and the
    /// round trip.
    pub(crate) async fn ping_only(
        url: &str,
        names: &BenchKeyNames,
    ) -> Result<Rc<RedisContestant>, String> {
        let who = RedisContestantKind::PingOnly(NaiveRedisLimiter::connect(url).await?);
        Ok(Rc::new(RedisContestant { kind: who, names: Rc::clone(names) }))
    }

    /// The naive contestant: one EVALSHA for each request.
    pub(crate) async fn naive(
        url: &str,
        quota: RedisQuota,
        names: &BenchKeyNames,
    ) -> Result<Rc<RedisContestant>, String> {
        let who = RedisContestantKind::Naive(NaiveRedisLimiter::connect(url).await?, quota);
        Ok(Rc::new(RedisContestant { kind: who, names: Rc::clone(names) }))
    }

    /// A Tollgate instance with connections of its own.
    pub(crate) fn tollgate(
        url: &str,
        quota: RedisQuota,
        consistency: Consistency,
        names: &BenchKeyNames,
    ) -> Result<Rc<RedisContestant>, String> {
        let url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
        let options = RedisOptions { timeout: ANSWER_TIMEOUT, ..RedisOptions::default() };
        let store = RedisStore::at(&url, &options);
        let shared = SharedStore::start(vec![store], LOCAL_KEYS, TimeSource::Server);
        let terms = Terms { consistency, ..Terms::default() };
        let who = RedisContestantKind::Tollgate(shared, Box::new(quota.limit()), terms);
        Ok(Rc::new(RedisContestant { kind: who, names: Rc::clone(names) }))
    }

    /// Our script over the redis crate's connection, and over ours.
    pub(crate) async fn transports(
        url: &str,
        names: &BenchKeyNames,
    ) -> Result<[Rc<RedisContestant>; 2], String> {
        let store_url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
        let options = RedisOptions { timeout: ANSWER_TIMEOUT, ..RedisOptions::default() };
        let store = RedisStore::at(&store_url, &options);
        let limit = Box::new(UNREACHED_QUOTA.limit());
        let theirs = RedisCrateTransport::connect(url, &store, &limit, names).await?;
        let kinds = [
            RedisContestantKind::RedisCrate(theirs),
            RedisContestantKind::OurTransport(store, limit),
        ];
        Ok(kinds.map(|kind| Rc::new(RedisContestant { kind, names: Rc::clone(names) })))
    }

    /// Statistics of a Tollgate instance.
    pub(crate) fn stats(&self) -> Option<SharedStats> {
        match &self.kind {
            RedisContestantKind::Tollgate(shared, ..) => Some(shared.stats()),
            _ => None,
        }
    }

    /// Returns leases and other held units to the store.
    pub(crate) async fn settle(&self) {
        if let RedisContestantKind::Tollgate(shared, ..) = &self.kind {
            shared.drain().await;
        }
    }

    /// Decides about one request. Returns true if it is allowed, and an error if Redis did not decide.
    pub(crate) async fn ask(&self, key: u64) -> Result<bool, String> {
        let number = key;
        let key = &*self.names[key as usize];
        match &self.kind {
            RedisContestantKind::RedisCrate(transport) => transport.take(number).await,
            RedisContestantKind::OurTransport(store, limit) => {
                let mut outcome = [Outcome::default()];
                let check = [Check::new(limit, key)];
                let decision = store.decide_each(&check, SystemClock.now(), &mut outcome).await;
                decision.map(|decision| decision.allowed()).map_err(|error| error.to_string())
            }
            RedisContestantKind::PingOnly(naive) => naive.ping().await.map(|()| true),
            RedisContestantKind::Naive(naive, quota) => {
                naive.take(key, quota.capacity, quota.per_hour as f64 / 3_600.0).await
            }
            RedisContestantKind::Tollgate(shared, limit, terms) => {
                let mut outcome = [Outcome::default()];
                let check = [Check::new(limit, key).terms(*terms)];
                let Ok(decision) =
                    shared.decide_each(&check, Now::live(&SystemClock), &mut outcome).await;
                match decision.decided_by() {
                    DecidedBy::Local | DecidedBy::Open | DecidedBy::Closed => {
                        Err("Redis did not answer".into())
                    }
                    _ => Ok(decision.allowed()),
                }
            }
        }
    }

    /// Returns true if answers may come without a call to Redis.
    pub(crate) fn may_answer_at_once(&self) -> bool {
        matches!(self.kind, RedisContestantKind::Tollgate(..))
    }
}
