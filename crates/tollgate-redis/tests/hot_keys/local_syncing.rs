//! Local sync: too much by what the others admit within an interval, and no more.

use super::*;

const INTERVAL_MS: u64 = 100;
const SYNCED: Consistency = Consistency::LocalSync { interval_ms: INTERVAL_MS as u32 };

/// The most that one instance admitted within a while.
fn most_within(saw: &HotKeyCallLog, while_us: u64) -> u64 {
    let mut at: Vec<u64> =
        saw.calls.iter().filter(|call| call.admitted).map(|call| call.answered_us).collect();
    at.sort_unstable();
    let until = |from: u64| at.partition_point(|one| *one < from + while_us);
    (0..at.len()).map(|first| (until(at[first]) - first) as u64).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_exceed_by_one_interval_of_the_others() {
    let server = TestRedis::start();
    let all = instances(&server, 3).await;
    let limit = Limit::per_day(20_000).burst(20_000).build().unwrap();
    let before: u64 = all.iter().map(calls_of).sum();
    let saw = hammer(&all, &limit, SYNCED, 2, 3_000).await;
    let calls = all.iter().map(calls_of).sum::<u64>() - before;
    for shared in &all {
        shared.drain().await;
    }
    let (got, asked) = (admitted(&saw), saw.iter().map(|saw| saw.calls.len() as u64).sum::<u64>());
    assert!(asked > got + 1_000, "more was asked for than there is: {asked} for {got}");
    // The look at what is due, and the way there and back on a busy machine.
    let known_after_us = (INTERVAL_MS + 10 + 50) * 1_000;
    let most: Vec<u64> = saw.iter().map(|saw| most_within(saw, known_after_us)).collect();
    let others = most.iter().sum::<u64>() - most.iter().min().unwrap();
    assert!((20_000..=20_000 + others).contains(&got), "{got} admitted, {others} allowed above");
    assert!(calls < 1_000, "{calls} calls for {asked} decisions");
    let Ok(left) = all[0].balance(&Check::new(&limit, "hot"), now()).await;
    assert!((got - 5..=got).contains(&((20_000 - left) as u64)), "every unit was told once");
    every_key_expires(&server);
}
