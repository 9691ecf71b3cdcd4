//! What servers say instead of an answer: each is told by its class, and over when its cause is.

use testkit::redis::{TestRedis, TestRedisLaunch};
use testkit::wait;

use super::*;

/// The breaker opens on the way to some of these: it is not what they are about.
fn until_well(store: &CountingStore) {
    store.until_answered("a");
    assert_eq!(store.link.stats().nodes[0].down, None);
}

#[test]
fn read_only() {
    let server = TestRedis::start();
    let other = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let error = store.until_class(ErrorClass::ReadOnly);
    assert!(error.to_string().contains("readonly"));
    // Found out once; from then on the connection is not even made.
    wait::until_true("the node to be down", || !store.link.stats().is_up());
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    until_well(&store);
}

#[test]
fn a_replica_without_its_primary() {
    let server = TestRedis::with(&["--replica-serve-stale-data", "no"]);
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(store.run("GET", &["a"]).unwrap_err().class, ErrorClass::MasterDown);
    // The connection went with it, and the next is not made to a replica.
    store.until_class(ErrorClass::ReadOnly);
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    until_well(&store);
}

#[test]
fn loading() {
    let server = TestRedis::with(&["--enable-debug-command", "local"]);
    // So many keys, each loaded slowly, that there is time to ask.
    server.tell(&["DEBUG", "POPULATE", "20000", "key", "8"]);
    server.tell(&["SAVE"]);
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "key-load-delay", "300"]);
    server.tell(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    let (done, loading) = std::sync::mpsc::channel();
    let reload = std::thread::spawn({
        let port = server.port().to_string();
        move || {
            let mut command = std::process::Command::new("redis-cli");
            let _ = command.args(["-p", &port, "DEBUG", "RELOAD", "NOSAVE"]).output();
            let _ = done.send(());
        }
    });
    store.until_class(ErrorClass::Loading);
    loading.recv().unwrap();
    reload.join().unwrap();
    until_well(&store);
}

#[test]
fn busy() {
    let server = TestRedisLaunch::new().args(&["--busy-reply-threshold", "100"]).start();
    let store = CountingStore::at(&server.url(), PLENTY);
    assert_eq!(store.class(), Ok(1));
    let looping = std::thread::spawn({
        let port = server.port().to_string();
        move || {
            let mut command = std::process::Command::new("redis-cli");
            let _ = command.args(["-p", &port, "EVAL", "while true do end", "0"]).output();
        }
    });
    store.until_class(ErrorClass::Busy);
    server.tell(&["SCRIPT", "KILL"]);
    looping.join().unwrap();
    until_well(&store);
}

#[test]
fn out_of_memory() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    // Commands in the background do not speak for decisions.
    for _ in 0..50 {
        assert_eq!(store.run("SET", &["b", "c"]).unwrap_err().class, ErrorClass::Oom);
    }
    assert_eq!(store.link.stats().nodes[0].breaker_opened, 0);
    store.until_class(ErrorClass::Oom);
    store.until_class(ErrorClass::BreakerOpen);
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    until_well(&store);
    assert_eq!(store.link.stats().connections, 1, "the connection was not to blame");
}

#[test]
fn too_few_replicas() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    store.until_class(ErrorClass::NoReplicas);
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until_well(&store);
}

#[test]
fn data_that_cannot_be_saved() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    // A folder in place of the file: it cannot be replaced.
    std::fs::create_dir_all(server.folder().join("dump.rdb/x")).unwrap();
    server.tell(&["CONFIG", "SET", "save", "3600 1"]);
    let _ = server.cli(&["BGSAVE"]);
    store.until_class(ErrorClass::Misconf);
    server.tell(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    until_well(&store);
}

#[test]
fn a_user_who_loses_permissions_and_then_is_gone() {
    let server = TestRedis::start();
    server.tell(&["ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "+@all"]);
    let store = CountingStore::at(&format!("redis://ann:s3cret@{}", server.address()), PLENTY);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["ACL", "SETUSER", "ann", "-evalsha"]);
    store.until_class(ErrorClass::NoPerm);
    server.tell(&["ACL", "SETUSER", "ann", "+evalsha", "-incr"]);
    store.until_class(ErrorClass::NoPerm);
    // Its connections are ended, and it is not let in again.
    assert_eq!(server.cli(&["ACL", "DELUSER", "ann"]), "1");
    store.until_class(ErrorClass::NoAuth);
    server.tell(&["ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "+@all"]);
    until_well(&store);
}

#[test]
fn a_server_that_takes_no_more_connections() {
    let server = TestRedis::start();
    let first = CountingStore::of(&server);
    assert_eq!(first.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "maxclients", "1"]);
    let second = CountingStore::of(&server);
    second.until_class(ErrorClass::MaxClients);
    assert!(first.class().is_ok());
    drop(first);
    until_well(&second);
}

#[test]
fn keys_of_other_kinds_are_an_error_of_their_call_only() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(server.cli(&["LPUSH", "list", "x"]), "1");
    for _ in 0..10 {
        assert_eq!(store.add("list").unwrap_err().class, ErrorClass::Other);
    }
    assert_eq!(store.class(), Ok(1), "no breaker opens for it");
}

#[test]
fn killed_connections_are_replaced_and_nobody_is_told() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    // Settled: a connection that just began is not replaced at once.
    wait::until_true("a second to pass", || {
        let clients = server.cli(&["CLIENT", "LIST"]);
        let ours = clients.lines().find(|line| line.contains("name=tollgate")).unwrap();
        !ours.contains("age=0 ") && !ours.contains("age=1 ")
    });
    assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]), "1");
    assert_eq!(store.class(), Ok(2));
    assert_eq!(store.link.stats().connections, 2);
}

#[test]
fn idle_connections_that_the_server_ends_are_replaced_before_they_are_needed() {
    let server = TestRedis::with(&["--timeout", "1", "--hz", "100"]);
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    wait::until_true("a PING", || server.cli(&["INFO", "commandstats"]).contains("cmdstat_ping"));
    assert_eq!(store.class(), Ok(2));
}

#[test]
fn scripts_that_are_flushed_again_and_again_cost_a_second_try() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    let mut sum = 0;
    for round in 0..20 {
        assert!(["OK"].contains(&&*server.cli(&["SCRIPT", "FLUSH"])));
        // Many at a time: all of them miss it.
        let calls = async {
            let adding = (0..50).map(|_| {
                let link = store.link.clone();
                tokio::spawn(async move { add(&link, "a", 0).await })
            });
            for adding in adding.collect::<Vec<_>>() {
                adding.await.unwrap().unwrap();
            }
        };
        store.callers.block_on(calls);
        sum += 50;
        assert_eq!(server.cli(&["GET", "a"]), sum.to_string(), "round {round}");
    }
    assert!(store.errors(ErrorClass::NoScript) >= 20);
    assert_eq!(store.link.stats().answered, sum);
}

#[test]
fn scripts_that_are_flushed_while_the_breaker_is_open() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    assert_eq!(store.class(), Ok(1));
    server.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    store.until_class(ErrorClass::BreakerOpen);
    server.tell(&["SCRIPT", "FLUSH"]);
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    // The probe misses the script; the same call, with its text, is the probe still.
    store.until_answered("a");
    let stats = store.link.stats();
    assert_eq!((stats.connections, stats.errors_of(ErrorClass::NoScript)), (1, 1));
    assert!(!stats.nodes[0].breaker_open);
}

#[test]
fn a_script_that_is_missed_and_may_not_be_brought_opens_the_breaker() {
    let server = TestRedis::start();
    server.tell(&["ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "+evalsha"]);
    let store = CountingStore::at(&format!("redis://ann:s3cret@{}", server.address()), PLENTY);
    store.until_class(ErrorClass::NoPerm);
    store.until_class(ErrorClass::BreakerOpen);
}
