//! Hot keys on a real server: what leases, local sync and the refusal cache promise, and what they save.

mod lease_book;
mod leases;
mod local_syncing;
mod refusal_caching;

use std::time::Duration;

use testkit::history::ObservedCall;
use testkit::redis::TestRedis;
use tollgate::{
    Check, Clock, Consistency, DecidedBy, Decision, Limit, Micros, Outcome, Store, SystemClock,
    Terms,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};

/// One instance: a store with connections of its own.
fn instance(url: &str) -> SharedStore<RedisStore> {
    // Longer than any machine needs: these tests are not about time.
    let options = RedisOptions { timeout: Duration::from_secs(5), ..RedisOptions::default() };
    let store = RedisStore::at(&StoreUrl::parse(url).unwrap(), &options);
    SharedStore::start(vec![store], 10_000, TimeSource::Server)
}

/// So many instances, all of them connected.
async fn instances(server: &TestRedis, count: u32) -> Vec<SharedStore<RedisStore>> {
    instances_at(&server.url(), count).await
}

async fn instances_at(url: &str, count: u32) -> Vec<SharedStore<RedisStore>> {
    let limit = Limit::per_second(1_000_000).name("hello").build().unwrap();
    let all: Vec<_> = (0..count).map(|_| instance(url)).collect();
    for one in &all {
        one.set_live_instances(count);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while decide(one, &[Check::new(&limit, "a")]).await.decided_by() != DecidedBy::Redis {
            assert!(tokio::time::Instant::now() < deadline, "no connection");
            tokio::task::yield_now().await;
        }
    }
    all
}

fn now() -> Micros {
    SystemClock.now()
}

async fn decide(shared: &SharedStore<RedisStore>, checks: &[Check<'_>]) -> Decision {
    decide_at(shared, checks, now()).await
}

async fn decide_at(
    shared: &SharedStore<RedisStore>,
    checks: &[Check<'_>],
    now: Micros,
) -> Decision {
    let Ok(decision) = shared.decide_each(checks, now.into(), &mut [Outcome::default(); 16]).await;
    decision
}

fn calls_of(shared: &SharedStore<RedisStore>) -> u64 {
    shared.stores().map(|store| store.link_stats().calls).sum()
}

/// What one caller does.
#[derive(Clone)]
struct HotKeyCaller {
    shared: SharedStore<RedisStore>,
    limit: Limit,
    consistency: Consistency,
    until: Micros,
}

/// What it saw.
#[derive(Default)]
struct HotKeyCallLog {
    calls: Vec<ObservedCall>,
    leased: u64,
    cached: u64,
}

impl HotKeyCaller {
    /// Asks one by one until its time is over, with a rest now and then, so that others get on.
    async fn run(self) -> HotKeyCallLog {
        let terms = Terms { consistency: self.consistency, ..Terms::default() };
        let check = Check::new(&self.limit, "hot").terms(terms);
        let mut saw = HotKeyCallLog::default();
        loop {
            let asked = now();
            if asked >= self.until {
                return saw;
            }
            let decision = decide_at(&self.shared, &[check], asked).await;
            saw.leased += u64::from(decision.decided_by() == DecidedBy::Lease);
            saw.cached += u64::from(decision.decided_by() == DecidedBy::RefusalCache);
            let admitted = decision.allowed();
            let (asked_us, answered_us) = (asked.as_u64(), now().as_u64());
            saw.calls.push(ObservedCall { asked_us, answered_us, cost: 1, admitted });
            if !admitted || saw.calls.len().is_multiple_of(64) {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
    }
}

/// Has `callers` on each instance ask for one key for a while; what they saw, by instance.
async fn hammer(
    instances: &[SharedStore<RedisStore>],
    limit: &Limit,
    consistency: Consistency,
    callers: usize,
    millis: u64,
) -> Vec<HotKeyCallLog> {
    let until = Micros::new(now().as_u64() + millis * 1_000);
    let caller = |shared: &SharedStore<RedisStore>| HotKeyCaller {
        shared: shared.clone(),
        limit: limit.clone(),
        consistency,
        until,
    };
    let mut running = Vec::new();
    for (number, shared) in instances.iter().enumerate() {
        for _ in 0..callers {
            running.push((number, tokio::spawn(caller(shared).run())));
        }
    }
    let mut saw: Vec<HotKeyCallLog> = instances.iter().map(|_| HotKeyCallLog::default()).collect();
    for (number, task) in running {
        let one = task.await.unwrap();
        saw[number].calls.extend(one.calls);
        saw[number].leased += one.leased;
        saw[number].cached += one.cached;
    }
    saw
}

fn admitted(saw: &[HotKeyCallLog]) -> u64 {
    saw.iter().flat_map(|saw| &saw.calls).filter(|call| call.admitted).count() as u64
}

fn every_key_expires(server: &TestRedis) {
    let script = "local bad = {} for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('PTTL', key) < 0 then bad[#bad + 1] = key end end
        return #bad";
    assert_eq!(server.cli(&["EVAL", script, "0"]).trim(), "0");
}
