//! The upstreams' clock: milliseconds since its first use, for ejections and budgets.

use std::sync::OnceLock;

use tokio::time::Instant;
use tollgate::{Clock, SystemClock};

/// The time now.
pub(super) fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = Instant::now();
    let since = now.saturating_duration_since(*START.get_or_init(|| now));
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The Unix time now in milliseconds, for people.
pub(super) fn unix_ms() -> u64 {
    SystemClock.now().as_u64() / 1_000
}
