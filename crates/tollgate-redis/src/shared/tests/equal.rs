//! Random requests through memory and through `Shared` on a real server, at the same injected times: every
//! answer is the same, whoever gives it.
//!
//! The server goes by the times that it is told, as if they were its own: so the refusal cache is on. Not
//! in here is `count_denied`, whose refusals are charged later, and the waits of which differ meanwhile.

use testkit::random::Random;
use testkit::redis::Server;
use tollgate::Algorithm;

use super::*;
use crate::{Options, RedisStore, StoreUrl};

const STEPS: usize = 6_000;
const KEYS: [&str; 2] = ["ada", "bob"];

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

async fn connected(server: &Server) -> RedisStore {
    let timeout = Duration::from_secs(20);
    let options = Options { time: TimeOf::Caller, timeout, ..Options::default() };
    let store = RedisStore::at(&StoreUrl::parse(&server.url()).unwrap(), &options);
    let deadline = Instant::now() + Duration::from_secs(10);
    let limit = limit("1/second");
    while store.balance(&limit, "connected?".into(), NOW).await.is_err() {
        assert!(Instant::now() < deadline, "no connection");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    store
}

/// What one limit is asked, at most once in a request: checks of one state are another test's.
fn check<'a>(limit: &'a Limit, random: &mut Random) -> Check<'a> {
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
    if random.one_in(12) { check.shadow() } else { check }
}

/// What an answer says beside who made it.
fn said(outcomes: &[Outcome], decision: &Decision) -> (Vec<Outcome>, Vec<bool>, usize, Wait) {
    let by_nobody =
        |one: &Outcome| Outcome { decided_by: DecidedBy::Memory, unreported: 0, ..*one };
    let violates = (0..outcomes.len()).map(|index| decision.violates(index)).collect();
    let each = outcomes.iter().map(by_nobody).collect();
    (each, violates, decision.binding(), decision.retry_after())
}

#[tokio::test]
async fn what_is_remembered_of_refusals_changes_no_answer() {
    let server = Server::start();
    let store = connected(&server).await;
    let shared = Shared::start_with(vec![store], 10_000, TimeOf::Server, Pace::standing());
    let (memory, limits) = (MemoryStore::new(10_000), limits());
    let (mut random, mut now, mut receipts) = (Random::seeded(5), NOW, Vec::new());
    for step in 0..STEPS {
        now = now.after(Wait::from_micros(match random.below(8) {
            0 => random.below(2_000_000),
            1 | 2 => random.below(200_000),
            _ => 0,
        }));
        let several = *random.pick(&[1, 1, 2, 3, 5]);
        let first = random.below(limits.len() as u64) as usize;
        let asked = limits.iter().cycle().skip(first).take(several);
        let checks: Vec<Check<'_>> = asked.map(|limit| check(limit, &mut random)).collect();
        if random.one_in(10) {
            let (check, here, there) = match receipts.pop() {
                Some((check, here, there)) if !random.one_in(3) => (check, Some(here), Some(there)),
                _ => (checks[0], None, None),
            };
            memory.refund(check.limit(), check.key(), here, check.units(), now);
            let Ok(()) = shared.refund(&check, there, now).await;
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
        let charged = (0..several).find(|index| here[*index].charged > 0 && receipts.len() < 8);
        if let Some(index) = charged {
            receipts.push((checks[index], here[index].receipt(), there[index].receipt()));
        }
    }
    let stats = shared.stats();
    assert!(stats.refusals_cached > STEPS as u64 / 20, "{stats:?}");
    assert_eq!((stats.degraded_local, stats.refunds_lost), (0, 0));
}
