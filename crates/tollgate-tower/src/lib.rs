//! Rate limits as a [`tower`](tower_service) layer: for axum, tonic, hyper and whatever else speaks `http` types.
//!
//! ```
//! use std::sync::Arc;
//! use tollgate::{Limit, Limiter};
//! use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer};
//!
//! let limiter = Arc::new(Limiter::with_capacity(100_000));
//! let limit = Limit::per_minute(100).burst(20).name("api").build()?;
//! let gate = KeyedGate::new(limiter, [limit])?.key(KeyFrom::client_ip());
//! let layer = RateLimitLayer::new(gate);
//! // axum:  Router::new().route(…).layer(layer)
//! // tonic: Server::builder().layer(layer).add_service(…)
//! # drop(layer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! * **One state.** Clones of the layer, and of the services it makes, share their limits.
//! * **It refuses, it does not push back.** `poll_ready` is the inner service's. Who is over a limit is
//!   answered at once, and the others never wait behind them.
//! * **A refusal is free.** It charges nothing and never reaches the inner service: 429 with a problem
//!   document, or `RESOURCE_EXHAUSTED` where the client speaks gRPC.
//! * **Bounded.** What callers can make it remember is the limiter's table, allocated once.
//!
//! # What it needs from you
//!
//! * **The peer's address**, which each framework has elsewhere: [`RateLimitLayer::peer`].
//! * **A key that clients cannot invent**: each new value of one that nobody checks is a new caller with a
//!   fresh limit. Limit addresses as well, in a layer around, where it cannot be helped.
//! * **The right place**: on the outermost router, inside of CORS; see [`RateLimitLayer`].
//!
//! # Reading order
//!
//! [`layer`] has every option; [`gate`] is what it asks: [`keyed_gate`] limits of your own, or a whole
//! gatekeeper with rules from a file (the feature `rules`, in `rules`). [`key`] says whose units are
//! counted and [`client_ip`] who is calling behind proxies. [`decision`] is what handlers see,
//! [`refusal`] what clients do, [`charge`] what a response changes; [`service`], [`future`] and
//! [`body`] are the plumbing, and [`warning`] tells of misuse.

pub mod layer;

pub mod gate;

pub mod keyed_gate;

#[cfg(feature = "rules")]
pub mod rules;

pub mod key;

pub mod client_ip;

pub mod decision;

pub mod refusal;

pub mod charge;

pub mod service;

pub mod future;

pub mod body;

pub mod warning;

mod grpc;
mod header_text;

pub use body::GatedBody;
pub use client_ip::TrustedProxies;
pub use decision::GateDecision;
pub use gate::{Gate, GateAnswer, GateRequest};
pub use key::KeyFrom;
pub use keyed_gate::{KeyedGate, WithoutKey};
pub use layer::{PeerAddr, RateLimitLayer};
pub use refusal::RefusedRequest;
pub use service::RateLimit;
pub use warning::Warning;
