//! Every worked case, answered by the real scripts on a real server.

use crate::executor::{CombinedAnswer, Executor, outcome_of};
use crate::shared;
use crate::worked_cases::{ALL_LINES, CaseTally, PollDensity, run, run_documents};
use testkit::redis::TestRedis;
use tokio::runtime::Runtime;
use tollgate::{Act, Check, Key, Limit, Micros, Outcome};
use tollgate_redis::{RedisOptions, RedisStore, TimeSource};

/// A store and the runtime it lives on, asked one question after the other.
struct RedisExecutor {
    runtime: Runtime,
    store: RedisStore,
    _server: TestRedis,
}

impl RedisExecutor {
    fn new() -> RedisExecutor {
        let server = TestRedis::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = RedisOptions { time: TimeSource::Caller, ..RedisOptions::default() };
        let store = runtime.block_on(shared::store_at(&server, options));
        RedisExecutor { runtime, store, _server: server }
    }

    fn decide(&self, check: Check<'_>, now: Micros) -> Outcome {
        let asked = async {
            self.store.decide_each(&[check], now, &mut [Outcome::default()]).await.unwrap()
        };
        outcome_of(&self.runtime.block_on(asked))
    }

    fn balance(&self, key: &str, limit: &Limit, now: Micros) -> i64 {
        self.runtime.block_on(self.store.balance(limit, Key::from(key), now)).unwrap()
    }
}

impl Executor for RedisExecutor {
    fn take(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        self.decide(Check::new(limit, key).cost(cost), now)
    }

    fn peek(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        self.decide(Check::new(limit, key).cost(cost).act(Act::Peek), now)
    }

    fn force(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        self.decide(Check::new(limit, key).cost(units).act(Act::Force), now);
        self.balance(key, limit, now)
    }

    fn refund(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        let refund = self.store.refund(limit, Key::from(key), None, units, now);
        self.runtime.block_on(refund).unwrap();
        self.balance(key, limit, now)
    }

    fn take_all(&mut self, key: &str, limits: &[Limit], cost: u64, now: Micros) -> CombinedAnswer {
        let checks: Vec<Check<'_>> =
            limits.iter().map(|limit| Check::new(limit, key).cost(cost)).collect();
        let mut outcomes = vec![Outcome::default(); limits.len()];
        let decided = self.store.decide_each(&checks, now, &mut outcomes);
        let decision = self.runtime.block_on(decided).unwrap();
        CombinedAnswer {
            allowed: decision.allowed(),
            remaining: outcomes.iter().map(|outcome| outcome.remaining).collect(),
            retry_after: decision.retry_after(),
            violated: (0..limits.len()).filter(|&index| decision.violates(index)).collect(),
        }
    }
}

#[test]
fn redis_answers_every_vector() {
    // The longest line polls for what is admitted ten thousand times.
    let fewer = CaseTally { soaks: 3, admitted: ALL_LINES.admitted - 9_999, ..ALL_LINES };
    assert_eq!(run(&mut RedisExecutor::new(), PollDensity::Few), fewer);
}

#[test]
fn redis_answers_the_documents() {
    assert_eq!(run_documents(&mut RedisExecutor::new()), (44, 321));
}
