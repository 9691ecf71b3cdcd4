//! The layer around services in this process, on a clock that tests move: every option, every response.

mod charges;
mod exempt;
mod harness;
mod keys;
#[cfg(feature = "rules")]
mod metered_bodies;
mod nested;
#[cfg(feature = "rules")]
mod paced_bodies;
mod queues;
mod refusals;
#[cfg(feature = "rules")]
mod rules;
mod shared;
mod warnings;
