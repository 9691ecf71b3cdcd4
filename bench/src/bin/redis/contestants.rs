//! Who is asked, and for what.

use std::rc::Rc;
use std::time::Duration;

use tollgate::{
    Algorithm, Check, Consistency, DecidedBy, Limit, Now, Outcome, Store, SystemClock, Terms,
};
use tollgate_redis::{Options, RedisStore, Shared, SharedStats, StoreUrl, TimeOf};

use crate::naive::Naive;

/// A bucket, the same for everybody who is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quota {
    pub(crate) capacity: u64,
    pub(crate) per_hour: u64,
}

/// Never reached: what is measured is the way to an answer.
pub(crate) const ROOM: Quota = Quota { capacity: 100_000_000, per_hour: 3_600 * 100_000_000 };
/// Reached at once.
pub(crate) const NONE_LEFT: Quota = Quota { capacity: 1, per_hour: 1 };

impl Quota {
    fn limit(self) -> Limit {
        let limit = Limit::per_hour(self.per_hour).burst(self.capacity);
        limit.algorithm(Algorithm::TokenBucket).name("bench").build().expect("valid numbers")
    }
}

/// The most that anybody waits for an answer: long, so that what is slow is seen and not cut off.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keys whose states are kept here for when Redis does not answer.
const LOCAL_KEYS: usize = 200_000;

/// Names of keys, made before the clock starts.
pub(crate) type Names = Rc<[Box<str>]>;

/// `user:0000000` and so on.
pub(crate) fn names(count: usize) -> Names {
    (0..count).map(|number| format!("user:{number:07}").into()).collect()
}

/// Somebody who decides.
pub(crate) struct Contestant {
    who: Who,
    names: Names,
}

enum Who {
    Nobody(Naive),
    Naive(Naive, Quota),
    Tollgate(Shared<RedisStore>, Box<Limit>, Terms),
}

impl Contestant {
    /// Nobody decides: one PING for each request, which is what the machine and the way take.
    pub(crate) async fn nobody(url: &str, names: &Names) -> Result<Rc<Contestant>, String> {
        let who = Who::Nobody(Naive::connect(url).await?);
        Ok(Rc::new(Contestant { who, names: Rc::clone(names) }))
    }

    /// One EVALSHA for each request.
    pub(crate) async fn naive(
        url: &str,
        quota: Quota,
        names: &Names,
    ) -> Result<Rc<Contestant>, String> {
        let who = Who::Naive(Naive::connect(url).await?, quota);
        Ok(Rc::new(Contestant { who, names: Rc::clone(names) }))
    }

    /// An instance of ours, with connections of its own.
    pub(crate) fn tollgate(
        url: &str,
        quota: Quota,
        consistency: Consistency,
        names: &Names,
    ) -> Result<Rc<Contestant>, String> {
        let url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
        let options = Options { timeout: PATIENCE, ..Options::default() };
        let store = RedisStore::at(&url, &options);
        let shared = Shared::start(vec![store], LOCAL_KEYS, TimeOf::Server);
        let terms = Terms { consistency, ..Terms::default() };
        let who = Who::Tollgate(shared, Box::new(quota.limit()), terms);
        Ok(Rc::new(Contestant { who, names: Rc::clone(names) }))
    }

    /// What it did without the store.
    pub(crate) fn stats(&self) -> Option<SharedStats> {
        match &self.who {
            Who::Nobody(_) | Who::Naive(..) => None,
            Who::Tollgate(shared, ..) => Some(shared.stats()),
        }
    }

    /// Gives back what it holds.
    pub(crate) async fn settle(&self) {
        if let Who::Tollgate(shared, ..) = &self.who {
            shared.settle().await;
        }
    }

    /// Whether one caller may go on; an error if nobody can say.
    pub(crate) async fn ask(&self, key: u64) -> Result<bool, String> {
        let key = &*self.names[key as usize];
        match &self.who {
            Who::Nobody(naive) => naive.ping().await.map(|()| true),
            Who::Naive(naive, quota) => {
                naive.take(key, quota.capacity, quota.per_hour as f64 / 3_600.0).await
            }
            Who::Tollgate(shared, limit, terms) => {
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
        matches!(self.who, Who::Tollgate(..))
    }
}
