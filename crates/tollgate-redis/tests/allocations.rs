//! What is answered without the store is answered without an allocation: a counting allocator watches.

#[path = "../../tollgate/tests/counting/mod.rs"]
mod counting;

use std::time::Duration;

use counting::allocations;
use testkit::redis::TestRedis;
use tokio::runtime::Builder;
use tollgate::{
    Check, Clock, Consistency, DecidedBy, Decision, Limit, Outcome, Store, SystemClock, Terms,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};

async fn decide(shared: &SharedStore<RedisStore>, check: Check<'_>) -> Decision {
    let mut outcome = [Outcome::default()];
    let now = SystemClock.now();
    let Ok(decision) = shared.decide_each(&[check], now.into(), &mut outcome).await;
    decision
}

/// Asks until so many answers came from `by`, and fails if one of those allocated.
async fn allocates_nothing(shared: &SharedStore<RedisStore>, check: Check<'_>, by: DecidedBy) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let (mut here, mut allocated) = (0, 0);
    while here < 10_000 {
        assert!(tokio::time::Instant::now() < deadline, "{here} answers by {}", by.name());
        let before = allocations();
        let decision = decide(shared, check).await;
        if decision.decided_by() == by {
            here += 1;
            allocated += u64::from(allocations() != before);
        }
    }
    // Whoever finds half of a lease spent has the next one asked for: a few in 10,000.
    let allowed = if by == DecidedBy::Lease { 100 } else { 0 };
    assert!(allocated <= allowed, "{allocated} of 10,000 answers by {} allocated", by.name());
}

#[test]
fn what_is_answered_here_allocates_nothing() {
    let server = TestRedis::start();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let options = RedisOptions { timeout: Duration::from_secs(5), ..RedisOptions::default() };
        let store = RedisStore::at(&StoreUrl::parse(&server.url()).unwrap(), &options);
        let shared = SharedStore::start(vec![store], 10_000, TimeSource::Server);
        let terms = |consistency| Terms { consistency, ..Terms::default() };
        let few = Limit::per_hour(1).build().unwrap();
        let many = Limit::per_second(10_000_000).build().unwrap();
        let check = Check::new(&few, "refused");
        allocates_nothing(&shared, check, DecidedBy::RefusalCache).await;
        let leased = terms(Consistency::Leased { millionths: 100_000 });
        allocates_nothing(&shared, Check::new(&many, "a").terms(leased), DecidedBy::Lease).await;
        let synced = terms(Consistency::LocalSync { interval_ms: 100 });
        allocates_nothing(&shared, Check::new(&many, "b").terms(synced), DecidedBy::Memory).await;
    });
}
