//! `cargo xtask fuzz rules_file`: feeds random bytes to `bodies::rules::rules_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::rules::rules_file(bytes));
