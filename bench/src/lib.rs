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
//! | `bare-hyper` | nothing by itself: the floor that `http` starts and measures |
//! | `flood` | memory and fairness when strangers flood a full table |

pub mod keys;
pub mod machine;
pub mod options;
pub mod random;
pub mod stopwatch;
pub mod table;
