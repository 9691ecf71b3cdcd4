//! `cargo xtask fuzz paths`: feeds random bytes to `bodies::rules::paths`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::rules::paths(bytes));
