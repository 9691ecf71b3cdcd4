//! `cargo xtask fuzz algorithms`: feeds random bytes to `bodies::core::algorithms`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::core::algorithms(bytes));
