//! `cargo xtask fuzz notation`: feeds random bytes to `bodies::notation`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::notation(bytes));
