//! `cargo xtask fuzz response_body`: feeds random bytes to `bodies::rules::response_body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::rules::response_body(bytes));
