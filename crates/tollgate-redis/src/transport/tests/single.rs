//! One server: who is let in, over what, and what is found out about it.

use testkit::redis::{TestRedis, TestRedisLaunch};
use testkit::wait;

use crate::transport::value::RedisValue;

use super::*;

#[test]
fn calls_and_commands_are_answered() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!((store.add("a").unwrap(), store.add("a").unwrap()), (1, 2));
    assert_eq!(store.run("GET", &["a"]).unwrap(), RedisValue::BulkString(b"2".into()));
    let stats = store.link.stats();
    assert_eq!((stats.calls, stats.answered, stats.connections), (3, 3, 1));
    assert!(stats.is_up() && stats.nodes[0].address == server.address().to_string());
}

#[test]
fn a_store_starts_before_its_server() {
    let mut server = TestRedis::start();
    server.kill();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_class(ErrorClass::Connect);
    assert!(!store.link.stats().is_up());
    server.restart();
    assert_eq!(store.until_answered("a"), 1);
}

#[test]
fn a_unix_socket_and_a_database_will_do() {
    let server = TestRedisLaunch::new().with_socket().start();
    let store = CountingStore::at(&format!("unix://{}?db=3", server.socket().display()), PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
    assert_eq!(server.cli(&["-n", "3", "GET", "a"]), "1");
}

#[test]
fn a_user_who_may_run_scripts_is_enough() {
    let server = TestRedis::start();
    server.tell(&["ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "+evalsha", "+eval", "+incr"]);
    let store = CountingStore::at(&format!("redis://ann:s3cret@{}", server.address()), PLENTY);
    // SCRIPT LOAD is not permitted: the first call brings the text.
    assert_eq!(store.add("a").unwrap(), 1);
    assert_eq!(store.errors(ErrorClass::NoScript), 1);
    assert_eq!(store.add("a").unwrap(), 2);
    wait::until_true("the check", || store.link.stats().health.warning.is_some());
    let health = store.link.stats().health;
    assert_eq!(health.evicts, None);
    assert!(health.warning.unwrap().contains("CONFIG GET is not permitted"));
}

#[test]
fn wrong_or_missing_passwords_are_told_and_never_shown() {
    let server = TestRedisLaunch::new().args(&["--requirepass", "open"]).start();
    for login in [":s3cret@", "nobody:s3cret@", ""] {
        let store = CountingStore::at(&format!("redis://{login}{}", server.address()), PLENTY);
        let error = store.until_class(ErrorClass::NoAuth);
        let stats = format!("{error} {error:?} {:?}", store.link.stats());
        assert!(!stats.contains("s3cret"), "{stats}");
    }
    let store = CountingStore::at(&format!("redis://:open@{}", server.address()), PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
}

#[test]
fn a_password_for_a_server_that_has_none_is_told() {
    let server = TestRedis::start();
    let store = CountingStore::at(&format!("redis://:s3cret@{}", server.address()), PLENTY);
    store.until_class(ErrorClass::NoAuth);
}

#[test]
fn a_server_that_evicts_is_warned_about() {
    let server = TestRedisLaunch::new().args(&["--maxmemory-policy", "allkeys-lru"]).start();
    let store = CountingStore::of(&server);
    wait::until_true("the check", || store.link.stats().health.evicts == Some(true));
    let health = store.link.stats().health;
    assert!(health.warning.unwrap().contains("allkeys-lru"));
    assert!(health.version.unwrap().contains('.'));
    let well = TestRedis::start();
    let store = CountingStore::of(&well);
    wait::until_true("the check", || store.link.stats().health.evicts == Some(false));
    assert_eq!(store.link.stats().health.warning, None);
}

#[test]
fn stopping_leaves_no_connection() {
    let server = TestRedis::start();
    let clients = || server.cli(&["CLIENT", "LIST"]).matches("name=tollgate").count();
    let stores: Vec<CountingStore> = (0..3).map(|_| CountingStore::of(&server)).collect();
    stores.iter().for_each(|store| assert!(store.add("a").is_ok()));
    assert_eq!(clients(), 3);
    // The store ends with its last user, while its runtime goes on.
    let threads: Vec<CountingStore> = stores
        .into_iter()
        .map(|mut store| {
            let other = CountingStore::at("redis://127.0.0.1:1", PLENTY);
            store.link = other.link.clone();
            store
        })
        .collect();
    wait::until_true("connections to end", || clients() == 0);
    drop(threads);
}

#[test]
fn the_user_that_the_reference_recommends_is_enough() {
    let page = include_str!("../../../../../docs/reference/store-urls.md");
    let (_, rest) = page.split_once("`ACL SETUSER tollgate on >PASSWORD ").unwrap();
    let (permits, _) = rest.split_once('`').unwrap();
    let server = TestRedis::start();
    let mut words = vec!["ACL", "SETUSER", "tollgate", "on", ">s3cret"];
    words.extend(permits.split(' '));
    server.tell(&words);
    let store = CountingStore::at(&format!("redis://tollgate:s3cret@{}", server.address()), PLENTY);
    assert_eq!(store.add("tollgate:a").unwrap(), 1);
    assert_eq!(store.add("other:a").unwrap_err().class, ErrorClass::NoPerm);
    wait::until_true("the check", || store.link.stats().health.evicts == Some(false));
    assert_eq!(store.link.stats().health.warning, None);
    assert_eq!(store.errors(ErrorClass::NoScript), 0, "it may load scripts");
}
