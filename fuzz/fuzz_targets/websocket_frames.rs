//! `cargo xtask fuzz websocket_frames`: feeds random bytes to `bodies::server::websocket_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::server::websocket_frames(bytes));
