//! Rules whose numbers change, as `tollgate-rules` tests them in memory: here two gatekeepers share a real server, at
//! injected times.

#[path = "../../tollgate-rules/tests/changing_rules/run.rs"]
mod run;

use run::ChangingRun;
use testkit::redis::TestRedis;
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, TimeSource};

use crate::shared;

const RUNS: u64 = 60;

async fn store_at(server: &TestRedis) -> SharedStore<RedisStore> {
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    let store = shared::store_at(server, options).await;
    SharedStore::start_without_passing_time(vec![store], 10_000, TimeSource::Caller)
}

#[tokio::test]
async fn whatever_changes_waits_come_true_and_nothing_is_refilled() {
    let server = TestRedis::start();
    let stores = [store_at(&server).await, store_at(&server).await];
    let mut waited = 0;
    for seed in 0..RUNS {
        let mut run = ChangingRun::new(seed, stores.clone());
        run.run().await;
        waited += run.waited;
    }
    assert!(waited > RUNS / 2, "only {waited} callers have waited");
    for store in &stores {
        let stats = store.stats();
        assert_eq!((stats.degraded_local, stats.refunds_lost), (0, 0), "{stats:?}");
    }
}
