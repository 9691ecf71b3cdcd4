//! How much the replies of all clients together may take up.
//!
//! A client that sends many commands before it reads the first reply is common: clients send whole
//! pipelines. Its replies have to wait somewhere, or both sides would wait for each other. So a
//! connection may keep more than its own share, as long as all of them together stay below a bound.

use crate::listeners::allowance::AllowanceLimits;

pub(super) use crate::listeners::allowance::{Allowance, SharedAllowance};

/// What every connection may keep.
pub(super) const OWN_BYTES: usize = 64 << 10;

/// Of replies that wait to be read.
pub(super) const REPLY_ALLOWANCE_LIMITS: AllowanceLimits = AllowanceLimits {
    own_bytes: OWN_BYTES,
    each_bytes_max: 16 << 20,
    all_bytes_max: 64 << 20,
    step_bytes: 256 << 10,
};
