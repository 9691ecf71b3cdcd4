//! The book of who holds what, on a real server.

use tollgate_shared::remote_store::{LeaseGrant, LeaseRequest, RemoteStore};

use super::*;

const LIMIT: &str = "1000000/second burst 1000000";

fn lend(instance: u64, held: u64, more: u64) -> LeaseRequest {
    LeaseRequest {
        instance,
        held,
        wanted: more,
        grant_min: 8,
        outstanding_max: 1_000,
        duration_us: 1_000_000,
    }
}

async fn store(server: &TestRedis) -> SharedStore<RedisStore> {
    instances(server, 1).await.remove(0)
}

#[tokio::test]
async fn all_together_hold_no_more_than_may_be_lent() {
    let server = TestRedis::start();
    let shared = store(&server).await;
    let store = shared.stores().next().unwrap();
    let limit: Limit = LIMIT.parse().unwrap();
    let check = Check::new(&limit, "a");
    // instance, held, more, granted, held by all then
    for (instance, held, more, granted, outstanding) in [
        (1, 0, 600, 600, 600),
        (2, 0, 600, 400, 1_000),
        (3, 0, 600, 0, 1_000),
        (1, 300, 200, 200, 900),
        (3, 0, 600, 100, 1_000),
        (2, 0, 0, 0, 600),
        (1, 0, 7, 0, 100),
        (u64::MAX, 0, 900, 900, 1_000),
    ] {
        let lent = store.reserve_lease(&check, lend(instance, held, more)).await.unwrap();
        assert_eq!(lent, LeaseGrant { granted, outstanding }, "instance {instance}");
        every_key_expires(&server);
    }
    let other = store.reserve_lease(&Check::new(&limit, "b"), lend(1, 0, 600)).await.unwrap();
    assert_eq!(other.granted, 600, "another key has a book of its own");
}

#[tokio::test]
async fn what_has_expired_is_nobodys() {
    let server = TestRedis::start();
    let shared = store(&server).await;
    let store = shared.stores().next().unwrap();
    let limit: Limit = LIMIT.parse().unwrap();
    let check = Check::new(&limit, "a");
    let short = LeaseRequest { duration_us: 20_000, ..lend(1, 0, 1_000) };
    assert_eq!(store.reserve_lease(&check, short).await.unwrap().granted, 1_000);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while store.reserve_lease(&check, lend(2, 0, 1_000)).await.unwrap().granted == 0 {
        assert!(tokio::time::Instant::now() < deadline, "it does not expire");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn what_nobody_can_read_is_no_book() {
    let server = TestRedis::start();
    let shared = store(&server).await;
    let store = shared.stores().next().unwrap();
    let limit: Limit = LIMIT.parse().unwrap();
    let check = Check::new(&limit, "a");
    assert_eq!(store.reserve_lease(&check, lend(1, 0, 100)).await.unwrap().granted, 100);
    let key = server.cli(&["KEYS", "*:l"]).trim().to_owned();
    let full = "x".repeat(22 * 65);
    for command in [
        vec!["SET", &key, "garbage"],
        vec!["SET", &key, "exactly 22 characters!"],
        vec!["SET", &key, &full],
        vec!["SET", &key, ""],
        vec!["LPUSH", &key, "a"],
        vec!["HSET", &key, "a", "b"],
    ] {
        assert_eq!(server.cli(&["DEL", &key]), "1");
        let _ = server.cli(&command);
        let lent = store.reserve_lease(&check, lend(2, 0, 1_000)).await.unwrap();
        assert_eq!(lent, LeaseGrant { granted: 1_000, outstanding: 1_000 }, "{command:?}");
        every_key_expires(&server);
    }
}

#[tokio::test]
async fn a_book_has_room_for_64_instances() {
    let server = TestRedis::start();
    let shared = store(&server).await;
    let store = shared.stores().next().unwrap();
    let limit: Limit = LIMIT.parse().unwrap();
    let check = Check::new(&limit, "a");
    for instance in 1..=70 {
        let lent = store.reserve_lease(&check, lend(instance, 0, 8)).await.unwrap();
        assert_eq!(lent.granted, if instance <= 64 { 8 } else { 0 }, "instance {instance}");
    }
}
