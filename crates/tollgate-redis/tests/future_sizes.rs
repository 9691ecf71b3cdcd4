//! The futures of decisions are small: callers move them with their own.

use std::mem::size_of_val;

use tollgate::{Check, Limit, Micros, Outcome, RequestList, Store};
use tollgate_redis::{RedisOptions, RedisStore, SharedStore, StoreUrl, TimeSource};
use tollgate_shared::remote_store::{AnswerStates, CallTiming, RemoteStore};

/// The most bytes of a future.
const FUTURE_BYTES_MAX: usize = 2_048;

#[tokio::test]
async fn futures_of_decisions_are_small() {
    let url = StoreUrl::parse("redis://127.0.0.1:1").expect("an address");
    let store = RedisStore::at(&url, &RedisOptions::default());
    let shared = SharedStore::start(vec![store.clone()], 10, TimeSource::Server);
    let limit = Limit::per_second(1).build().expect("a limit");
    let (checks, ends) = ([Check::new(&limit, "a")], [1]);
    let (now, deadline) = (Micros::from_secs(1), tokio::time::Instant::now());
    let (outcomes, mut decisions) = (&mut [Outcome::default()], Vec::new());
    let (when, mut seen) = (CallTiming { now, deadline }, AnswerStates::default());
    let check_size = |future: &str, bytes: usize| {
        println!("{future}: {bytes} bytes");
        assert!(bytes <= FUTURE_BYTES_MAX, "{future}: {bytes} bytes");
    };
    let decided = shared.decide_each(&checks, now.into(), outcomes);
    check_size("SharedStore::decide_each", size_of_val(&decided));
    drop(decided);
    let list = RequestList::new(&checks, &ends);
    let decided = shared.decide_requests(list, now.into(), outcomes, &mut decisions);
    check_size("SharedStore::decide_requests", size_of_val(&decided));
    drop(decided);
    let decided = store.decide_each(&checks, now, outcomes);
    check_size("RedisStore::decide_each", size_of_val(&decided));
    drop(decided);
    let decided = store.decide_with_states(&checks, when, outcomes, &mut seen);
    check_size("RedisStore::decide_with_states", size_of_val(&decided));
}
