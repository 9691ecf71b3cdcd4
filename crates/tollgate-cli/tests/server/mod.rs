//! End-to-end tests: the real program on free ports, over real sockets.
//!
//! `harness` starts and stops it and has an HTTP client; `fake_listener` replaces it in tests of commands. The other modules
//! are named after the behaviour that they test.

mod access;
mod admin;
mod alerts;
mod alpn;
mod callers;
mod candidate;
mod check;
mod cli_ask;
mod cli_keys;
mod connections;
mod credentials;
#[cfg(target_os = "linux")]
mod descriptors;
mod early_answers;
mod envoy;
mod envoy_client;
mod envoy_hostile;
mod envoy_json;
mod event_reader;
mod events;
mod explain;
pub(crate) mod exposition;
mod fake_listener;
mod fast_lane;
mod forward_auth;
mod history;
mod host;
mod http2;
mod identity;
mod lifecycle;
mod logs;
mod metrics;
mod missing_facts;
mod reload;
mod reload_load;
mod reloads;
mod reserve;
mod rule_pages;
mod rules;
mod scale;
mod settings;
mod shared;
mod shared_control;
mod shared_limits;
mod unix_socket;
mod use_cases;
