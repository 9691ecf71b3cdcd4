//! Lua scripts of limiters in Redis, for comparison with Tollgate.

/// The limiter that most people write: a token bucket in a hash.
pub const TOKEN_BUCKET: &str = include_str!("scripts/token_bucket.lua");

/// The algorithm of redis-cell, for a Redis without modules.
pub const GCRA: &str = include_str!("scripts/gcra.lua");
