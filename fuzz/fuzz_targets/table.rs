//! `cargo xtask fuzz table`: feeds random bytes to `bodies::core::table`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::core::table(bytes));
