//! `cargo xtask fuzz algorithms`: feeds random bytes to `bodies::algorithms`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::algorithms(bytes));
