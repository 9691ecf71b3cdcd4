//! `cargo xtask fuzz plain_requests`: feeds random bytes to `bodies::server::plain_requests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::plain_requests(bytes));
