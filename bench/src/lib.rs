//! Shared parts of the measuring programs. The programs are in `src/bin`:
//!
//! | program | shows |
//! |---|---|
//! | `library` | nanoseconds per check and bytes per key, next to governor and to a bare table |
//! | `log-cost` | the cost of an exact log as N grows |
//! | `errors` | the error of the sliding window counter against the exact log |
//! | `probabilistic` | the error of limits that several servers enforce without a shared store |
//! | `rules` | the cost of a rules file as it grows: compiling, deciding |
//! | `http` | requests per second and processor time per request, next to bare hyper and to nginx |
//! | `gateway` | the gateway's cost per request, added latency and memory, next to nginx, HAProxy, Envoy and a bare forwarder |
//! | `fairness` | the shares that callers get of one limit, through Tollgate, nginx and Envoy |
//! | `adaptive` | the adaptive concurrency controller in front of modelled upstreams, beside fixed bounds and other controllers |
//! | `instructions` | instructions per decision on every way in, counted by callgrind |
//! | `pgo-training` | nothing: it sends mixed traffic to programs that are built with profiles |
//! | `redis` | decisions through Redis, next to one EVALSHA for each request |
//! | `doors` | the Redis protocol, gRPC and the tower layer, next to Redis, tonic and a bare route |
//! | `bare-hyper`, `bare-resp`, `tonic-echo`, `axum-route`, `bare-forwarder` | nothing by themselves: `http`, `doors` and `gateway` start and measure them as floors |
//! | `flood` | memory and fairness when a flood of new keys hits a full table |

pub mod address;
pub mod envoy;
pub mod floors;
pub mod generator;
pub mod keys;
pub mod machine;
pub mod options;
pub mod peer_server;
pub mod process;
pub mod proxies;
pub mod random;
pub mod reply;
pub mod rounds;
pub mod scripts;
pub mod stopwatch;
pub mod table;
