//! What descriptors get: tables of requests, and codes and remaining units as Envoy sees them.

mod deciding;
mod gate;
mod import;
mod later;
mod matching;
mod reference;
mod stated;
