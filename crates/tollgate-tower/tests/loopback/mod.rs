//! Real servers and real requests over loopback: the layer in axum, tonic and hyper, and the examples.

mod axum_routes;
mod client;
mod hyper_service;
#[cfg(feature = "rules")]
mod streams;
mod tonic_calls;

#[path = "../../examples/axum.rs"]
#[allow(dead_code)]
mod axum_example;
#[path = "../../examples/tonic.rs"]
#[allow(dead_code)]
mod tonic_example;
