//! Rate limits as a [`tower`](tower_service) layer, for axum, tonic, hyper and every other service with `http` types.
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
//! * **No backpressure.** `poll_ready` is the inner service's. A caller over its limit is refused at once, and
//!   other callers never wait behind it.
//! * **A refusal is free.** It charges nothing and never reaches the inner service: 429 with a problem
//!   document, or `RESOURCE_EXHAUSTED` for gRPC clients.
//! * **Bounded memory.** All state about callers is in the limiter's table, which is allocated once.
//!
//! # What it needs from you
//!
//! * **The peer's address**, which each framework keeps in a different place: [`RateLimitLayer::peer`].
//! * **A key that clients cannot invent**: each new value of an unverified key is a new caller with a fresh
//!   limit. If the key cannot be verified, limit addresses as well, in a layer around this one.
//! * **The right position**: on the outermost router, inside the CORS layer; see [`RateLimitLayer`].
//!
//! # Reading order
//!
//! [`layer`] has every option. [`gate`] is the interface to a source of decisions: [`keyed_gate`] with limits of
//! your own, or a whole gatekeeper with rules from a file (the feature `rules`, in `rules`). [`key`] builds the
//! key of a request, and [`client_ip`] finds the client behind proxies. [`decision`] is for handlers,
//! [`refusal`] makes the responses to refused requests, [`charge`] settles a cost by the response, and [`request_body`]
//! reads requests whose cost depends on their body. [`service`], [`future`], [`body`] and [`settlement`] are the
//! plumbing, [`inner_fields`] treats header fields of the inner service, and [`warning`] reports misuse.

#![cfg_attr(docsrs, feature(doc_cfg))]

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

pub mod inner_fields;

pub mod request_body;

pub mod settlement;

pub mod service;

pub mod future;

pub mod body;
pub mod body_host;
mod body_pace;
mod replayed_body;

pub mod warning;

mod grpc;
mod header_text;
mod patience;

pub use body::GatedBody;
pub use body_host::{BodyReadFailure, RequestBodyHost, RequestBodyMemory, SendMark};
pub use charge::{ChargeStands, UnsentRequest};
pub use client_ip::TrustedProxies;
pub use decision::GateDecision;
pub use gate::{Gate, GateAnswer, GateRequest};
pub use inner_fields::InnerLimitFields;
pub use key::KeyFrom;
pub use keyed_gate::{KeyedGate, WithoutKey};
pub use layer::{CarriesBody, PeerAddr, RateLimitLayer};
pub use refusal::RefusedRequest;
pub use replayed_body::ReplayedBody;
pub use request_body::RequestBodyLayer;
#[cfg(feature = "rules")]
pub use rules::{IdentifiedCaller, WebSocketRules};
pub use service::RateLimit;
pub use settlement::AdmissionGuard;
pub use warning::Warning;

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TollgateTowerReadme;
