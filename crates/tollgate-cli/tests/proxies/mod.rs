//! Real proxies in front of the real server, each with the very files in `examples/`: what clients
//! see when they are let in, when they are refused, and when Tollgate does not answer.
//!
//! `setup` puts the processes together, `scenarios` says what has to hold whichever proxy it is, and
//! the other modules are named after the proxies. `spellings` asks servers how they read paths.

mod caddy;
mod envoy;
mod nginx;
mod routing;
mod scenarios;
mod setup;
pub(crate) mod spellings;
mod traefik;
