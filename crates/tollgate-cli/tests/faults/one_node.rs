//! Faults of a single Redis: C1 to C11, C17.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tempfile::TempDir;
use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::redis;
use testkit::wait;

use crate::faults::load::{FaultEffect, FaultLoad, FaultRun, RULES, fault, phase};
use crate::harness::{TollgateProcess, file, text};

/// A server and the folder of its rules.
pub(crate) struct RunningServer {
    server: TollgateProcess,
    _folder: TempDir,
}

impl std::ops::Deref for RunningServer {
    type Target = TollgateProcess;

    fn deref(&self) -> &TollgateProcess {
        &self.server
    }
}

/// A server with the rules of all policies on this store, which decides.
pub(crate) fn server_on(url: &str) -> RunningServer {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = file(folder.path(), "rules.yaml", RULES);
    let flags = ["--rules", text(&rules), "--store", url, "--store-timeout", "10ms"];
    let server = TollgateProcess::start(&flags);
    wait_until_up(&server);
    RunningServer { server, _folder: folder }
}

/// Waits until the store decides.
pub(crate) fn wait_until_up(server: &TollgateProcess) {
    wait::until_true("a decision by the store", || {
        server.check(r#"{"path":"/local","user":"first"}"#)["decided_by"] == "redis"
    });
}

/// A counter of the server, by the whole name of its series.
pub(crate) fn counted(server: &TollgateProcess, series: &str) -> f64 {
    let page = server.admin_get("/metrics", &[]).body;
    let line = page.lines().find(|line| line.starts_with(series));
    let number = line.and_then(|line| line.rsplit(' ').next()).and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("no {series} in\n{page}"))
}

/// Runs a fault of the connection.
fn through_proxy(mode: FaultMode, effect: FaultEffect) -> (FaultRun, f64) {
    let redis = redis::TestRedis::start();
    let proxy = FaultProxy::start(redis.address());
    let server = server_on(&proxy.url());
    let run = fault(&server, || proxy.set_mode(mode), || proxy.set_mode(FaultMode::Pass));
    run.check(effect);
    let errors = counted(&server, "tollgate_degraded_total{policy=\"local\"}");
    // A connection that was replaced is closed: nothing piles up.
    assert!(proxy.open_connections() <= 8, "{} connections", proxy.open_connections());
    (run, errors)
}

#[test]
fn c01_killed_and_restarted_empty() {
    let mut redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let redis = std::cell::RefCell::new(&mut redis);
    let run = fault(&server, || redis.borrow_mut().kill(), || redis.borrow_mut().restart());
    run.check(FaultEffect::Degrades);
    assert!(counted(&server, "tollgate_degraded_total{policy=\"closed\"}") > 0.0);
}

#[test]
fn c02_frozen() {
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let run = fault(&server, || redis.freeze(), || redis.thaw());
    run.check(FaultEffect::Degrades);
}

#[test]
fn c03_slow_by_five_milliseconds() {
    let jitter = Duration::from_millis(1);
    let (run, _) = through_proxy(
        FaultMode::Delay { by: Duration::from_millis(5), jitter },
        FaultEffect::Passes,
    );
    let during = |one: &&crate::faults::load::ObservedAnswer| {
        one.asked > run.broken && one.answered < run.mended
    };
    let all = run.answers.iter().filter(during).count();
    let by_store = run.answers.iter().filter(during).filter(|one| one.by_store()).count();
    assert!(by_store * 10 >= all * 9, "{by_store} of {all} within the deadline");
}

#[test]
fn c03_slow_by_fifty_milliseconds() {
    let jitter = Duration::from_millis(10);
    through_proxy(
        FaultMode::Delay { by: Duration::from_millis(50), jitter },
        FaultEffect::Degrades,
    );
}

#[test]
fn c03_slow_by_half_a_second() {
    let jitter = Duration::from_millis(100);
    through_proxy(
        FaultMode::Delay { by: Duration::from_millis(500), jitter },
        FaultEffect::Degrades,
    );
}

#[test]
fn c04_reset_in_the_middle_of_a_reply() {
    through_proxy(FaultMode::ResetMidReply, FaultEffect::Degrades);
}

#[test]
fn c04_half_closed() {
    through_proxy(FaultMode::HalfClose, FaultEffect::Degrades);
}

#[test]
fn c04_one_byte_at_a_time() {
    through_proxy(FaultMode::OneByteWrites, FaultEffect::Passes);
}

#[test]
fn c04_garbage() {
    through_proxy(FaultMode::Garbage, FaultEffect::Degrades);
}

#[test]
fn c04_truncated() {
    through_proxy(FaultMode::Truncate, FaultEffect::Degrades);
}

#[test]
fn c05_black_hole() {
    through_proxy(FaultMode::BlackHole, FaultEffect::Degrades);
}

#[test]
fn c05_connections_refused() {
    through_proxy(FaultMode::Refuse, FaultEffect::Degrades);
}

#[test]
fn c06_flushed() {
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let run = fault(&server, || redis.tell(&["FLUSHALL"]), || ());
    run.check(FaultEffect::Passes);
    assert!(run.answers.iter().all(|one| one.by_store()), "a flush is no failure");
}

#[test]
fn c07_scripts_flushed_all_the_time() {
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let load = FaultLoad::start(&[&server], 4);
    load.until(phase());
    let broken = load.now();
    while load.now() < phase() * 2 {
        redis.tell(&["SCRIPT", "FLUSH"]);
        redis.tell(&["FUNCTION", "FLUSH"]);
        load.until(load.now() + Duration::from_millis(100));
    }
    let mended = load.now();
    load.until(mended + crate::faults::load::RECOVERY + Duration::from_millis(500));
    let run = load.end(broken, mended);
    run.check(FaultEffect::Passes);
    assert!(errors(&server, "noscript") > 0.0);
    // A busy machine may be late; nothing else makes a call fail.
    let others = run.answers.iter().filter(|one| !one.by_store()).count() as f64;
    let late = errors(&server, "timeout") + errors(&server, "breaker_open");
    assert!(others <= late, "{others} failed, {late} of them were late");
}

#[test]
fn c08_out_of_memory() {
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let full = || {
        redis.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        redis.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    };
    let run = fault(&server, full, || redis.tell(&["CONFIG", "SET", "maxmemory", "0"]));
    run.check_no_errors();
    run.check_in_time();
    run.check_recovers(Duration::from_secs(1) + Duration::from_millis(200));
    let degraded = run.answers.iter().any(|one| one.decided_by == "closed");
    assert!(degraded, "what cannot be charged is not decided by the store");
    assert!(errors(&server, "oom") > 0.0);
}

/// Failures of a class, as counted.
pub(crate) fn errors(server: &TollgateProcess, class: &str) -> f64 {
    counted(server, &format!("tollgate_store_errors_total{{store=\"default\",class=\"{class}\"}}"))
}

#[test]
fn c09_a_store_that_evicts_is_warned_of() {
    let redis =
        redis::TestRedis::with(&["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"]);
    let mut server = server_on(&redis.url());
    let line = server.server.wait_for_log("maxmemory-policy");
    assert!(line.contains("noeviction"), "{line}");
    assert_eq!(counted(&server, "tollgate_store_evicts{store=\"default\"}"), 1.0);
}

#[test]
fn c10_read_only() {
    let redis = redis::TestRedis::start();
    let other = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let port = other.port().to_string();
    let run = fault(
        &server,
        || redis.tell(&["REPLICAOF", "127.0.0.1", &port]),
        || redis.tell(&["REPLICAOF", "NO", "ONE"]),
    );
    run.check_no_errors();
    run.check_in_time();
    run.check_recovers(crate::faults::load::RECOVERY);
    assert!(errors(&server, "readonly") > 0.0);
}

/// Each of the ways in which a server answers and does not decide.
#[test]
fn c11_every_refusal_of_redis_has_its_class() {
    let user = ["ACL", "SETUSER", "default", "-@all"];
    let back = ["ACL", "SETUSER", "default", "+@all"];
    let replicas = |count: &'static str| ["CONFIG", "SET", "min-replicas-to-write", count];
    let rows: [(&str, &[&str], &[&str]); 2] =
        [("noreplicas", &replicas("3"), &replicas("0")), ("noperm", &user, &back)];
    for (class, broken, mended) in rows {
        let redis = redis::TestRedis::start();
        // An administrator of its own, so that taking rights from others does not take them from us.
        redis.tell(&["ACL", "SETUSER", "admin", "on", ">secret", "~*", "&*", "+@all"]);
        let server = server_on(&redis.url());
        let admin = |words: &[&str]| {
            let login = ["--user", "admin", "--pass", "secret", "--no-auth-warning"];
            redis.tell(&[&login[..], words].concat());
        };
        let run = fault(&server, || admin(broken), || admin(mended));
        run.check_no_errors();
        run.check_in_time();
        run.check_recovers(crate::faults::load::RECOVERY);
        assert!(errors(&server, class) > 0.0, "{class}");
    }
}

#[test]
fn c11_busy_with_a_script() {
    let redis = redis::TestRedis::with(&["--busy-reply-threshold", "100"]);
    let server = server_on(&redis.url());
    std::thread::scope(|scope| {
        // Runs until it is killed.
        let endless = || drop(scope.spawn(|| redis.cli(&["EVAL", "while true do end", "0"])));
        let run = fault(&server, endless, || redis.tell(&["SCRIPT", "KILL"]));
        run.check(FaultEffect::Degrades);
        assert!(errors(&server, "busy") > 0.0);
    });
}

#[test]
fn c11_connections_killed_and_too_many() {
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    // Opened before, so that it is there when nobody is let in.
    let mut admin = TcpStream::connect(redis.address()).expect("a connection");
    let mut say = |line: &str| {
        admin.write_all(format!("{line}\r\n").as_bytes()).expect("a line");
        let mut said = [0; 64];
        assert!(admin.read(&mut said).is_ok_and(|bytes| bytes > 0), "{line}");
    };
    let say = std::cell::RefCell::new(&mut say);
    let run = fault(
        &server,
        || {
            say.borrow_mut()("CONFIG SET maxclients 1");
            say.borrow_mut()("CLIENT KILL TYPE normal");
        },
        || say.borrow_mut()("CONFIG SET maxclients 100"),
    );
    run.check(FaultEffect::Degrades);
    assert!(errors(&server, "maxclients") > 0.0);
}

#[test]
fn c11_loading() {
    // Two seconds for a thousand keys.
    let slow = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    let mut redis =
        redis::TestRedis::with(&[&slow[..], &["--enable-debug-command", "yes"]].concat());
    let server = server_on(&redis.url());
    redis.tell(&["DEBUG", "POPULATE", "1000"]);
    redis.tell(&["SAVE"]);
    let redis = std::cell::RefCell::new(&mut redis);
    let run = fault(&server, || redis.borrow_mut().kill(), || redis.borrow_mut().restart());
    run.check(FaultEffect::Degrades);
    assert!(errors(&server, "loading") > 0.0);
}

/// A state from the future, as after a clock that jumped back: nobody is blocked longer than a full
/// refill.
#[test]
fn c17_a_clock_that_jumped() {
    // The script's own clock cannot be moved here; a state that another clock wrote can be restored.
    // What each algorithm does then is compared with memory at injected times in tollgate-redis.
    let redis = redis::TestRedis::start();
    let server = server_on(&redis.url());
    let ask = || server.check(r#"{"path":"/local","user":"jump"}"#);
    while ask()["allowed"] == true {}
    let key = redis.cli(&["--scan"]);
    let key = key
        .lines()
        .find(|key| key.contains('{') && !key.contains("{control}"))
        .expect("a key")
        .trim()
        .to_string();
    assert!(redis.cli(&["PTTL", &key]).trim().parse::<i64>().is_ok_and(|ttl| ttl > 0));
    // Rewritten with a mark an hour ahead: the first seven bytes, the lowest first.
    let jump = "local v = redis.call('GET', KEYS[1]) \
        local mark = struct.unpack('<I7', v) \
        v = struct.pack('<I7', mark + 3600 * 1000000) .. string.sub(v, 8) \
        return redis.call('SET', KEYS[1], v, 'PX', 7200000)";
    redis.tell(&["EVAL", jump, "1", &key]);
    let answer = ask();
    let waits = answer["retry_after_ms"].as_u64().unwrap_or(0);
    assert!(waits <= 1_000, "{answer}");
    wait::until_true("a refill", || ask()["allowed"] == true);
}
