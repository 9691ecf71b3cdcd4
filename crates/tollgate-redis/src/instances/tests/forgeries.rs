//! Somebody else writes to the store: sealed rules and overrides are put back as they were.

use super::*;

const SECRET: &[u8] = b"0123456789abcdef";
const OVERRIDES: &str = "t:1:{control}:overrides";
const ENDS: &str = "t:1:{control}:ends";

/// Writes a value in place of the only one of a hash, and nothing else. An empty one deletes it.
const WRITE: &str = "
local name = redis.call('HKEYS', KEYS[1])[1]
if ARGV[1] == '' then return redis.call('HDEL', KEYS[1], name) end
redis.call('HSET', KEYS[1], name, ARGV[1])
return 1";

/// Lets the only override end at once, in its value and in the list of ends, and says so to all instances.
const END: &str = "
local name = redis.call('HKEYS', KEYS[1])[1]
local value = redis.call('HGET', KEYS[1], name)
local stamp, rest = string.match(value, '^(%d+),%d+,(.*)')
redis.call('HSET', KEYS[1], name, stamp .. ',5,' .. rest)
redis.call('ZADD', KEYS[2], 5, 'o' .. name)
return 1";

/// Two instances with a secret, and who writes to their store.
struct ForgeryScene {
    server: TestRedis,
    runtime: ThreadRuntime,
    one: TestInstance,
    two: TestInstance,
}

impl ForgeryScene {
    fn start() -> ForgeryScene {
        let (server, runtime) = (TestRedis::start(), ThreadRuntime::start());
        let start =
            |clock_s| TestInstance::with_secret(&runtime, &server.url(), clock_s, Some(SECRET));
        let (one, two) = (start(1_000), start(9_000));
        one.until_up();
        two.until_up();
        ForgeryScene { server, runtime, one, two }
    }

    /// Lets time pass for both instances.
    fn pass(&self, seconds: u64) {
        for instance in [&self.one, &self.two] {
            let passed = tollgate::Wait::at_least(Duration::from_secs(seconds));
            instance.clock.set(instance.clock.now().after(passed));
        }
    }

    fn set(&self, text: &str, until: Option<Micros>) {
        let set = self.one.control.set_override(("api", "user=42"), text, until);
        assert_eq!(self.one.told(set), PublishStatus::Published);
        self.two.until_override(text, false);
    }

    fn stored(&self, hash: &str) -> String {
        self.server.cli(&["HVALS", hash])
    }

    fn write(&self, hash: &str, value: &str) {
        assert_eq!(self.server.cli(&["EVAL", WRITE, "1", hash, value]), "1");
    }

    /// Waits until the store has this value again, under any stamp, while time passes.
    fn until_stored(&self, hash: &str, value: &str, what: &str) {
        let unstamped = |value: &str| value.split_once(',').map(|(_, rest)| rest.to_string());
        until_true(what, || {
            self.pass(1);
            unstamped(&self.stored(hash)) == unstamped(value)
        });
    }
}

#[test]
fn whatever_is_written_over_a_sealed_fact_is_put_back_as_it_was() {
    let scene = ForgeryScene::start();
    let (one, two) = (&scene.one, &scene.two);
    scene.set("first", None);
    let old = scene.stored(OVERRIDES);
    scene.pass(60);
    scene.set("second", Some(one.clock.now().after(tollgate::Wait::from_micros(3_600_000_000))));
    let right = scene.stored(OVERRIDES);
    let (stamp, rest) = right.split_once(',').unwrap();
    let later = format!("{}{}", stamp.parse::<u64>().unwrap() + 600_000_000, &right[stamp.len()..]);
    let old_later =
        format!("{}{}", later.split(',').next().unwrap(), &old[old.find(',').unwrap()..]);
    let rows = [
        (right.replace("second", "forged"), "a changed text"),
        (later.replace("second", "forged"), "a changed text from the future"),
        (right.replacen(",+,", ",-,", 1), "a removal"),
        (later.replacen(",+,", ",-,", 1), "a removal from the future"),
        (format!("{stamp},0,{}", rest.split_once(',').unwrap().1), "another end"),
        (old, "an old version"),
        (old_later, "an old version that looks late"),
        (format!("{stamp},0,+,made up"), "no seal"),
        (format!("{stamp},0,+,s2,x"), "half a seal"),
        (right.replacen(",s2,", ",s1,", 1), "a seal of an earlier format"),
        ("garbage".into(), "garbage"),
        (String::new(), "nothing"),
    ];
    for (forged, what) in rows {
        scene.write(OVERRIDES, &forged);
        scene.until_stored(OVERRIDES, &right, what);
    }
    for heard in [&one.heard, &two.heard] {
        let overrides = heard.overrides.lock().unwrap();
        assert!(overrides.iter().all(|one| !one.removed), "{overrides:?}");
        let texts: Vec<&str> = overrides.iter().map(|one| &*one.text).collect();
        assert!(texts.is_empty() || texts == ["first", "second"], "{texts:?}");
    }
    let ended = scene.server.cli(&["EVAL", END, "2", OVERRIDES, ENDS]);
    assert_eq!(ended, "1");
    scene.until_stored(OVERRIDES, &right, "the end of it");
    let late = TestInstance::with_secret(&scene.runtime, &scene.server.url(), 77, Some(SECRET));
    late.until_override("second", false);
    assert_eq!(late.heard.overrides.lock().unwrap().len(), 1);
}

#[test]
fn rules_and_removals_are_put_back_as_well() {
    let scene = ForgeryScene::start();
    let rules = "t:1:{control}:rules";
    assert_eq!(
        scene.one.told(scene.one.control.put_rules("rules: [1]", "print")),
        PublishStatus::Published
    );
    until("rules to be heard of", || scene.two.last_rules());
    let put = scene.stored(rules);
    scene.write(rules, &put.replace("[1]", "[2]"));
    scene.until_stored(rules, &put, "the rules");
    scene.pass(60);
    assert_eq!(scene.two.told(scene.two.control.remove_rules()), PublishStatus::Published);
    until_true("a removal", || scene.one.last_rules() == Some(None));
    let removed = scene.stored(rules);
    for old in [&put, ""] {
        scene.write(rules, old);
        scene.until_stored(rules, &removed, "the removal");
    }
    let heard = [&scene.one, &scene.two].map(|one| one.heard.rules.lock().unwrap().len());
    assert_eq!(heard, [1, 1], "each heard of the other");
}

#[test]
fn servers_with_different_secrets_do_not_write_over_each_other_all_the_time() {
    let scene = ForgeryScene::start();
    scene.set("ours", None);
    let other_secret: &[u8] = b"another secret of theirs";
    let other =
        TestInstance::with_secret(&scene.runtime, &scene.server.url(), 5, Some(other_secret));
    other.until_up();
    let set = other.control.set_override(("api", "user=42"), "theirs", None);
    assert_eq!(other.told(set), PublishStatus::Published);
    until_true("a seal of others", || {
        let refused = |of: &TestInstance| of.control.stats().refused_facts.iter().sum::<u64>();
        [&scene.one, &scene.two, &other].iter().all(|one| refused(one) > 0)
    });
    // Time stands still for them, so each writes once; `HealPace` says what follows.
    let calls = || scene.one.control.stats().calls;
    let before = calls();
    until_true("some calls", || calls() > before + 8);
    let version = || scene.server.cli(&["HGET", "t:1:{control}:head", "version"]);
    let (first, before) = (version(), calls());
    until_true("some calls", || calls() > before + 8);
    assert_eq!(version(), first);
    assert_eq!(scene.two.heard.overrides.lock().unwrap().len(), 1);
}
