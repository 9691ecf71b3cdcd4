//! 100 text messages a day for each account, which a restart does not forget.
//!
//! ```text
//! cargo run -p tollgate --example sms_per_day
//! ```

use tollgate::{Algorithm, Clock, Limit, Limiter, MemoryStore, SystemClock};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("tollgate-example-sms");
    let clock = SystemClock;
    // A fixed window returns the whole quota at midnight UTC: easy to explain to a customer.
    let limit = Limit::per_day(100).algorithm(Algorithm::FixedWindow).name("sms").build()?;

    let before = Limiter::with_capacity(10_000);
    let sent = before.take(&limit, "account:7", 60);
    println!("sent 60, {} left today", sent.remaining());
    before.store().save(&file, clock.now())?;

    // … the process is restarted …
    let (store, restored) = MemoryStore::new(10_000).load(&file, clock.now())?;
    let after = Limiter::new(store, clock);
    println!("restored {} key", restored.keys);
    let refused = after.take(&limit, "account:7", 60);
    println!(
        "60 more: {}, {} left",
        if refused.allowed() { "sent" } else { "refused" },
        refused.remaining()
    );
    std::fs::remove_file(file)?;
    Ok(())
}
