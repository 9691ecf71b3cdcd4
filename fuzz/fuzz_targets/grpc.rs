//! `cargo xtask fuzz grpc`: feeds random bytes to `bodies::server::grpc`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::grpc(bytes));
