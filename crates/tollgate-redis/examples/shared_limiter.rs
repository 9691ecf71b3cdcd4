//! A limit of 5 requests in 10 seconds that all processes share.
//!
//! Start it in two terminals at once, with a Redis at 127.0.0.1:6379 or at the URL given as its argument:
//! `cargo run -p tollgate-redis --example shared_limiter`

use std::error::Error;
use std::time::Duration;

use tollgate::{DecidedBy, Limit};
use tollgate_redis::{RedisOptions, RedisStore, SharedLimiter, StoreUrl};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let url = StoreUrl::parse(&url)?;
    let limiter = SharedLimiter::start(RedisStore::at(&url, &RedisOptions::default()), 10_000);
    wait_for_connection(&limiter).await;

    let limit = Limit::per(5, Duration::from_secs(10)).build()?;
    for number in 1..=8 {
        let decision = limiter.check(&limit, "user:42").await;
        let decided_by = match decision.decided_by() {
            DecidedBy::Local => "this process alone",
            DecidedBy::RefusalCache => "the refusal cache",
            _ => "Redis",
        };
        match decision.allowed() {
            true => println!("{number}: allowed by {decided_by}, {} left", decision.remaining()),
            false => println!(
                "{number}: refused by {decided_by}, retry in {} ms",
                decision.retry_after().as_micros().unwrap_or(0).div_ceil(1_000)
            ),
        }
    }
    limiter.drain().await;
    Ok(())
}

/// Waits at most a second for a connection. A server would not wait: it would decide alone meanwhile.
async fn wait_for_connection(limiter: &SharedLimiter<RedisStore>) {
    let store = limiter.store().stores().next().expect("the limiter has one store");
    for _ in 0..100 {
        if store.link_stats().is_up() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = store.link_stats();
    match stats.nodes.iter().find_map(|node| node.down.as_ref()) {
        Some(error) => eprintln!("No Redis: {error}. This process decides alone."),
        None => eprintln!("No Redis within a second. This process decides alone."),
    }
}
