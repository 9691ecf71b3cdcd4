//! The server from outside: the real program, on ports of its own, over real sockets.
//!
//! `harness` starts and stops it and speaks HTTP; the other modules are named after what they show.

mod access;
mod admin;
mod check;
mod connections;
mod exposition;
mod forward_auth;
mod harness;
mod http2;
mod lifecycle;
mod logs;
mod metrics;
mod reserve;
mod rules;
mod settings;
mod use_cases;
