//! Many askers at once: never more than a limit allows, on one server and across the slots of a
//! cluster.

use std::sync::Arc;

use crate::shared;
use testkit::redis::{TestRedis, TestRedisCluster};
use tollgate::{Act, Algorithm, Check, Limit, Micros, Outcome};
use tollgate_redis::{RedisOptions, RedisStore, StoreUrl};

const ASKERS: u64 = 16;

fn per_day(units: u64, algorithm: Algorithm) -> Limit {
    Limit::per_day(units).algorithm(algorithm).name("day").build().unwrap()
}

/// Asks until refused; returns how many units it was granted.
async fn drain(store: Arc<RedisStore>, limit: Limit, cost: u64, act: Act) -> u64 {
    let mut granted = 0;
    loop {
        let check = Check::new(&limit, "ada").cost(cost).act(act);
        let asked = store.decide_each(&[check], Micros::ZERO, &mut [Outcome::default()]).await;
        let decision = asked.expect("an answer");
        if !decision.allowed() {
            return granted;
        }
        granted += decision.granted();
    }
}

#[tokio::test]
async fn together_they_get_exactly_the_limit() {
    for algorithm in Algorithm::ALL {
        let server = TestRedis::start();
        // Two programs, each with connections of its own.
        let one = Arc::new(shared::store_at(&server, RedisOptions::default()).await);
        let other = Arc::new(shared::store_at(&server, RedisOptions::default()).await);
        // So large that nothing comes back while this runs.
        let limit = per_day(2_000, algorithm);
        let askers = (0..ASKERS).map(|asker| {
            let store = if asker % 2 == 0 { &one } else { &other };
            tokio::spawn(drain(Arc::clone(store), limit.clone(), 1, Act::Take))
        });
        let askers: Vec<_> = askers.collect();
        let mut granted = 0;
        for asker in askers {
            granted += asker.await.unwrap();
        }
        assert_eq!(granted, 2_000, "{algorithm}");
        assert_eq!((one.stats().mismatches, other.stats().mismatches), (0, 0));
    }
}

#[tokio::test]
async fn what_is_taken_up_to_is_never_more_than_there_is() {
    let server = TestRedis::start();
    let store = Arc::new(shared::store_at(&server, RedisOptions::default()).await);
    let limit = per_day(500, Algorithm::FixedWindow);
    let upto = (0..4).map(|_| drain(Arc::clone(&store), limit.clone(), 7, Act::UpTo));
    let takes = (0..4).map(|_| drain(Arc::clone(&store), limit.clone(), 1, Act::Take));
    let upto: Vec<_> = upto.map(tokio::spawn).collect();
    let takes: Vec<_> = takes.map(tokio::spawn).collect();
    let mut granted = 0;
    for asker in upto.into_iter().chain(takes) {
        granted += asker.await.unwrap();
    }
    assert_eq!(granted, 500);
}

/// Some of the programs have read new rules already.
#[tokio::test]
async fn while_numbers_change_what_is_used_stays_used() {
    let server = TestRedis::start();
    let store = Arc::new(shared::store_at(&server, RedisOptions::default()).await);
    let numbers = [300, 600].map(|units| per_day(units, Algorithm::FixedWindow));
    let askers = (0..4).map(|asker| {
        let (store, limit) = (Arc::clone(&store), numbers[asker % 2].clone());
        tokio::spawn(async move {
            let mut granted = 0;
            for _ in 0..400 {
                let check = [Check::new(&limit, "ada")];
                // What others overtake again and again is an error, and no grant.
                let mut outcomes = [Outcome::default()];
                let asked = store.decide_each(&check, Micros::ZERO, &mut outcomes).await;
                granted += asked.map_or(0, |decision| decision.granted());
            }
            granted
        })
    });
    let askers: Vec<_> = askers.collect();
    let mut granted = 0;
    for asker in askers {
        granted += asker.await.unwrap();
    }
    assert!(granted >= 300, "{granted}");
    let check = [Check::new(&numbers[1], "ada").act(Act::Peek).cost(0)];
    let asked = store.decide_each(&check, Micros::ZERO, &mut [Outcome::default()]).await;
    assert!(asked.unwrap().remaining() <= 300, "what is used of 300 stays used of 600");
}

/// A user and an address, in different slots of a cluster: all that is admitted is within both.
#[tokio::test]
async fn across_slots_never_more_than_any_limit() {
    let cluster = TestRedisCluster::with_primaries(3, false);
    let url = StoreUrl::parse(&cluster.url()).unwrap();
    let store = Arc::new(shared::connected(&url, RedisOptions::default()).await);
    let user = per_day(100, Algorithm::TokenBucket);
    let address = per_day(60, Algorithm::SlidingWindowCounter);
    let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
    let askers = (0..ASKERS).map(|asker| {
        let (store, user, address) = (Arc::clone(&store), user.clone(), address.clone());
        tokio::spawn(async move {
            let from = addresses[asker as usize % 3];
            let mut granted = 0;
            for _ in 0..20 {
                let checks = [Check::new(&user, "ada"), Check::new(&address, from)];
                let mut outcomes = [Outcome::default(); 2];
                let asked = store.decide_each(&checks, Micros::ZERO, &mut outcomes).await;
                let decision = asked.expect("an answer");
                let charged = outcomes.map(|outcome| outcome.charged);
                assert_eq!(charged, [u64::from(decision.allowed()); 2], "all or none");
                granted += u64::from(decision.allowed());
            }
            (asker % 3, granted)
        })
    });
    let askers: Vec<_> = askers.collect();
    let mut by_address = [0; 3];
    for asker in askers {
        let (address, granted) = asker.await.unwrap();
        by_address[address as usize] += granted;
    }
    let granted: u64 = by_address.iter().sum();
    assert!(by_address.iter().all(|granted| *granted <= 60), "{by_address:?}");
    // Each has one request on its way, and what one before it gives back.
    assert!((100 - 2 * ASKERS..=100).contains(&granted), "{granted} of 100");
    // What the refused ones had taken elsewhere was given back.
    for (from, granted) in addresses.iter().zip(by_address) {
        shared::until_left(&store, &address, from, 60 - granted as i64).await;
    }
}
