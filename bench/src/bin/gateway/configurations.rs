//! The configurations of nginx, HAProxy and Envoy: idle connections to the upstream kept, no access log.
//!
//! Each counts every request by the client's address (Envoy's local limit counts all clients together) and never
//! refuses one, except on `/tight`, which allows one request and then refuses.

pub(crate) const NGINX: &str = include_str!("nginx.conf");
pub(crate) const HAPROXY: &str = include_str!("haproxy.cfg");
pub(crate) const ENVOY: &str = include_str!("envoy.yaml");
