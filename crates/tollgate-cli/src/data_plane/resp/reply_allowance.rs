//! Bound of the unsent replies of all connections.
//!
//! Clients commonly send a whole pipeline before they read the first reply. The replies have to be buffered, or both
//! sides would wait for each other. So a connection may buffer more than its own share, as long as all
//! connections together stay below a bound.

use crate::listeners::allowance::AllowanceLimits;

pub(super) use crate::listeners::allowance::{Allowance, SharedAllowance};

/// Bytes that every connection may buffer.
pub(super) const OWN_BYTES: usize = 64 << 10;

/// Bounds of unsent replies.
pub(super) const REPLY_ALLOWANCE_LIMITS: AllowanceLimits = AllowanceLimits {
    own_bytes: OWN_BYTES,
    each_bytes_max: 16 << 20,
    all_bytes_max: 64 << 20,
    step_bytes: 256 << 10,
};
