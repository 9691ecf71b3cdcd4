//! The data plane: the listeners that decide requests. Each file turns one kind of request into facts and
//! the gatekeeper's answer into a reply.

pub(crate) mod check_service;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod json;
pub(crate) mod resp;

mod answer;
mod batch;
mod check;
mod facts;
mod forward_auth;
mod forwarded;
mod reserve;
