//! Five logins a minute for each address, exactly, and a block for whoever does not stop.
//!
//! ```text
//! cargo run -p tollgate --example login
//! ```

use std::time::Duration;

use tollgate::{Algorithm, Limit, Limiter, Refusal};

fn main() -> Result<(), tollgate::LimitError> {
    let limiter = Limiter::with_capacity(100_000);
    // A log: never more than five in any sixty seconds, no burst at a window's edge.
    let attempts =
        Limit::per_minute(5).algorithm(Algorithm::SlidingWindowLog).name("login").build()?;
    // Ten refusals within a minute earn a quarter of an hour.
    let refusals =
        Limit::per_minute(10).algorithm(Algorithm::SlidingWindowLog).name("refusals").build()?;

    let address = "192.0.2.7";
    for attempt in 1..=20 {
        let decision = limiter.check(&attempts, address);
        match decision.refusal() {
            None => println!("attempt {attempt}: check the password"),
            Some(Refusal::Blocked) => {
                println!("attempt {attempt}: blocked, {}", decision.retry_after())
            }
            Some(_) => {
                println!("attempt {attempt}: refused, retry in {}", decision.retry_after());
                if !limiter.check(&refusals, address).allowed() {
                    limiter.block(address, Duration::from_secs(15 * 60));
                }
            }
        }
    }
    Ok(())
}
