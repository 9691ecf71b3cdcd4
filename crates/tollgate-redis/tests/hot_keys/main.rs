//! Hot keys on a real server: what leases, local sync and the refusal cache promise, and what they save.

mod book;
mod leased;
mod refused;
mod synced;

use std::time::Duration;

use testkit::history::Call;
use testkit::redis::Server;
use tollgate::{
    Check, Clock, Consistency, DecidedBy, Decision, Limit, Micros, Outcome, Store, SystemClock,
    Terms,
};
use tollgate_redis::{Options, RedisStore, Shared, StoreUrl, TimeOf};

/// One instance: a store with connections of its own.
fn instance(url: &str) -> Shared<RedisStore> {
    // Longer than any machine needs: these tests are not about time.
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
    let store = RedisStore::at(&StoreUrl::parse(url).unwrap(), &options);
    Shared::start(vec![store], 10_000, TimeOf::Server)
}

/// So many instances, all of them connected.
async fn instances(server: &Server, count: u32) -> Vec<Shared<RedisStore>> {
    instances_at(&server.url(), count).await
}

async fn instances_at(url: &str, count: u32) -> Vec<Shared<RedisStore>> {
    let limit = Limit::per_second(1_000_000).name("hello").build().unwrap();
    let all: Vec<_> = (0..count).map(|_| instance(url)).collect();
    for one in &all {
        one.set_live(count);
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

async fn decide(shared: &Shared<RedisStore>, checks: &[Check<'_>]) -> Decision {
    decide_at(shared, checks, now()).await
}

async fn decide_at(shared: &Shared<RedisStore>, checks: &[Check<'_>], now: Micros) -> Decision {
    let Ok(decision) = shared.decide_each(checks, now.into(), &mut [Outcome::default(); 16]).await;
    decision
}

fn calls_of(shared: &Shared<RedisStore>) -> u64 {
    shared.stores().map(|store| store.link_stats().calls).sum()
}

/// What one caller does.
#[derive(Clone)]
struct Caller {
    shared: Shared<RedisStore>,
    limit: Limit,
    consistency: Consistency,
    until: Micros,
}

/// What it saw.
#[derive(Default)]
struct Saw {
    calls: Vec<Call>,
    leased: u64,
    cached: u64,
}

impl Caller {
    /// Asks one by one until its time is over, with a rest now and then, so that others get on.
    async fn run(self) -> Saw {
        let terms = Terms { consistency: self.consistency, ..Terms::default() };
        let check = Check::new(&self.limit, "hot").terms(terms);
        let mut saw = Saw::default();
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
            saw.calls.push(Call { asked_us, answered_us, cost: 1, admitted });
            if !admitted || saw.calls.len().is_multiple_of(64) {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
    }
}

/// Has `callers` on each instance ask for one key for a while; what they saw, by instance.
async fn hammer(
    instances: &[Shared<RedisStore>],
    limit: &Limit,
    consistency: Consistency,
    callers: usize,
    millis: u64,
) -> Vec<Saw> {
    let until = Micros::new(now().as_u64() + millis * 1_000);
    let caller = |shared: &Shared<RedisStore>| Caller {
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
    let mut saw: Vec<Saw> = instances.iter().map(|_| Saw::default()).collect();
    for (number, task) in running {
        let one = task.await.unwrap();
        saw[number].calls.extend(one.calls);
        saw[number].leased += one.leased;
        saw[number].cached += one.cached;
    }
    saw
}

fn admitted(saw: &[Saw]) -> u64 {
    saw.iter().flat_map(|saw| &saw.calls).filter(|call| call.admitted).count() as u64
}

fn every_key_expires(server: &Server) {
    let script = "local bad = {} for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('PTTL', key) < 0 then bad[#bad + 1] = key end end
        return #bad";
    assert_eq!(server.cli(&["EVAL", script, "0"]).trim(), "0");
}
