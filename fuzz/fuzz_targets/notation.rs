//! `cargo xtask fuzz notation`: feeds random bytes to `bodies::core::notation`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::core::notation(bytes));
