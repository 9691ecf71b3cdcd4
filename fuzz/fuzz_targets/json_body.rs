//! `cargo xtask fuzz json_body`: feeds random bytes to `bodies::server::json_body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::json_body(bytes));
