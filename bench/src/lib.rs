//! What the measuring programs share. The programs are in `src/bin`:
//!
//! | program | shows |
//! |---|---|
//! | `library` | nanoseconds per check and bytes per key, next to governor and to a bare table |
//! | `log-cost` | what an exact log costs as N grows |
//! | `errors` | how far the sliding window counter strays from the exact log |
//! | `probabilistic` | what limits cost that several servers keep without a shared store |
//! | `rules` | what a rules file costs as it grows: compiling, deciding |
//! | `http` | requests per second and processor time per request, next to bare hyper and to nginx |
//! | `redis` | decisions through Redis, next to one EVALSHA for each request |
//! | `doors` | the Redis protocol, gRPC and the tower layer, next to Redis, tonic and a bare route |
//! | `bare-hyper`, `bare-resp`, `tonic-echo`, `axum-route` | nothing by themselves: the floors that `http` and `doors` start and measure |
//! | `flood` | memory and fairness when strangers flood a full table |

pub mod envoy;
pub mod generator;
pub mod keys;
pub mod machine;
pub mod options;
pub mod process;
pub mod random;
pub mod rounds;
pub mod scripts;
pub mod stopwatch;
pub mod table;
