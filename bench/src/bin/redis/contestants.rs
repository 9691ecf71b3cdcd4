//! Who is asked, and for what.

use std::rc::Rc;
use std::time::Duration;

use tollgate::{Algorithm, Check, Clock, Limit, Outcome, SystemClock};
use tollgate_redis::{Options, RedisStore, StoreUrl};

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
    Naive(Naive, Quota),
    Strict(RedisStore, Limit),
}

impl Contestant {
    /// One EVALSHA for each request.
    pub(crate) async fn naive(
        url: &str,
        quota: Quota,
        names: &Names,
    ) -> Result<Rc<Contestant>, String> {
        let who = Who::Naive(Naive::connect(url).await?, quota);
        Ok(Rc::new(Contestant { who, names: Rc::clone(names) }))
    }

    /// The store as it is, with connections of its own.
    pub(crate) fn strict(url: &str, quota: Quota, names: &Names) -> Result<Rc<Contestant>, String> {
        let who = Who::Strict(store(url)?, quota.limit());
        Ok(Rc::new(Contestant { who, names: Rc::clone(names) }))
    }

    /// Whether one caller may go on; an error if nobody can say.
    pub(crate) async fn ask(&self, key: u64) -> Result<bool, String> {
        let key = &*self.names[key as usize];
        match &self.who {
            Who::Naive(naive, quota) => {
                naive.take(key, quota.capacity, quota.per_hour as f64 / 3_600.0).await
            }
            Who::Strict(store, limit) => {
                let mut outcome = [Outcome::default()];
                let check = [Check::new(limit, key)];
                let decision = store.decide_each(&check, SystemClock.now(), &mut outcome).await;
                decision.map(|it| it.allowed()).map_err(|error| error.to_string())
            }
        }
    }

    /// Whether answers may come without asking Redis.
    pub(crate) fn may_answer_at_once(&self) -> bool {
        match self.who {
            Who::Naive(..) | Who::Strict(..) => false,
        }
    }
}

fn store(url: &str) -> Result<RedisStore, String> {
    let url = StoreUrl::parse(url).map_err(|error| error.to_string())?;
    Ok(RedisStore::at(&url, &Options { timeout: PATIENCE, ..Options::default() }))
}
