//! How far a leased limit is off: instances that share a busy key note every admission, and the
//! checker of histories says how much more than the limit passed.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use testkit::history::{self, BucketBound, ObservedCall};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use tollgate::Consistency;

use crate::contestants::{BenchKeyNames, RedisContestant, RedisQuota};
use crate::servers::RedisBenchServers;

/// The limit: so many a second, and as many at once.
const PER_S: u64 = 20_000;
const INSTANCES: usize = 3;
const CALLERS: usize = 48;
/// Who is refused asks again after this, so that all together ask for about twice the limit.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseOvershoot {
    /// The part that may be out at a time, of the capacity.
    pub(crate) epsilon: f64,
    /// What passed beyond the limit in the worst interval, of the capacity.
    pub(crate) measured: f64,
    /// What the instances say was out at once, at most, of the capacity.
    pub(crate) outstanding: f64,
    /// What passed, of what the limit lets pass in the time.
    pub(crate) passed: f64,
    /// Script calls for each decision.
    pub(crate) calls: f64,
}

/// Several instances, one key, more callers than the limit has room for.
pub(crate) async fn measure(
    servers: &RedisBenchServers,
    millionths: u32,
    duration: Duration,
    names: &BenchKeyNames,
) -> Result<LeaseOvershoot, String> {
    let quota = RedisQuota { capacity: PER_S, per_hour: PER_S * 3_600 };
    let consistency = Consistency::Leased { millionths };
    let instances: Result<Vec<_>, _> = (0..INSTANCES)
        .map(|_| RedisContestant::tollgate(&servers.url(), quota, consistency, names))
        .collect();
    let instances = instances?;
    let history = Rc::new(RefCell::new(Vec::new()));
    let begin = Instant::now();
    let calls_before = servers.script_calls().count;
    let asked = LocalSet::new()
        .run_until(async {
            let mut callers = JoinSet::new();
            for index in 0..CALLERS {
                let instance = Rc::clone(&instances[index % INSTANCES]);
                callers.spawn_local(caller(instance, begin, duration, Rc::clone(&history)));
            }
            let mut asked = 0;
            while let Some(count) = callers.join_next().await {
                asked += count.unwrap_or_default();
            }
            asked
        })
        .await;
    let took_us = (Instant::now() - begin).as_micros() as u64;
    let calls = (servers.script_calls().count - calls_before) as f64 / asked as f64;
    for instance in &instances {
        instance.settle().await;
    }
    let bound = BucketBound { burst: PER_S, units: PER_S, period_us: 1_000_000 };
    let history = history.borrow();
    let passed: u64 = history.iter().map(|call| call.cost).sum();
    let room = PER_S as f64 * (1.0 + took_us as f64 / 1_000_000.0);
    let most = instances.iter().filter_map(|it| it.stats()).map(|it| it.outstanding_max_millionths);
    Ok(LeaseOvershoot {
        epsilon: f64::from(millionths) / 1_000_000.0,
        measured: history::excess(bound, &history) as f64 / PER_S as f64,
        outstanding: most.max().unwrap_or(0) as f64 / 1_000_000.0,
        passed: passed as f64 / room,
        calls,
    })
}

/// Asks until the time is over; how often it did.
async fn caller(
    instance: Rc<RedisContestant>,
    begin: Instant,
    duration: Duration,
    // Bound: what the limit lets pass in the time, and what it overshoots.
    history: Rc<RefCell<Vec<ObservedCall>>>,
) -> u64 {
    let at_us = || (Instant::now() - begin).as_micros() as u64;
    let mut asked = 0;
    while Instant::now() - begin < duration {
        let asked_us = at_us();
        let admitted = instance.ask(0).await == Ok(true);
        asked += 1;
        if admitted {
            let call = ObservedCall { asked_us, answered_us: at_us(), cost: 1, admitted };
            history.borrow_mut().push(call);
            // Answers that come at once would keep the others from theirs.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
    asked
}
