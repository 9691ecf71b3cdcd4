//! Leases: at most ε of the capacity too much or too early, and most calls saved.

use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::history::{self, BucketBound};
use testkit::redis::TestRedisCluster;

use super::*;

const EPSILON: u64 = 50_000;
const LEASED: Consistency = Consistency::Leased { millionths: EPSILON as u32 };

/// Three instances, more asked for than there is: no interval holds more than the limit and ε of the
/// capacity, and no less is admitted than the limit less ε of the capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_stay_within_epsilon() {
    let server = TestRedis::start();
    let all = instances(&server, 3).await;
    let limit = Limit::per_second(4_000).burst(10_000).build().unwrap();
    let began = now().as_u64();
    let saw = hammer(&all, &limit, LEASED, 4, 4_000).await;
    let lasted = now().as_u64() - began;
    for shared in &all {
        shared.drain().await;
    }

    let calls: Vec<ObservedCall> = saw.iter().flat_map(|saw| saw.calls.iter().copied()).collect();
    let leased: u64 = saw.iter().map(|saw| saw.leased).sum();
    let bound = BucketBound { burst: 10_000, units: 4_000, period_us: 1_000_000 };
    let excess = history::excess(bound, &calls);
    let part = limit.capacity() * EPSILON / 1_000_000;
    assert!(leased > 2_000, "{leased} of {} were leased", calls.len());
    assert!(excess <= part, "{excess} above, {part} allowed");
    let refused = calls.iter().filter(|call| !call.admitted).count();
    assert!(refused > 100, "more was asked for than there is: {refused} refused");
    let due = 10_000 + 4_000 * lasted / 1_000_000;
    let got = admitted(&saw);
    // A tenth of a second for what was on its way, and callers that waited for the next unit.
    assert!(got + part + 400 >= due, "{got} of {due}");
    for shared in &all {
        let stats = shared.stats();
        assert!(stats.outstanding_max_millionths <= EPSILON, "{stats:?}");
        assert_eq!((stats.leases, stats.units_unused, stats.degraded_local), (0, 0, 0));
    }
    every_key_expires(&server);
}

/// What is charged in the store in the end is what was admitted, to the unit: unspent budget came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_borrowed_is_spent_or_given_back() {
    let server = TestRedis::start();
    let all = instances(&server, 3).await;
    for algorithm in tollgate::Algorithm::ALL {
        let limit = Limit::per_day(1_000_000).algorithm(algorithm).build().unwrap();
        let saw = hammer(&all, &limit, LEASED, 2, 500).await;
        let leased: u64 = saw.iter().map(|saw| saw.leased).sum();
        assert!(leased > 500, "{algorithm}: {leased} leased");
        let (check, got) = (Check::new(&limit, "hot"), admitted(&saw) as i64);
        let deadline = now().as_u64() + 5_000_000;
        loop {
            // Once more for what was being borrowed meanwhile.
            for shared in &all {
                shared.drain().await;
            }
            let Ok(left) = all[0].balance(&check, now()).await;
            let used = 1_000_000 - left;
            // A bucket gets 11 units back each second, a log may merge what is close.
            if (got - 60..=got).contains(&used) {
                break;
            }
            let late = now().as_u64() > deadline;
            assert!(!late, "{algorithm}: {used} charged, {got} admitted");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    every_key_expires(&server);
}

/// A hot key that is admitted hardly asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_calls_are_saved() {
    let server = TestRedis::start();
    let all = instances(&server, 1).await;
    let limit = Limit::per_second(10_000_000).burst(10_000_000).build().unwrap();
    let before = calls_of(&all[0]);
    let saw = hammer(&all, &limit, LEASED, 2, 1_000).await;
    let (asked, calls) = (saw[0].calls.len() as u64, calls_of(&all[0]) - before);
    assert_eq!(admitted(&saw), asked);
    assert!(calls * 10 <= asked, "{calls} calls for {asked} decisions");
}

/// The book of a key is where its state is: a cluster lends as one server does, and what a request takes
/// of a lease is given back when a limit in another slot refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_lends_too() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let all = instances_at(&cluster.url(), 2).await;
    let limit = Limit::per_day(1_000_000).burst(1_000_000).build().unwrap();
    let saw = hammer(&all, &limit, LEASED, 2, 500).await;
    let leased: u64 = saw.iter().map(|saw| saw.leased).sum();
    assert!(leased > 500, "{leased} leased");

    let few = Limit::per_day(3).burst(3).name("few").build().unwrap();
    let terms = Terms { consistency: LEASED, ..Terms::default() };
    let both = [Check::new(&limit, "hot").terms(terms), Check::new(&few, "another slot")];
    for allowed in [true, true, true, false, false] {
        assert_eq!(decide(&all[0], &both).await.allowed(), allowed);
    }
    for shared in &all {
        shared.drain().await;
    }
    let Ok(left) = all[0].balance(&both[0], now()).await;
    let (used, got) = (1_000_000 - left, admitted(&saw) as i64 + 3);
    assert!((got - 60..=got).contains(&used), "{used} charged, {got} admitted");
}

/// Would catch: budget that is charged and then forgotten, because its answer came later than a caller
/// waits for one.
#[tokio::test]
async fn what_is_borrowed_late_is_not_lost() {
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    let options = RedisOptions { timeout: Duration::from_millis(800), ..RedisOptions::default() };
    let store = RedisStore::at(&StoreUrl::parse(&proxy.url()).unwrap(), &options);
    let shared = SharedStore::start(vec![store], 1_000, TimeSource::Server);
    let limit = Limit::per_day(1_000_000).algorithm(tollgate::Algorithm::FixedWindow);
    let limit = limit.build().unwrap();
    let check = Check::new(&limit, "hot").terms(Terms { consistency: LEASED, ..Terms::default() });
    // The last of these makes the key a busy one; nothing is asked for in the background before the
    // next wait.
    let (at, mut asked, deadline) = (now(), 0, now().as_u64() + 20_000_000);
    while asked < 32 {
        assert!(now().as_u64() < deadline, "the store does not answer");
        asked += u64::from(decide_at(&shared, &[check], at).await.decided_by() == DecidedBy::Redis);
    }
    proxy.set_mode(FaultMode::Delay { by: Duration::from_millis(900), jitter: Duration::ZERO });
    let deadline = now().as_u64() + 10_000_000;
    while shared.stats().units_lent == 0 {
        assert!(now().as_u64() < deadline, "charged, and not lent: {:?}", shared.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.set_mode(FaultMode::Pass);
    let deadline = now().as_u64() + 10_000_000;
    loop {
        shared.drain().await;
        let Ok(left) = shared.balance(&check, now()).await;
        if 1_000_000 - left == asked as i64 {
            break;
        }
        assert!(now().as_u64() < deadline, "{left} left after {asked}: {:?}", shared.stats());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
