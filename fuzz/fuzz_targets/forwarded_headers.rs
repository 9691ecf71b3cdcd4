//! `cargo xtask fuzz forwarded_headers`: feeds random bytes to `bodies::server::forwarded_headers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::forwarded_headers(bytes));
