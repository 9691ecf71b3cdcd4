//! `cargo xtask fuzz resp_commands`: feeds random bytes to `bodies::server::resp_commands`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::resp_commands(bytes));
