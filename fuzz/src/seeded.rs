//! Runs a body on seeded random bytes, and on every input that once failed.
//!
//! The same inputs at each run. A failure prints the bytes: put them in a file under
//! `fuzz/regressions/TARGET/`, where this finds them, and keep them there.

#[path = "../../crates/tollgate/tests/random/mod.rs"]
pub(crate) mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use random::SplitMix64;

/// Runs a body and prints the bytes with which it failed.
fn run(target: &str, body: fn(&[u8]), bytes: &[u8]) {
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| body(bytes))) {
        eprintln!("{target} fails with {bytes:?}");
        std::panic::resume_unwind(failure);
    }
}

/// Runs a body on `inputs` inputs of fewer than `bytes_max` bytes each.
pub(crate) fn seeded(target: &str, body: fn(&[u8]), inputs: u64, bytes_max: u64) {
    let mut random = SplitMix64::new(0x7011_6A7E);
    for _ in 0..inputs {
        let bytes = random.bytes(bytes_max);
        run(target, body, &bytes);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions").join(target);
    for file in std::fs::read_dir(&folder).into_iter().flatten() {
        let path = file.expect("a readable folder").path();
        run(target, body, &std::fs::read(path).expect("a readable file"));
    }
}
