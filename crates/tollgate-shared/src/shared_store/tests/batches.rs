//! Batches of many requests.

use super::*;

/// Would catch: a large batch that overloads the store, so that the fallback decides.
#[tokio::test]
async fn a_large_batch_does_not_overload_the_store() {
    let (shared, store) = shared(vec![StandInStore::default()]);
    store.0.answers_late.store(true, Ordering::Release);
    let limit = limit("1/hour burst 20000");
    let checks = vec![Check::new(&limit, "a"); 10_000];
    let mut decisions = Vec::new();
    let Ok(()) = shared.decide_batch(&checks, NOW.into(), &mut decisions).await;
    assert_eq!(shared.stats().degraded_local, 0, "nothing falls back");
    let remaining: Vec<u64> = decisions.iter().map(Decision::remaining).collect();
    assert_eq!(remaining, (10_000..20_000).rev().collect::<Vec<_>>(), "as if in order");
}
