//! Ten uploads an hour for each user; an upload that fails is given back, and a large one is paid
//! for by its true size.
//!
//! ```text
//! cargo run -p tollgate --example uploads
//! ```

use std::time::Duration;

use tollgate::{Limit, Limiter};

fn main() -> Result<(), tollgate::LimitError> {
    let limiter = Limiter::with_capacity(100_000);
    let uploads = Limit::per_hour(10).burst(10).name("uploads").build()?;
    let bytes = Limit::per_hour(1 << 30).burst(1 << 30).name("bytes").build()?;

    // Fails halfway: the permit is dropped and the upload does not count.
    let permit = limiter.reserve(&uploads, "anna", 1, Duration::from_secs(600));
    drop(permit);

    // Succeeds: the bytes were an estimate, the commit settles them.
    let Ok(slot) = limiter.reserve(&uploads, "anna", 1, Duration::from_secs(600)) else {
        return Ok(());
    };
    let Ok(estimate) = limiter.reserve(&bytes, "anna", 1 << 20, Duration::from_secs(600)) else {
        return Ok(());
    };
    estimate.commit(3 << 20);
    slot.commit(1);

    println!("uploads left: {}", limiter.peek(&uploads, "anna", 0).remaining());
    println!("bytes left:   {}", limiter.peek(&bytes, "anna", 0).remaining());
    Ok(())
}
