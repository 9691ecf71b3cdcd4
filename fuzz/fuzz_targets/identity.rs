//! `cargo xtask fuzz identity`: feeds random bytes to `bodies::rules::identity`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::rules::identity(bytes));
