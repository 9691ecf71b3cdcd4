-- Leaky bucket: see leaky_bucket.rs. As a meter it is the token bucket seen from below, and as a queue
-- it admits the same; the delay is Rust's business.

local leaky_bucket = token_bucket
