//! One limiter for the whole process, in a `static`, with an observer that counts.
//!
//! ```text
//! cargo run -p tollgate --example whole_process
//! ```

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Check, Decision, Limit, Limiter};

static REFUSED: AtomicU64 = AtomicU64::new(0);

static LIMITER: LazyLock<Limiter> = LazyLock::new(|| {
    Limiter::with_capacity(1_000_000).observed_by(|_: &[Check<'_>], decision: &Decision| {
        REFUSED.fetch_add(u64::from(!decision.allowed()), Ordering::Relaxed);
    })
});

static SEARCHES: LazyLock<Limit> = LazyLock::new(|| "100/minute".parse().expect("a valid limit"));

fn main() {
    // Ten threads ask 200 times in all; exactly 100 pass.
    let admitted = std::thread::scope(|scope| {
        let asking = || (0..20).filter(|_| LIMITER.check(&SEARCHES, "anna").allowed()).count();
        let threads: Vec<_> = (0..10).map(|_| scope.spawn(asking)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<usize>()
    });
    println!("admitted {admitted}, refused {}", REFUSED.load(Ordering::Relaxed));
}
