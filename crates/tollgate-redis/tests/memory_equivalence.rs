//! Random requests through memory and through `Shared` on a real server, at the same injected times: every
//! answer is the same, whoever gives it.
//!
//! The server goes by the times that it is told, as if they were its own: so the refusal cache is on.

use std::convert::Infallible;
use std::time::Duration;

use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use tollgate::{
    Act, Algorithm, Check, Consistency, DecidedBy, Decision, Limit, MemoryStore, Micros, Outcome,
    Store, Terms, Wait,
};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, TimeSource};

use crate::shared;

const NOW: Micros = Micros::from_secs(1_795_000_000);

const STEPS: usize = 6_000;
const KEYS: [&str; 3] = ["ada", "bob", "eve"];

/// Limits of all algorithms that are full soon and empty at different times.
fn limits() -> Vec<Limit> {
    let limit = |number: usize, algorithm: Algorithm| {
        let period = Duration::from_secs([1, 7, 60][number % 3]);
        let units = [3, 5, 9][number % 3];
        Limit::per(units, period).algorithm(algorithm).name(format!("limit-{number}"))
    };
    let plain = Algorithm::ALL.into_iter().cycle().take(10).enumerate();
    let mut all: Vec<Limit> =
        plain.map(|(number, algorithm)| limit(number, algorithm).build().unwrap()).collect();
    all.push(limit(10, Algorithm::LeakyBucket).queue().build().unwrap());
    all
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

async fn connected(server: &TestRedis) -> RedisStore {
    let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
    shared::store_at(server, options).await
}

/// What one limit is asked.
fn check<'a>(limit: &'a Limit, random: &mut SplitMix64) -> Check<'a> {
    let act = match random.below(16) {
        0 => Act::Peek,
        1 => Act::Force,
        2 | 3 => Act::UpTo,
        _ => Act::Take,
    };
    let cost = match random.below(8) {
        0 => 0,
        1 => random.between(1, limit.capacity() + 1),
        2 | 3 => 2,
        _ => 1,
    };
    let check = Check::new(limit, *random.pick(&KEYS)).cost(cost).act(act);
    let check = if random.one_in(12) { check.at_once() } else { check };
    let counts = limit.units() == 5 || random.one_in(20);
    let check = if counts { check.count_denied() } else { check };
    if random.one_in(12) { check.shadow() } else { check }
}

/// The next instant: often the same, often the end of a window or a microsecond beside it.
fn next(random: &mut SplitMix64, now: Micros) -> Micros {
    let now = now.as_u64();
    let end_of = |period: u64| (now / period + 1) * period;
    Micros::new(match random.below(80) {
        0 => now + random.below(2_000_000),
        1 | 2 => now + random.below(200_000),
        3 => end_of(1_000_000) - 1,
        4 => end_of(1_000_000),
        5 => end_of(7_000_000) + random.below(2),
        _ => now,
    })
}

/// A refusal counts towards a ban, as the rules do it: whoever has earned one is blocked for a while.
async fn ban<S: Store<Error = Infallible>>(store: &S, limit: &Limit, key: &str, now: Micros) {
    let outcome = &mut [Outcome::default()];
    let counted = [Check::new(limit, key)];
    let Ok(counted) = store.decide_each(&counted, now.into(), outcome).await;
    if counted.remaining() == 0 {
        let until = now.after(Wait::from_micros(300_000));
        let Ok(_) = store.block("eve".into(), until, now).await;
    }
}

/// What an answer says beside who made it.
fn said(outcomes: &[Outcome], decision: &Decision) -> (Vec<Outcome>, Vec<bool>, usize, Wait) {
    let by_nobody = |one: &Outcome| Outcome { decided_by: DecidedBy::Memory, ..*one };
    let violates = (0..outcomes.len()).map(|index| decision.violates(index)).collect();
    let each = outcomes.iter().map(by_nobody).collect();
    (each, violates, decision.binding(), decision.retry_after())
}

#[tokio::test]
async fn what_is_remembered_of_refusals_changes_no_answer() {
    let server = TestRedis::start();
    let store = connected(&server).await;
    let shared = SharedStore::start_without_passing_time(vec![store], 10_000, TimeSource::Server);
    let (memory, limits) = (MemoryStore::new(10_000), limits());
    let bans = Limit::per_second(6).name("refusals").build().unwrap();
    let (mut random, mut now, mut receipts) = (SplitMix64::seeded(5), NOW, Vec::new());
    for step in 0..STEPS {
        now = next(&mut random, now);
        let several = *random.pick(&[1, 1, 2, 3, 5]);
        let first = random.below(limits.len() as u64) as usize;
        // Sometimes a limit is asked more than once, and its checks meet in one state.
        let every = if random.one_in(4) { 0 } else { 1 };
        let asked = (0..several).map(|number| &limits[(first + number * every) % limits.len()]);
        let checks: Vec<Check<'_>> = asked.map(|limit| check(limit, &mut random)).collect();
        if random.one_in(10) {
            let (check, here, there) = match receipts.pop() {
                Some((check, here, there)) if !random.one_in(3) => (check, Some(here), Some(there)),
                _ => (checks[0], None, None),
            };
            memory.refund(check.limit(), check.key(), here, check.units(), now);
            let Ok(()) = shared.refund(&check, there, now.into()).await;
        } else if random.one_in(50) {
            memory.reset(checks[0].limit(), checks[0].key(), now);
            let Ok(_) = shared.reset(&checks[0], now).await;
        }
        let (mut here, mut there) = ([Outcome::default(); 5], [Outcome::default(); 5]);
        let Ok(wanted) =
            Store::decide_each(&memory, &checks, now.into(), &mut here[..several]).await;
        let Ok(got) = shared.decide_each(&checks, now.into(), &mut there[..several]).await;
        let (wanted, got) = (said(&here[..several], &wanted), said(&there[..several], &got));
        assert_eq!(got, wanted, "step {step}: {checks:#?}");
        if got.1.contains(&true) && checks.iter().any(|check| check.key() == "bob".into()) {
            ban(&memory, &bans, "refusals", now).await;
            ban(&shared, &bans, "refusals", now).await;
        }
        let charged = (0..several).find(|index| here[*index].charged > 0 && receipts.len() < 8);
        if let Some(index) = charged {
            receipts.push((checks[index], here[index].receipt(), there[index].receipt()));
        }
    }
    let stats = shared.stats();
    assert!(stats.refusals_cached > STEPS as u64 / 50, "{stats:?}");
    assert_eq!((stats.degraded_local, stats.refunds_lost), (0, 0));
}

/// Would catch: a refusal that is remembered for one check's own cost, though two of one state were
/// judged for what they ask together.
#[tokio::test]
async fn what_two_checks_of_one_state_were_refused_says_nothing_about_one() {
    let server = TestRedis::start();
    let store = connected(&server).await;
    let shared = SharedStore::start_without_passing_time(vec![store], 10_000, TimeSource::Server);
    let limit = limit("1/hour burst 10");
    let check = Check::new(&limit, "a");
    let allowed = async |checks: &[Check<'_>]| {
        let outcomes = &mut [Outcome::default(); 2];
        let Ok(decision) = shared.decide_each(checks, NOW.into(), outcomes).await;
        decision.allowed()
    };
    assert!(allowed(&[check.cost(3)]).await);
    assert!(!allowed(&[check.cost(5), check.cost(5)]).await);
    assert!(allowed(&[check.cost(5)]).await, "5 of 7 are left");
}

/// One instance that decides by itself and tells later, beside memory: across the ends of windows, with
/// refunds and tellings at any time. Only of windows and counters: of others a telling may be a
/// sixteenth of a period late.
#[tokio::test]
async fn what_is_decided_here_and_told_later_is_as_in_memory() {
    let server = TestRedis::start();
    let consistency = Consistency::LocalSync { interval_ms: 3_600_000 };
    let terms = Terms { consistency, ..Terms::default() };
    let builder = |units| Limit::per_second(units).algorithm(Algorithm::FixedWindow);
    let limits = [
        builder(5).build().unwrap(),
        builder(6).align(tollgate::Align::FirstHit).name("hit").build().unwrap(),
        builder(7).stagger().name("staggered").build().unwrap(),
        Limit::per_second(8).build().unwrap(),
    ];
    for (seed, limit) in (0..).zip(&limits) {
        let (store, memory) = (connected(&server).await, MemoryStore::new(1_000));
        let shared =
            SharedStore::start_without_passing_time(vec![store], 1_000, TimeSource::Server);
        let (mut random, mut now, mut receipts) = (SplitMix64::seeded(seed), NOW, Vec::new());
        let key = format!("{seed}");
        for step in 0..3_000 {
            now = next(&mut random, now);
            shared.observe_time(now);
            let check = Check::new(limit, &key).terms(terms).cost(random.between(1, 3));
            let check = if random.one_in(3) { check.count_denied() } else { check };
            if random.one_in(12)
                && let Some((check, here, there)) = receipts.pop()
            {
                let check: Check<'_> = check;
                memory.refund(limit, check.key(), Some(here), check.units(), now);
                let Ok(()) = shared.refund(&check, Some(there), now.into()).await;
            }
            if random.one_in(8) {
                shared.drain().await;
            }
            let (mut here, mut there) = ([Outcome::default()], [Outcome::default()]);
            let Ok(wanted) = Store::decide_each(&memory, &[check], now.into(), &mut here).await;
            let Ok(got) = shared.decide_each(&[check], now.into(), &mut there).await;
            let (wanted, got) = (said(&here, &wanted), said(&there, &got));
            assert_eq!(got, wanted, "{limit}, step {step}");
            if here[0].charged > 0 && receipts.len() < 8 {
                receipts.push((
                    Check::new(limit, check.key()).terms(terms).cost(check.units()),
                    here[0].receipt(),
                    there[0].receipt(),
                ));
            }
        }
        let stats = shared.stats();
        assert_eq!((stats.sync_failures, stats.degraded_local), (0, 0), "{stats:?}");
    }
}

/// Would catch: refusals that are charged when the store is asked next, which may be in another window.
#[tokio::test]
async fn refusals_that_count_are_charged_at_their_own_instant() {
    let server = TestRedis::start();
    for algorithm in Algorithm::ALL {
        let store = connected(&server).await;
        let shared =
            SharedStore::start_without_passing_time(vec![store], 1_000, TimeSource::Server);
        let memory = MemoryStore::new(1_000);
        let limit = Limit::per_second(5).algorithm(algorithm).build().unwrap();
        let check = Check::new(&limit, "a").count_denied();
        // 20 times a second for 10 seconds.
        for number in 0..200 {
            let now = NOW.after(Wait::from_micros(number * 50_000));
            let wanted = memory.decide_one(&check, now);
            let Ok(got) = shared.decide_each(&[check], now.into(), &mut [Outcome::default()]).await;
            let said = |one: &Decision| (one.allowed(), one.remaining(), one.retry_after());
            assert_eq!(said(&got), said(&wanted), "{algorithm}, question {number}");
        }
    }
}

/// Would catch: an explanation that says that the store decides, or shows other states of shadow limits, where
/// a remembered refusal answers.
#[tokio::test]
async fn what_is_inspected_decides_like_the_request_that_follows() {
    let server = TestRedis::start();
    let store = connected(&server).await;
    let shared = SharedStore::start_without_passing_time(vec![store], 10_000, TimeSource::Server);
    let (limits, mut random, mut now) = (limits(), SplitMix64::seeded(11), NOW);
    let mut remembered = 0;
    for step in 0..2_000 {
        now = next(&mut random, now);
        let several = *random.pick(&[1, 2, 3]);
        let first = random.below(limits.len() as u64) as usize;
        let asked = (0..several).map(|number| &limits[(first + number) % limits.len()]);
        let takes = |limit| {
            let check = Check::new(limit, *random.pick(&KEYS)).cost(random.between(1, 2));
            if random.one_in(4) { check.shadow() } else { check }
        };
        let checks: Vec<Check<'_>> = asked.map(takes).collect();
        let Ok(inspected) = shared.inspect(&checks, now.into()).await;
        let inspected = inspected.expect("the store answers");
        let (mut told, mut got) = ([Outcome::default(); 3], [Outcome::default(); 3]);
        let explained = inspected.decide(&checks, now, &mut told[..several]);
        let Ok(decision) = shared.decide_each(&checks, now.into(), &mut got[..several]).await;
        remembered += u64::from(!inspected.remembered.is_empty());
        assert_eq!(told, got, "step {step}: {checks:#?}");
        assert_eq!(explained.retry_after(), decision.retry_after(), "step {step}");
        assert_eq!(explained.decided_by(), decision.decided_by(), "step {step}");
    }
    assert!(remembered > 50, "{remembered}");
}

/// The kinds of consistency that rules may mix in one request.
const KINDS: [Consistency; 3] = [
    Consistency::Strict,
    Consistency::Leased { millionths: 500_000 },
    Consistency::LocalSync { interval_ms: 10 },
];

/// Figures that change when budget is lent or returned, which may happen between an explanation and the request that
/// follows.
fn lending(shared: &SharedStore<RedisStore>) -> [u64; 3] {
    let stats = shared.stats();
    [stats.units_lent, stats.units_returned, stats.units_unused]
}

/// Would catch: an explanation that overlooks leased units, units that the store does not know yet, or that a lease has
/// ended.
#[tokio::test]
async fn what_is_inspected_decides_like_the_request_under_leases_and_local_sync() {
    let server = TestRedis::start();
    let store = connected(&server).await;
    let shared = SharedStore::start_without_passing_time(vec![store], 10_000, TimeSource::Server);
    let mut random = SplitMix64::seeded(12);
    // By old and new numbers, as after a change of rules or of an override.
    let numbers = |burst: u64| {
        let of = |(number, kind): (usize, &Consistency)| {
            let limit = Limit::per_day(50).burst(burst).name(format!("limit-{number}"));
            (limit.build().unwrap(), *kind)
        };
        KINDS.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    let versions = [numbers(700), numbers(300)];
    let (mut now, mut counts) = (NOW, [0_usize; 9]);
    for step in 0..4_000 {
        if random.one_in(50) {
            now = now.after(Wait::from_micros(random.below(1_500_000)));
        }
        // A key that goes on is busy, and exhausted in the end.
        let keys = [format!("key-{}", step / 900), format!("other-{}", step / 1_700)];
        let version = &versions[(step / 130) % 2];
        let (first, several) = (*random.pick(&[0, 1, 1, 1, 2]), *random.pick(&[1, 1, 1, 2, 3]));
        let checks: Vec<Check<'_>> = (0..several)
            .map(|number: usize| {
                let (limit, consistency) = &version[(first + number) % version.len()];
                let terms = Terms { consistency: *consistency, ..Terms::default() };
                let key = &keys[usize::from(random.one_in(3))];
                let check = Check::new(limit, key.as_str()).terms(terms);
                let check = check.cost(*random.pick(&[1, 1, 1, 2, 7]));
                if random.one_in(6) { check.shadow() } else { check }
            })
            .collect();
        shared.settle().await;
        shared.observe_time(now);
        let before = lending(&shared);
        let Ok(inspected) = shared.inspect(&checks, now.into()).await;
        let inspected = inspected.expect("the store answers");
        let (mut told, mut got) = ([Outcome::default(); 3], [Outcome::default(); 3]);
        let explained = inspected.decide(&checks, now, &mut told[..several]);
        let Ok(decision) = shared.decide_each(&checks, now.into(), &mut got[..several]).await;
        if told != got {
            shared.settle().await;
            if lending(&shared) != before {
                continue;
            }
        }
        assert_eq!(told, got, "step {step}: {checks:#?}");
        assert_eq!(explained.retry_after(), decision.retry_after(), "step {step}");
        assert_eq!(explained.decided_by(), decision.decided_by(), "step {step}");
        got[..several].iter().for_each(|one| counts[one.decided_by as usize] += 1);
    }
    let count = |decided_by: DecidedBy| counts[decided_by as usize];
    let kinds = [DecidedBy::Memory, DecidedBy::Redis, DecidedBy::RefusalCache];
    // A lease lasts for a second of the real clock, so their number differs from run to run.
    let is_covered = kinds.into_iter().all(|one| count(one) > 50) && count(DecidedBy::Lease) > 0;
    assert!(is_covered, "{counts:?}");
    println!("decided by memory, redis, lease and refusal cache: {counts:?}");
}
