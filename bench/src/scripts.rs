//! Limiters in Lua, for Redis to run: what Tollgate is measured next to.

/// What most people write: a token bucket in a hash.
pub const TOKEN_BUCKET: &str = include_str!("scripts/token_bucket.lua");

/// What redis-cell does, for a Redis that has no modules.
pub const GCRA: &str = include_str!("scripts/gcra.lua");
