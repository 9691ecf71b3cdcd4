//! Random rules and random traffic through two gatekeepers, one in memory and one on a real Redis, at the
//! same injected times: every answer is the same.
//!
//! Rules come in all algorithms, with `count_denied`, bans, tiers, shadow and soft limits; traffic is takes,
//! questions, refunds, reservations and Envoy's descriptors that state limits of their own. Most instants are
//! at the end of a window or one microsecond beside it, because that is where stores have disagreed. A
//! failure prints the seed and the rules.

use std::fmt::Write as _;
use std::time::Duration;

use testkit::random::SplitMix64;
use testkit::redis::TestRedis as Redis;
use tollgate::{DecidedBy, Key, Limit, ManualClock, MemoryStore, Micros, Outcome};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};
use tollgate_rules::{
    Answer, Ask, Descriptor, DescriptorAsk, DescriptorEntry, Facts, Gatekeeper, Hits,
    InfallibleStore, ReservationId, RuleSet, Source, StatedLimit, Unit, compile,
};

/// 2026-11-15 12:00:00 UTC, in microseconds.
const NOON: u64 = 1_794_744_000_000_000;
const SECOND: u64 = 1_000_000;
const WORLDS: u64 = 40;
const STEPS: usize = 250;
/// Reservations that are open at once, at most.
const OPEN_MAX: usize = 6;

/// One set of rules under one stream of requests, decided twice.
struct ComparedGatekeepers {
    seed: u64,
    random: SplitMix64,
    rules: String,
    now: u64,
    memory: Gatekeeper<MemoryStore, ManualClock>,
    redis: Gatekeeper<SharedStore<RedisStore>, ManualClock>,
    open: Vec<(ReservationId, ReservationId)>,
    /// Counts of refusals, refunds, reservations and stated limits.
    coverage: TrafficCoverage,
}

/// Coverage of a run: a test without refusals would show nothing.
#[derive(Debug, Default)]
struct TrafficCoverage {
    refused: u64,
    blocked: u64,
    refunded: u64,
    committed: u64,
    stated_over: u64,
    banned: u64,
    banned_in_shadow: u64,
}

/// Bans, bans in shadow, and verdicts of each rule.
fn tallies<S: InfallibleStore>(
    gatekeeper: &Gatekeeper<S, ManualClock>,
) -> Vec<(String, [u64; 2], Vec<u64>)> {
    let rules = gatekeeper.rules();
    let each = rules.tallies().map(|(rule, tally)| {
        let bans = [tally.bans(), tally.shadow_bans()];
        (rule.name.to_string(), bans, tally.counts().to_vec())
    });
    each.collect()
}

#[tokio::test]
async fn rules_answer_the_same_in_memory_and_in_redis() {
    let server = Redis::start();
    let mut seen = TrafficCoverage::default();
    for seed in 0..WORLDS {
        let mut world = ComparedGatekeepers::new(&server, seed).await;
        for step in 0..STEPS {
            world.tick();
            world.step(step).await;
        }
        let [memory, redis] = [tallies(&world.memory), tallies(&world.redis)];
        assert_eq!(memory, redis, "seed {seed}\n{}", world.rules);
        seen.banned += memory.iter().map(|one| one.1[0]).sum::<u64>();
        seen.banned_in_shadow += memory.iter().map(|one| one.1[1]).sum::<u64>();
        let one = world.coverage;
        seen.refused += one.refused;
        seen.blocked += one.blocked;
        seen.refunded += one.refunded;
        seen.committed += one.committed;
        seen.stated_over += one.stated_over;
    }
    let TrafficCoverage { refused, blocked, refunded, committed, stated_over, .. } = seen;
    let least = [refused, blocked, refunded, committed, stated_over].into_iter().min();
    assert!(seen.banned.min(seen.banned_in_shadow) > 5, "{seen:?}");
    assert!(least > Some(50), "too little happened to show anything: {seen:?}");
}

/// A limit in the notation of a rules file.
fn limit(random: &mut SplitMix64) -> String {
    let rate = random.pick(&["3/second", "5/2s", "4/second", "7/3s"]);
    let algorithm = *random.pick(&[
        "token_bucket, burst: 3",
        "token_bucket, burst: 9",
        "leaky_bucket, burst: 4",
        "fixed_window",
        "fixed_window, align: first_hit",
        "sliding_window_log",
        "sliding_window_counter",
    ]);
    format!("{{ rate: {rate}, algorithm: {algorithm} }}")
}

/// Three rules that meet in most requests.
fn rules(random: &mut SplitMix64) -> String {
    let mut text = String::from(
        "version: 1\ntiers: { free: 1, pro: 2, vip: { users: [{ rate: 6/second, algorithm: fixed_window }] } }\nrules:\n",
    );
    let rows = [("users", "'{user}'", 1), ("paths", "'{ip}'", 3), ("all", "global", 4)];
    for (name, key, times) in rows {
        let limits: Vec<String> = match random.one_in(3) {
            true => vec![limit(random), "40/minute".into()],
            false => vec![limit(random)],
        };
        let _ = write!(text, "- {{ name: {name}, key: {key}, limits: [{}]", limits.join(", "));
        if name == "users" || random.one_in(3) {
            text.push_str(", tiered: true");
        }
        if random.one_in(2) {
            text.push_str(", count_denied: true");
        }
        if random.one_in(3) {
            let _ = write!(text, ", ban: {{ after: {}, within: 10s, for: 2s }}", 2 + times);
        }
        match random.below(6) {
            0 => text.push_str(", mode: shadow"),
            1 => text.push_str(", soft: true"),
            _ => {}
        }
        if random.one_in(3) {
            text.push_str(", cost: { default: 1, 'POST /heavy': 3 }");
        }
        text.push_str(" }\n");
    }
    text
}

fn compiled(text: &str) -> RuleSet {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.rules.unwrap_or_else(|| panic!("{}\n{text}", compiled.diagnostics))
}

/// A store under a prefix of this world's own, connected.
async fn shared(server: &Redis, seed: u64) -> SharedStore<RedisStore> {
    let options = RedisOptions {
        prefix: format!("world-{seed}").parse().expect("a prefix"),
        time: TimeSource::Caller,
        timeout: Duration::from_secs(20),
        ..RedisOptions::default()
    };
    let url = StoreUrl::parse(&server.url()).expect("an address");
    let store = RedisStore::at(&url, &options);
    let limit = Limit::per_second(1).build().expect("a limit");
    let connected = async {
        while store.balance(&limit, Key::from("connected?"), Micros::ZERO).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), connected).await.expect("a connection");
    SharedStore::start(vec![store], 10_000, TimeSource::Caller)
}

/// An answer without `decided_by`.
fn answer_text(answer: &Answer) -> String {
    let told = |outcome: &Outcome| Outcome { decided_by: DecidedBy::Memory, ..*outcome };
    let binding = answer.binding().map(|one| (one.rule.to_owned(), one.limit.to_owned()));
    let limits: Vec<_> = answer
        .limits()
        .map(|one| format!("{} {} {:?}", one.rule, one.limit, told(&one.outcome)))
        .collect();
    let whole = (answer.refusal(), answer.remaining(), answer.capacity(), answer.retry_after());
    format!("{whole:?} {:?} {binding:?} {limits:#?}", answer.reset_after())
}

impl ComparedGatekeepers {
    async fn new(server: &Redis, seed: u64) -> ComparedGatekeepers {
        let mut random = SplitMix64::seeded(seed);
        let rules = rules(&mut random);
        let clock = || ManualClock::new(Micros::ZERO);
        let memory = MemoryStore::new(10_000);
        let redis = shared(server, seed).await;
        ComparedGatekeepers {
            seed,
            random,
            now: NOON,
            memory: Gatekeeper::new(compiled(&rules), memory, clock()),
            redis: Gatekeeper::new(compiled(&rules), redis, clock()),
            rules,
            open: Vec::new(),
            coverage: TrafficCoverage::default(),
        }
    }

    /// Stands still, goes on a little, or goes to the end of a window or beside it.
    fn tick(&mut self) {
        let random = &mut self.random;
        let next = |now: u64, seconds: u64| (now / (seconds * SECOND) + 1) * seconds * SECOND;
        self.now = match random.below(12) {
            0..=5 => self.now,
            6..=7 => self.now + random.below(300_000),
            8 => next(self.now, 1) - 1,
            9 => next(self.now, 1),
            10 => next(self.now, *random.pick(&[1, 2, 3])) + random.below(2),
            _ => self.now + random.below(4 * SECOND),
        };
    }

    async fn step(&mut self, step: usize) {
        let user = *self.random.pick(&["anna", "bob"]);
        let tier = *self.random.pick(&[Some("free"), Some("pro"), Some("vip"), Some("no"), None]);
        let (method, path) = *self.random.pick(&[("GET", "/a"), ("POST", "/heavy")]);
        let facts = Facts {
            method: Some(method),
            path: Some(path),
            ip: Some([192, 0, 2, 1 + self.random.below(2) as u8].into()),
            user: Some(user),
            tier,
            ..Facts::default()
        };
        let cost = *self.random.pick(&[None, None, None, Some(0), Some(1), Some(2), Some(5)]);
        let ask = Ask { facts, cost, ..Ask::default() };
        let what = format!("step {step} at {}: {ask:?}", self.now - NOON);
        match self.random.below(20) {
            0..=9 => self.decide(&ask, &what).await,
            10 => self.peek(&ask, &what).await,
            11..=12 => self.refund(&ask, &what).await,
            13..=14 => self.reserve(&ask, &what).await,
            15..=16 => self.settle(&what).await,
            _ => self.describe(user, &what).await,
        }
    }

    fn same(&mut self, memory: &Answer, redis: &Answer, what: &str) {
        let (here, there) = (answer_text(memory), answer_text(redis));
        assert!(
            here == there,
            "seed {}, {what}\nmemory {here}\nredis {there}\n{}",
            self.seed,
            self.rules
        );
        self.coverage.refused += u64::from(!memory.allowed());
        self.coverage.blocked += u64::from(memory.decided_by() == DecidedBy::Block);
    }

    async fn decide(&mut self, ask: &Ask<'_>, what: &str) {
        let now = Micros::new(self.now);
        let here = self.memory.decide_at(ask, now);
        let there = self.redis.decide_by(self.redis.rules(), ask, now).await;
        self.same(&here, &there, &format!("decide, {what}"));
    }

    async fn peek(&mut self, ask: &Ask<'_>, what: &str) {
        let now = Micros::new(self.now);
        let here = self.memory.peek_by(self.memory.rules(), ask, now).await;
        let there = self.redis.peek_by(self.redis.rules(), ask, now).await;
        self.same(&here, &there, &format!("peek, {what}"));
    }

    async fn refund(&mut self, ask: &Ask<'_>, what: &str) {
        let now = Micros::new(self.now);
        let here = self.memory.refund_at(ask, now);
        let there = self.redis.refund_by(self.redis.rules(), ask, now).await;
        self.same(&here, &there, &format!("refund, {what}"));
        self.coverage.refunded += 1;
    }

    async fn reserve(&mut self, ask: &Ask<'_>, what: &str) {
        if self.open.len() == OPEN_MAX || ask.cost == Some(0) {
            return;
        }
        let (now, lasts) = (Micros::new(self.now), Duration::from_secs(5));
        let here = self.memory.reserve_by(self.memory.rules(), ask, lasts, now).await;
        let there = self.redis.reserve_by(self.redis.rules(), ask, lasts, now).await;
        let (here, there) = (here.expect("room"), there.expect("room"));
        self.same(&here.answer, &there.answer, &format!("reserve, {what}"));
        self.open.extend(here.id.zip(there.id));
    }

    async fn settle(&mut self, what: &str) {
        if self.open.is_empty() {
            return;
        }
        let now = Micros::new(self.now);
        let index = self.random.below(self.open.len() as u64) as usize;
        let (here, there) = self.open.swap_remove(index);
        let (here, there) = match self.random.below(4) {
            0 => (self.memory.cancel_by(here, now).await, self.redis.cancel_by(there, now).await),
            cost => (
                self.memory.commit_by(here, cost * 2 - 1, now).await,
                self.redis.commit_by(there, cost * 2 - 1, now).await,
            ),
        };
        assert_eq!(here, there, "seed {}, settle, {what}", self.seed);
        self.coverage.committed += 1;
    }

    /// Limits that the asker states with numbers that change from one request to the next.
    async fn describe(&mut self, user: &str, what: &str) {
        let units = *self.random.pick(&[2, 5, 9]);
        let unit = *self.random.pick(&[Unit::Second, Unit::Second, Unit::Minute]);
        let hits = Hits::Take(self.random.below(4));
        let entries = [DescriptorEntry { name: "caller", value: user }];
        let limit = Some(StatedLimit { units, unit });
        let descriptors = [Descriptor { entries: &entries, hits: Some(hits), limit }];
        let ask = DescriptorAsk { domain: "edge", descriptors: &descriptors };
        let here = described(&self.memory, &ask, self.now).await;
        let there = described(&self.redis, &ask, self.now).await;
        assert_eq!(here, there, "seed {}, {units}/{unit:?}, {hits:?}, {what}", self.seed);
        self.coverage.stated_over += u64::from(here.contains("over: true"));
    }
}

async fn described<S: InfallibleStore>(
    gatekeeper: &Gatekeeper<S, ManualClock>,
    ask: &DescriptorAsk<'_>,
    now: u64,
) -> String {
    let now = Micros::new(now);
    let answer = gatekeeper.decide_descriptors_by(gatekeeper.rules(), ask, now).await;
    let answer = answer.expect("a right question");
    format!("{} {:?}", answer.allowed(), answer.statuses().collect::<Vec<_>>())
}
