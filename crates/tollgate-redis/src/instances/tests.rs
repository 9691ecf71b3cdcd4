//! Several instances of [`InstanceChannel`] around a real redis-server.

mod forgeries;

use std::sync::mpsc;
use std::thread::JoinHandle;

use testkit::fault_proxy::FaultProxy;
use testkit::redis::TestRedis;
use testkit::wait::{until, until_true};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tollgate::ManualClock;

use super::*;
use crate::options::RedisOptions;
use crate::transport::url::StoreUrl;

/// How long to wait for whoever answers an operator.
const PATIENCE: Duration = Duration::from_secs(10);

/// A runtime on a thread of its own, as a server has one for its store.
struct ThreadRuntime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadRuntime {
    fn start() -> ThreadRuntime {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        ThreadRuntime { handle, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// What one instance was told.
#[derive(Default)]
struct RecordingSink {
    live: AtomicU32,
    /// Times that there were fewer than before.
    fewer: AtomicU32,
    overrides: Mutex<Vec<SharedOverride>>,
    rules: Mutex<Vec<Option<SharedRules>>>,
}

impl InstanceSink for RecordingSink {
    fn live_instances(&self, count: u32) {
        if self.live.swap(count, Ordering::Relaxed) > count {
            self.fewer.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn overrides_changed(&self, changed: Vec<SharedOverride>) {
        self.overrides.lock().unwrap().extend(changed);
    }

    fn rules_changed(&self, rules: Option<SharedRules>) {
        self.rules.lock().unwrap().push(rules);
    }
}

struct TestInstance {
    control: InstanceChannel,
    heard: Arc<RecordingSink>,
    clock: Arc<ManualClock>,
    handle: Handle,
}

impl TestInstance {
    /// One whose clock shows so many seconds, and stands still.
    fn start(runtime: &ThreadRuntime, server: &TestRedis, clock_s: u64) -> TestInstance {
        TestInstance::at(runtime, &server.url(), clock_s)
    }

    fn at(runtime: &ThreadRuntime, url: &str, clock_s: u64) -> TestInstance {
        TestInstance::with_secret(runtime, url, clock_s, None)
    }

    fn with_secret(
        runtime: &ThreadRuntime,
        url: &str,
        clock_s: u64,
        secret: Option<&[u8]>,
    ) -> TestInstance {
        let clock = Arc::new(ManualClock::new(Micros::from_secs(clock_s)));
        let (heard, handle) = (Arc::<RecordingSink>::default(), runtime.handle.clone());
        let inside = handle.enter();
        let link = Link::start(&StoreUrl::parse(url).unwrap(), &RedisOptions::default());
        let control = InstanceChannel::start(
            link,
            ("t", secret),
            Arc::default(),
            heard.clone(),
            clock.clone(),
        );
        drop(inside);
        TestInstance { control, heard, clock, handle }
    }

    fn told(&self, act: impl Into<Option<SharedChangeId>>) -> PublishStatus {
        let act = act.into().expect("there is room here");
        self.handle.block_on(self.control.published(act, PATIENCE))
    }

    /// For how many seconds a key is still blocked.
    fn blocked_s(&self, hash: KeyHash) -> Option<u64> {
        let wait = self.control.blocks().blocked(hash, self.clock.now())?;
        wait.seconds()
    }

    fn block(&self, hash: KeyHash, seconds: u64) -> Option<SharedChangeId> {
        let wait = tollgate::Wait::at_least(Duration::from_secs(seconds));
        self.control.block(hash, self.clock.now().after(wait))
    }

    fn until_blocked(&self, hash: KeyHash, seconds: Option<u64>) {
        until_true("a block to be heard of", || {
            match (self.blocked_s(hash), seconds) {
                // What passes on the way counts.
                (Some(left), Some(seconds)) => left <= seconds && left + 20 >= seconds,
                (left, seconds) => left == seconds,
            }
        });
    }

    fn until_override(&self, text: &str, gone: bool) {
        until_true("an override to be heard of", || {
            let overrides = self.heard.overrides.lock().unwrap();
            overrides.iter().any(|one| *one.text == *text && one.removed == gone)
        });
    }

    fn until_up(&self) {
        until_true("the store to answer", || self.control.stats().up);
    }

    fn last_rules(&self) -> Option<Option<SharedRules>> {
        self.heard.rules.lock().unwrap().last().cloned()
    }
}

const A: KeyHash = [1; 16];
const B: KeyHash = [2; 16];
const C: KeyHash = [3; 16];

#[test]
fn what_is_decided_at_one_instance_holds_at_all_whatever_their_clocks_show() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000_000);
    let two = TestInstance::start(&runtime, &server, 5_000_000);
    until_true("two to be alive", || {
        [&one, &two].iter().all(|one| one.heard.live.load(Ordering::Relaxed) == 2)
    });

    assert_eq!(one.told(one.block(A, 900)), PublishStatus::Published);
    two.until_blocked(A, Some(900));
    // A later end stays, whoever asks for an earlier one.
    assert_eq!(two.told(two.block(A, 60)), PublishStatus::Published);
    assert_eq!(two.told(two.block(B, 3_600)), PublishStatus::Published);
    one.until_blocked(B, Some(3_600));
    assert!(one.blocked_s(A).unwrap() > 800);
    assert!(two.control.unblock(A));
    one.until_blocked(A, None);
    assert_eq!(two.blocked_s(A), None);
    assert_eq!(two.told(two.block(A, 60)), PublishStatus::Published);
    one.until_blocked(A, Some(60));

    let text = r#"{"rule":"api","key":"user=42","limits":["5/hour"]}"#;
    assert_eq!(
        one.told(one.control.set_override(("api", "user=42"), text, None)),
        PublishStatus::Published
    );
    two.until_override(text, false);
    assert_eq!(
        two.told(two.control.remove_override(("api", "user=42"), text)),
        PublishStatus::Published
    );
    one.until_override(text, true);
    assert_eq!(
        two.told(two.control.put_rules("rules: []\n# é", "print")),
        PublishStatus::Published
    );
    let rules = until("rules to be heard of", || one.last_rules()).unwrap();
    assert_eq!((&*rules.text, &*rules.replaced_fingerprint), ("rules: []\n# é", "print"));
    assert_eq!(one.told(one.control.remove_rules()), PublishStatus::Published);
    until_true("rules to be taken back", || two.last_rules() == Some(None));
    // Nobody is told of what it has done itself.
    assert_eq!(one.heard.overrides.lock().unwrap().len(), 1);
    assert_eq!(two.heard.overrides.lock().unwrap().len(), 1);
    assert_eq!(two.heard.rules.lock().unwrap().len(), 1);
}

#[test]
fn instances_count_each_other_also_those_that_leave_and_that_die() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let mut all: Vec<TestInstance> =
        (0..3).map(|_| TestInstance::start(&runtime, &server, 1)).collect();
    let until_live = |of: &TestInstance, count: u32| {
        until_true("instances to be counted", || of.heard.live.load(Ordering::Relaxed) == count);
    };
    all.iter().for_each(|one| until_live(one, 3));
    let leaving = all.pop().unwrap();
    runtime.handle.block_on(leaving.control.leave(PATIENCE));
    assert_eq!(server.cli(&["ZCARD", "t:1:{control}:live"]), "2");
    all.iter().for_each(|one| until_live(one, 2));
    // This one says nothing: it is missed two seconds later.
    drop(all.pop().unwrap());
    until_live(&all[0], 1);
    // A clock that went back leaves nobody alive for ever.
    let far = "4000000000000000";
    assert_eq!(server.cli(&["ZADD", "t:1:{control}:live", far, "ghost"]), "1");
    until_true("a ghost to go", || server.cli(&["ZCARD", "t:1:{control}:live"]) == "1");
}

#[test]
fn an_emptied_store_makes_nobody_believe_that_it_is_alone() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let all: Vec<TestInstance> =
        (0..3).map(|_| TestInstance::start(&runtime, &server, 1)).collect();
    let heard_of = |count: u32| {
        until_true("instances to be counted", || {
            all.iter().all(|one| one.heard.live.load(Ordering::Relaxed) == count)
        });
    };
    heard_of(3);
    for _ in 0..3 {
        server.tell(&["FLUSHALL"]);
        let live = || server.cli(&["ZCARD", "t:1:{control}:live"]) == "3";
        until_true("all to say that they are alive", live);
    }
    let calls = all[0].control.stats().calls;
    until_true("two more beats", || all[0].control.stats().calls >= calls + 2);
    heard_of(3);
    assert!(all.iter().all(|one| one.heard.fewer.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_store_that_comes_back_empty_is_told_from_one_that_was_away() {
    let (mut server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1);
    one.until_up();
    let losses = |count: u64| {
        until_true("the loss of data", || one.control.stats().data_losses == count);
    };
    let _ = server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let calls = one.control.stats().calls;
    until_true("more calls", || one.control.stats().calls > calls + 2);
    losses(0);
    server.tell(&["FLUSHALL"]);
    losses(1);
    server.kill();
    until_true("the store to be missed", || !one.control.stats().up);
    server.restart();
    one.until_up();
    losses(2);
}

#[test]
fn blocks_outlast_a_clock_that_is_set_whether_the_store_is_there_or_not() {
    let (mut server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 100_000);
    let two = TestInstance::start(&runtime, &server, 200_000);
    one.told(one.block(A, 900));
    two.until_blocked(A, Some(900));
    for instance in [&one, &two] {
        instance.clock.advance(Duration::from_secs(3_600));
        instance.until_blocked(A, Some(900));
        instance.clock.set(Micros::from_secs(90_000));
        instance.until_blocked(A, Some(900));
    }
    server.kill();
    until_true("the store to be missed", || !one.control.stats().up);
    one.clock.advance(Duration::from_secs(3_600));
    one.until_blocked(A, Some(900));
    server.restart();
    let three = TestInstance::start(&runtime, &server, 5);
    three.until_blocked(A, Some(900));
    one.until_blocked(A, Some(900));
}

/// A replica takes over that lacks what was decided last, and has what was decided at it before.
#[test]
fn what_a_failover_loses_is_told_again_and_what_it_brings_is_heard() {
    let (old, new, runtime) = (TestRedis::start(), TestRedis::start(), ThreadRuntime::start());
    let way = FaultProxy::start(old.address());
    let one = TestInstance::at(&runtime, &way.url(), 1_000);
    one.told(one.block(C, 900));
    new.tell(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    until_true("a replica", || new.cli(&["HLEN", "t:1:{control}:blocks"]) == "1");
    new.tell(&["REPLICAOF", "NO", "ONE"]);
    let two = TestInstance::start(&runtime, &new, 2_000);
    assert_eq!(two.told(two.block(B, 900)), PublishStatus::Published);
    // Later, so that the version that this one has seen is past the other's.
    assert_eq!(one.told(one.block(A, 900)), PublishStatus::Published);
    assert_eq!(two.blocked_s(A), None);
    way.retarget(new.address());
    let _ = old.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    one.until_blocked(B, Some(900));
    two.until_blocked(A, Some(900));
}

#[test]
fn while_the_store_is_down_acts_wait_and_the_latest_wins() {
    let (mut server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let two = TestInstance::start(&runtime, &server, 2_000);
    one.until_up();
    two.until_up();
    server.kill();
    until_true("the store to be missed", || !one.control.stats().up && !two.control.stats().up);
    assert_eq!(one.told(one.block(A, 900)), PublishStatus::Pending);
    assert_eq!(one.blocked_s(A), Some(900), "here it holds at once");
    assert_eq!(
        one.told(one.control.set_override(("api", "k"), "first", None)),
        PublishStatus::Pending
    );
    assert_eq!(
        one.told(one.control.set_override(("api", "k"), "second", None)),
        PublishStatus::Pending
    );
    assert_eq!(one.control.stats().unpublished, 2, "the latest takes the place of the one before");
    // Two decides later, by real time, the same and something else.
    one.clock.advance(Duration::from_secs(5));
    two.block(B, 900);
    assert_eq!(
        two.told(two.control.set_override(("api", "k"), "third", None)),
        PublishStatus::Pending
    );
    server.restart();
    one.until_blocked(B, Some(900));
    two.until_blocked(A, Some(900));
    one.until_override("third", false);
    until_true("nothing to wait", || {
        one.control.stats().unpublished == 0 && two.control.stats().unpublished == 0
    });
    assert!(two.heard.overrides.lock().unwrap().iter().all(|one| &*one.text != "first"));
}

#[test]
fn an_emptied_store_is_told_everything_again_but_nothing_that_was_taken_back() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    one.told(one.block(A, 900));
    one.told(one.block(B, 900));
    one.told(one.control.set_override(("api", "k"), "text", None));
    one.told(one.control.put_rules("rules: []", "print"));
    let two = TestInstance::start(&runtime, &server, 2_000);
    two.until_blocked(B, Some(900));
    until_true("rules to be heard of", || two.last_rules().is_some());
    assert!(two.control.unblock(B));
    one.until_blocked(B, None);
    for round in 0..3 {
        server.tell(&["FLUSHALL"]);
        until_true("everything to be told again", || {
            server.cli(&["HLEN", "t:1:{control}:blocks"]) == "2"
                && server.cli(&["HLEN", "t:1:{control}:rules"]) == "1"
        });
        let three = TestInstance::start(&runtime, &server, 3_000);
        three.until_blocked(A, Some(900));
        three.until_override("text", false);
        until_true("rules to be heard of", || three.last_rules().is_some());
        assert_eq!(three.blocked_s(B), None, "round {round}");
        assert_eq!((one.blocked_s(B), two.blocked_s(B)), (None, None));
    }
    assert_eq!(one.heard.rules.lock().unwrap().len(), 0, "it knows what it has put");
    assert_eq!(two.heard.rules.lock().unwrap().len(), 1, "told again is no news");
}

#[test]
fn facts_outlive_all_instances_and_a_newcomer_hears_thousands() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let hash = |number: u32| {
        let mut hash = [0; 16];
        hash[..4].copy_from_slice(&number.to_be_bytes());
        hash
    };
    for number in 0..1_800 {
        assert!(one.block(hash(number), 900).is_some());
    }
    let long = "# é\n".repeat((1 << 20) / 5);
    let put = one.control.put_rules(&long, "print");
    assert_eq!(one.told(put), PublishStatus::Published);
    drop(one);
    let two = TestInstance::start(&runtime, &server, 9);
    until_true("all blocks to be heard of", || two.control.blocks().len() == 1_800);
    let rules = until("rules to be heard of", || two.last_rules()).unwrap();
    assert!(*rules.text == *long);
    let text = "x".repeat((72 << 10) + 1);
    assert_eq!(
        two.told(two.control.set_override(("api", "k"), &text, None)),
        PublishStatus::TooLong
    );
    let put = two.control.put_rules(&"#".repeat(2 << 20), "print");
    assert_eq!(two.told(put), PublishStatus::TooLong);
    assert_eq!(
        two.told(two.block(A, 60)),
        PublishStatus::Published,
        "what is not told keeps nobody waiting"
    );
}

#[test]
fn every_key_has_a_time_to_live_and_ended_facts_leave_the_store() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    one.told(one.block(A, 1));
    one.told(one.block(B, 900));
    one.told(one.control.set_override(("api", "k"), "text", None));
    one.told(one.control.put_rules("rules: []", "print"));
    until_true("an ended block to go", || server.cli(&["HLEN", "t:1:{control}:blocks"]) == "1");
    assert_eq!(server.cli(&["ZCARD", "t:1:{control}:ends"]), "1");
    let keys = server.cli(&["KEYS", "*"]);
    assert_eq!(keys.lines().count(), 7, "{keys}");
    for key in keys.lines() {
        let seconds: i64 = server.cli(&["TTL", key]).parse().unwrap();
        let (least, most) =
            if key.ends_with(":live") { (30, 60) } else { (34_500_000, 34_560_000) };
        assert!((least..=most).contains(&seconds), "{key}: {seconds}");
    }
    // Whoever only beats keeps the rest alive as well. All of it by the head, which is therefore the last:
    // a beat between the two would renew it and leave the other as it is.
    let _ = server.cli(&["EXPIRE", "t:1:{control}:rules", "1000000"]);
    let _ = server.cli(&["EXPIRE", "t:1:{control}:head", "1000000"]);
    until_true("times to live to be renewed", || {
        server.cli(&["TTL", "t:1:{control}:rules"]).parse::<i64>().unwrap() > 30_000_000
    });
}

#[test]
fn what_is_not_ours_in_the_store_heals() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    one.told(one.block(A, 900));
    one.told(one.block(B, 900));
    one.told(one.control.set_override(("api", "k"), "text", None));
    for (words, what) in [
        (vec!["SET", "t:1:{control}:blocks", "x"], "a text"),
        (vec!["SET", "t:1:{control}:head", "x"], "a text in place of the head"),
        (vec!["SET", "t:1:{control}:live", "x"], "a text in place of who is alive"),
        (vec!["DEL", "t:1:{control}:log"], "an evicted log"),
        (vec!["DEL", "t:1:{control}:overrides"], "evicted overrides"),
        (vec!["HSET", "t:1:{control}:head", "version", "garbage"], "a version that is none"),
        (vec!["HSET", "t:1:{control}:blocks", "foreign", "garbage"], "a foreign fact"),
    ] {
        let _ = server.cli(&words);
        until_true(what, || {
            server.cli(&["HLEN", "t:1:{control}:blocks"]) == "2"
                && server.cli(&["HLEN", "t:1:{control}:overrides"]) == "1"
                && server.cli(&["ZCARD", "t:1:{control}:log"]) == "3"
                && server.cli(&["ZCARD", "t:1:{control}:live"]) == "1"
        });
    }
    // A value that is none is overwritten by the next that is one, and never heard.
    let name = String::from_utf8(vec![b'c'; 16]).unwrap();
    let c = [b'c'; 16];
    one.told(one.block(c, 900));
    let _ = server.cli(&["HSET", "t:1:{control}:blocks", &name, "garbage"]);
    let two = TestInstance::start(&runtime, &server, 5);
    two.until_blocked(A, Some(900));
    until_true("it to be counted", || two.control.stats().unreadable_facts > 0);
    assert_eq!(two.blocked_s(c), None);
    assert_eq!(two.told(two.block(c, 60)), PublishStatus::Published);
    let three = TestInstance::start(&runtime, &server, 5);
    three.until_blocked(c, Some(60));
}

#[test]
fn numbers_that_are_not_ours_stop_nobody() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let two = TestInstance::start(&runtime, &server, 2_000);
    one.told(one.block(A, 900));
    two.until_blocked(A, Some(900));
    let (head, log, blocks) = ("t:1:{control}:head", "t:1:{control}:log", "t:1:{control}:blocks");
    let (digits, name) = ("9".repeat(400), "n".repeat(16));
    let ends_never = format!("5,{digits},+,");
    let far_cursor = format!("b{digits}");
    let rows: &[&[&str]] = &[
        &["HSET", head, "version", "inf"],
        &["HSET", head, "version", "nan"],
        &["HSET", head, "version", "-5"],
        &["HSET", head, "version", "1e300"],
        // Nothing is more than this by one.
        &["HSET", head, "version", "9007199254740993000"],
        &["HSET", head, "heal", &far_cursor],
        &["HSET", head, "epoch", "\u{e9}"],
        &["ZADD", log, "inf", "bfoo"],
        &["ZADD", log, "1e300", "bfoo"],
        &["HSET", blocks, &name, &ends_never],
    ];
    for (number, words) in rows.iter().enumerate() {
        let _ = server.cli(words);
        let hash = [100 + number as u8; 16];
        assert_eq!(one.told(one.block(hash, 900)), PublishStatus::Published, "{words:?}");
        two.until_blocked(hash, Some(900));
        let three = TestInstance::start(&runtime, &server, 3_000);
        three.until_blocked(A, Some(900));
        three.until_blocked(hash, Some(900));
        drop(three);
        let version = server.cli(&["HGET", head, "version"]);
        assert!(version.parse::<u64>().is_ok_and(|version| version < 1 << 53), "{version}");
    }
}

/// What a failover to a server whose clock is behind leaves: facts with stamps that are yet to come.
#[test]
fn a_fact_from_a_clock_ahead_can_be_changed_and_stays_changed() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let c = [b'c'; 16];
    let name = String::from_utf8(c.to_vec()).unwrap();
    one.told(one.block(c, 9_000));
    let stored = server.cli(&["HGET", "t:1:{control}:blocks", &name]);
    let (stamp, rest) = stored.split_once(',').unwrap();
    let ahead = stamp.parse::<u64>().unwrap() + 600_000_000;
    let _ = server.cli(&["HSET", "t:1:{control}:blocks", &name, &format!("{ahead},{rest}")]);
    let two = TestInstance::start(&runtime, &server, 2_000);
    two.until_blocked(c, Some(9_000));
    assert!(two.control.unblock(c));
    one.until_blocked(c, None);
    // Whoever tells again what it knew changes nothing.
    server.tell(&["FLUSHALL"]);
    until_true("it to be told again", || server.cli(&["HLEN", "t:1:{control}:blocks"]) == "1");
    let three = TestInstance::start(&runtime, &server, 3_000);
    three.until_up();
    let blocked = [&one, &two, &three].map(|one| one.blocked_s(c));
    assert_eq!(blocked, [None; 3]);
    // A stamp that no clock can have shown is nobody's.
    let never = "9007199254740991,9007199254740991,+,";
    let _ = server.cli(&["HSET", "t:1:{control}:blocks", &name, never]);
    assert_eq!(two.told(two.block(c, 60)), PublishStatus::Published);
    one.until_blocked(c, Some(60));
}

#[test]
fn what_is_left_after_an_eviction_is_heard_by_whoever_comes() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let hash = |number: u8| [number; 16];
    for number in 0..200 {
        one.block(hash(number), 900);
    }
    one.told(one.control.set_override(("api", "k"), "text", None));
    one.told(one.control.put_rules("rules: []", "print"));
    drop(one);
    for key in ["log", "ends", "head", "rules"] {
        let _ = server.cli(&["DEL", &format!("t:1:{{control}}:{key}")]);
        let two = TestInstance::start(&runtime, &server, 2_000);
        until_true(key, || two.control.blocks().len() == 200);
        two.until_override("text", false);
        until_true(key, || {
            server.cli(&["ZCARD", "t:1:{control}:ends"]) == "200"
                && server.cli(&["HGET", "t:1:{control}:head", "heal"]).is_empty()
        });
        let rules = if key == "rules" { "0" } else { "1" };
        assert_eq!(server.cli(&["HLEN", "t:1:{control}:rules"]), rules);
    }
}

#[test]
fn a_call_that_fails_midway_leaves_nothing_for_ever() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    one.until_up();
    server.tell(&["ACL", "SETUSER", "default", "-zadd"]);
    assert_eq!(one.told(one.block(A, 900)), PublishStatus::Pending);
    assert_eq!(server.cli(&["HLEN", "t:1:{control}:blocks"]), "1");
    let keys = server.cli(&["KEYS", "*"]);
    for key in keys.lines() {
        assert_ne!(server.cli(&["TTL", key]), "-1", "{key}");
    }
    server.tell(&["ACL", "SETUSER", "default", "+zadd"]);
    until_true("it to be told", || one.control.stats().unpublished == 0);
    let two = TestInstance::start(&runtime, &server, 2_000);
    two.until_blocked(A, Some(900));
}

#[test]
fn what_is_lifted_leaves_a_trace_only_where_something_was_and_no_longer_than_that() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let two = TestInstance::start(&runtime, &server, 2_000);
    assert!(!one.control.unblock(A));
    assert_eq!(one.told(one.control.last_change()), PublishStatus::Published);
    one.told(one.control.remove_override(("api", "k"), "text"));
    one.told(one.control.remove_rules());
    for key in ["blocks", "overrides", "rules"] {
        assert_eq!(server.cli(&["HLEN", &format!("t:1:{{control}}:{key}")]), "0", "{key}");
    }
    assert_eq!(one.control.stats().overrides, 0, "nor is it kept here");
    // Also where this instance has not heard of it, as of what was decided this moment.
    one.told(one.block(B, 2));
    two.control.unblock(B);
    one.until_blocked(B, None);
    until_true("the trace to go", || server.cli(&["HLEN", "t:1:{control}:blocks"]) == "0");
}

#[test]
fn the_store_is_bounded_and_says_so() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    let tell = |of: &TestInstance, number: usize| {
        of.control.set_override(("api", &number.to_string()), "text", None)
    };
    let acts: Vec<_> = (0..OVERRIDES_MAX).map(|number| tell(&one, number)).collect();
    assert_eq!(one.told(tell(&one, OVERRIDES_MAX)), PublishStatus::NoRoom, "here");
    assert_eq!(one.told(acts[OVERRIDES_MAX - 1]), PublishStatus::Published);
    // An instance that has heard of nobody else's yet.
    let two = TestInstance::start(&runtime, &server, 1_000);
    let act = tell(&two, OVERRIDES_MAX);
    assert_eq!(two.told(act), PublishStatus::NoRoom);
    assert_eq!(server.cli(&["HLEN", "t:1:{control}:overrides"]), OVERRIDES_MAX.to_string());
    assert_eq!(two.told(tell(&two, 7)), PublishStatus::Published, "one takes the place of its own");
    assert_eq!(one.told(tell(&one, OVERRIDES_MAX)), PublishStatus::NoRoom);
    let c = one.told(one.block(C, 9));
    assert_eq!(c, PublishStatus::Published, "other kinds have room of their own");
}

#[test]
fn a_flood_of_blocks_is_told_in_few_calls() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let one = TestInstance::start(&runtime, &server, 1_000);
    one.until_up();
    let before = one.control.stats().calls;
    let (done, finished) = mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (one, done) = (&one, done.clone());
            scope.spawn(move || {
                for number in 0..2_000_u32 {
                    let mut hash = [thread; 16];
                    hash[..4].copy_from_slice(&number.to_be_bytes());
                    assert!(one.block(hash, 900).is_some());
                }
                done.send(()).unwrap();
            });
        }
    });
    assert_eq!(finished.iter().take(4).count(), 4);
    let last = one.control.last_change();
    assert_eq!(
        runtime.handle.block_on(one.control.published(last, PATIENCE)),
        PublishStatus::Published
    );
    assert_eq!(server.cli(&["HLEN", "t:1:{control}:blocks"]), "8000");
    let calls = one.control.stats().calls - before;
    assert!(calls <= 2_000, "{calls} calls for 8,000 blocks");
}

#[test]
fn the_slot_is_the_one_that_a_cluster_gives_it() {
    let server = TestRedis::with(&["--cluster-enabled", "yes"]);
    let key = InstanceKeys::new("any").live().to_string();
    assert_eq!(server.cli(&["CLUSTER", "KEYSLOT", &key]), CONTROL_SLOT.to_string());
}

#[test]
fn a_cluster_is_as_good() {
    let (cluster, runtime) =
        (testkit::redis::TestRedisCluster::with_primaries(3, false), ThreadRuntime::start());
    let one = TestInstance::at(&runtime, &cluster.url(), 1_000);
    let two = TestInstance::at(&runtime, &cluster.url(), 2_000);
    until_true("two to be alive", || {
        [&one, &two].iter().all(|one| one.heard.live.load(Ordering::Relaxed) == 2)
    });
    assert_eq!(one.told(one.block(A, 900)), PublishStatus::Published);
    two.until_blocked(A, Some(900));
}

/// Writes the first override under another name, as whoever can write to the store may.
const MOVE_OVERRIDE: &str = "
local field = redis.call('HKEYS', KEYS[1])[1]
local moved = string.rep('x', 16)
redis.call('HSET', KEYS[1], moved, redis.call('HGET', KEYS[1], field))
local version = string.format('%.0f', redis.call('HGET', KEYS[2], 'version') + 1)
redis.call('HSET', KEYS[2], 'version', version)
redis.call('ZADD', KEYS[3], version, 'o' .. moved)
return 1";

#[test]
fn only_instances_with_the_same_secret_change_rules_and_overrides() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let start = |clock_s, secret: Option<&[u8]>| {
        TestInstance::with_secret(&runtime, &server.url(), clock_s, secret)
    };
    let secret: &[u8] = b"0123456789abcdef";
    let (one, two) = (start(1_000, Some(secret)), start(9_000, Some(secret)));
    let (open, other) = (start(5, None), start(7, Some(b"another secret of theirs")));
    [&one, &two, &open, &other].iter().for_each(|one| one.until_up());
    let refused =
        |of: &TestInstance, why: SealRefusal| of.control.stats().refused_facts[why as usize];

    assert_eq!(one.told(one.control.put_rules("rules: [1]", "print")), PublishStatus::Published);
    let rules = until("rules to be heard of", || two.last_rules()).unwrap();
    assert_eq!((&*rules.text, &*rules.replaced_fingerprint), ("rules: [1]", "print"));
    assert!(rules.verified);
    let rules = until("rules to be heard of", || open.last_rules()).unwrap();
    assert_eq!((&*rules.text, rules.verified), ("rules: [1]", false), "it cannot check them");
    assert_eq!(open.control.stats().unchecked_facts, 1);
    until_true("a wrong seal", || refused(&other, SealRefusal::WrongSeal) == 1);
    assert_eq!(other.last_rules(), None);

    assert_eq!(open.told(open.control.put_rules("forged", "print")), PublishStatus::Published);
    // The first that sees it writes over it what it knows.
    until_true("no seal", || {
        [&one, &two].iter().any(|one| refused(one, SealRefusal::Unsealed) > 0)
    });
    let in_force = || open.last_rules().flatten().filter(|rules| *rules.text == *"rules: [1]");
    until("the rules to be put back", in_force);
    assert_eq!(two.last_rules().unwrap().unwrap().text, rules.text);
    assert_eq!((one.last_rules(), other.last_rules()), (None, None));
    // What is put later, by an instance with the secret, holds whatever the stamp of the forged one is.
    assert_eq!(two.told(two.control.put_rules("rules: [2]", "print")), PublishStatus::Published);
    let later = || one.last_rules().flatten().filter(|rules| &*rules.text == "rules: [2]");
    assert!(until("later rules", later).verified);

    let text = r#"{"rule":"api","key":"user=42","set":{"limits":["5/hour"]}}"#;
    let set = one.control.set_override(("api", "user=42"), text, None);
    assert_eq!(one.told(set), PublishStatus::Published);
    two.until_override(text, false);
    let before = refused(&two, SealRefusal::WrongSeal);
    let keys = ["overrides", "head", "log"].map(|name| format!("t:1:{{control}}:{name}"));
    let [overrides, head, log] = &keys;
    assert_eq!(server.cli(&["EVAL", MOVE_OVERRIDE, "3", overrides, head, log]), "1");
    until_true("a moved override", || refused(&two, SealRefusal::WrongSeal) > before);
    let gone = one.control.remove_override(("api", "user=42"), text);
    assert_eq!(one.told(gone), PublishStatus::Published);
    two.until_override(text, true);
    assert_eq!(two.heard.overrides.lock().unwrap().len(), 2, "set and taken back");
    // An instance that starts reads what is sealed as well.
    let late = start(77, Some(secret));
    let heard = until("rules to be heard of", || late.last_rules()).unwrap();
    assert_eq!((&*heard.text, heard.verified), ("rules: [2]", true));
}

#[test]
fn who_only_watches_a_store_is_no_instance_there_and_sees_that_it_loses_data() {
    let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
    let clock = || Arc::new(ManualClock::new(Micros::from_secs(5)));
    let inside = runtime.handle.enter();
    let store =
        crate::RedisStore::at(&StoreUrl::parse(&server.url()).unwrap(), &RedisOptions::default());
    store.watch_data(clock());
    drop(inside);
    let watch = store.instances.watch.get().unwrap();
    let until_calls = |more: u64| {
        let before = watch.stats().calls;
        until_true("some calls", || watch.stats().calls >= before + more);
    };
    // Nobody has joined there.
    until_calls(2);
    assert_eq!(server.cli(&["ZCARD", "tollgate:1:{control}:live"]), "0");
    let set = || {
        let url = server.url();
        let link = Link::start(&StoreUrl::parse(&url).unwrap(), &RedisOptions::default());
        let heard = Arc::<RecordingSink>::default();
        let names = ("tollgate", None);
        (InstanceChannel::start(link, names, Arc::default(), heard.clone(), clock()), heard)
    };
    let inside = runtime.handle.enter();
    let (one, heard) = set();
    drop(inside);
    let act = one.set_override(("api", "k"), "text", None);
    let status = runtime.handle.block_on(one.published(act, PATIENCE));
    assert_eq!(status, PublishStatus::Published);
    until_calls(4);
    assert_eq!(heard.live.load(Ordering::Relaxed), 1, "it shares its limits with nobody");
    assert_eq!((watch.stats().overrides, watch.stats().unpublished), (0, 0));
    assert_eq!(store.data_losses(), 0);
    runtime.handle.block_on(one.leave(PATIENCE));
    drop(one);
    server.tell(&["FLUSHALL"]);
    until_true("the loss of data", || store.data_losses() == 1);
    until_calls(2);
    assert_eq!(server.cli(&["HLEN", "tollgate:1:{control}:overrides"]), "0");
    assert_eq!((store.data_losses(), store.key_blocked("k".into(), Micros::ZERO)), (1, None));
}
