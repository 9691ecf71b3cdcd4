//! 1,000 requests an hour for each user, by the estimate of a sliding window, with the headers that tell a client where it stands.
//!
//! ```text
//! cargo run -p tollgate --example api_per_user
//! ```

use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
use tollgate::{Limit, Limiter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::with_capacity(1_000_000);
    let limit = Limit::per_hour(1_000).name("api").build()?;
    let name = PolicyName::of(&limit);

    for (user, cost) in [("anna", 1), ("anna", 999), ("anna", 1), ("ben", 1)] {
        let decision = limiter.take(&limit, user, cost);
        let policies = [Policy::alone(&name, &limit, &decision)];
        let reply = RateLimitReply::new(&decision, &policies);
        println!("{user}: {}", if decision.allowed() { "200 OK" } else { "429 Too Many Requests" });
        for (header, value) in reply.headers(&Dialect::DEFAULT) {
            println!("  {header}: {value}");
        }
        if let Some(problem) = reply.problem() {
            println!("  {problem}");
        }
    }
    Ok(())
}
