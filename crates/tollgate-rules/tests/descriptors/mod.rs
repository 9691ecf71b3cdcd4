//! What descriptors get: tables of requests, and codes and remaining units as Envoy sees them.

mod call_order;
mod deciding;
mod explaining;
mod gate;
mod import;
mod matching;
mod reference;
mod stated;
