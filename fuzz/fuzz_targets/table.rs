//! `cargo xtask fuzz table`: feeds random bytes to `bodies::table`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::table(bytes));
