//! Who is asked, and for what.

use std::rc::Rc;
use std::time::Duration;

use tollgate::{
    Algorithm, Check, Clock, Consistency, DecidedBy, Limit, Now, Outcome, Store, SystemClock, Terms,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStats, SharedStore, StoreUrl, TimeSource};

use crate::naive::NaiveRedisLimiter;
use crate::redis_crate::RedisCrateTransport;

/// A bucket, the same for everybody who is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RedisQuota {
    pub(crate) capacity: u64,
    pub(crate) per_hour: u64,
}

/// Never reached: what is measured is the way to an answer.
pub(crate) const UNREACHED_QUOTA: RedisQuota =
    RedisQuota { capacity: 100_000_000, per_hour: 3_600 * 100_000_000 };
/// Reached at once.
pub(crate) const EXHAUSTED_QUOTA: RedisQuota = RedisQuota { capacity: 1, per_hour: 1 };

impl RedisQuota {
    fn limit(self) -> Limit {
        let limit = Limit::per_hour(self.per_hour).burst(self.capacity);
        limit.algorithm(Algorithm::TokenBucket).name("bench").build().expect("valid numbers")
    }
}

/// The most that anybody waits for an answer: long, so that what is slow is seen and not cut off.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Keys whose states are kept here for when Redis does not answer.
const LOCAL_KEYS: usize = 200_000;

/// Names of keys, made before the clock starts.
pub(crate) type BenchKeyNames = Rc<[Box<str>]>;

/// `user:0000000` and so on.
pub(crate) fn key_names(count: usize) -> BenchKeyNames {
    (0..count).map(|number| format!("user:{number:07}").into()).collect()
}

/// Somebody who decides.
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
    /// Nobody decides: one PING for each request, which is what the machine and the way take.
    pub(crate) async fn ping_only(
        url: &str,
        names: &BenchKeyNames,
    ) -> Result<Rc<RedisContestant>, String> {
        let who = RedisContestantKind::PingOnly(NaiveRedisLimiter::connect(url).await?);
        Ok(Rc::new(RedisContestant { kind: who, names: Rc::clone(names) }))
    }

    /// One EVALSHA for each request.
    pub(crate) async fn naive(
        url: &str,
        quota: RedisQuota,
        names: &BenchKeyNames,
    ) -> Result<Rc<RedisContestant>, String> {
        let who = RedisContestantKind::Naive(NaiveRedisLimiter::connect(url).await?, quota);
        Ok(Rc::new(RedisContestant { kind: who, names: Rc::clone(names) }))
    }

    /// An instance of ours, with connections of its own.
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

    /// What it did without the store.
    pub(crate) fn stats(&self) -> Option<SharedStats> {
        match &self.kind {
            RedisContestantKind::Tollgate(shared, ..) => Some(shared.stats()),
            _ => None,
        }
    }

    /// Gives back what it holds.
    pub(crate) async fn settle(&self) {
        if let RedisContestantKind::Tollgate(shared, ..) = &self.kind {
            shared.drain().await;
        }
    }

    /// Whether one caller may go on; an error if nobody can say.
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

    /// Whether answers may come without asking Redis.
    pub(crate) fn may_answer_at_once(&self) -> bool {
        matches!(self.kind, RedisContestantKind::Tollgate(..))
    }
}
