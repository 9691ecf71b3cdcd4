//! The data plane: where requests are decided. Each file turns one kind of question into facts and
//! the answer into a reply; what is decided is the gatekeeper's business.

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
