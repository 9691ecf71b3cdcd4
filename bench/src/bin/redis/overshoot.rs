//! The overshoot of a leased limit: instances that share a busy key record every admission, and the history
//! checker computes the units admitted above the limit.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use testkit::history::{self, BucketBound, ObservedCall};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use tollgate::Consistency;

use crate::contestants::{BenchKeyNames, RedisContestant, RedisQuota};
use crate::servers::RedisBenchServers;

/// The limit in units per second, which is also its capacity.
const PER_S: u64 = 20_000;
const INSTANCES: usize = 3;
const CALLERS: usize = 48;
/// Pause of a caller after a refusal; together the callers then request about twice the limit.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The result of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseOvershoot {
    /// The share of the capacity that may be leased at a time.
    pub(crate) epsilon: f64,
    /// Units admitted above the limit in the worst interval, as a share of the capacity.
    pub(crate) measured: f64,
    /// The most units leased at once by the instances' own statistics, as a share of the capacity.
    pub(crate) outstanding: f64,
    /// Units admitted, as a share of those that the limit allows in the time.
    pub(crate) passed: f64,
    /// Script calls for each decision.
    pub(crate) calls: f64,
}

/// Measures several instances that share one key, with more demand than the limit.
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

/// Sends requests until the time is over and returns their number.
async fn caller(
    instance: Rc<RedisContestant>,
    begin: Instant,
    duration: Duration,
    // Bound: the units that the limit allows in the time, and the overshoot.
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
            // Answers without a wait would starve the other callers.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
    asked
}
