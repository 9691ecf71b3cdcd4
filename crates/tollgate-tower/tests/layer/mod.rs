//! The layer around services in this process, on a clock that tests move: every option, every response.

#[cfg(feature = "rules")]
mod adaptive;
#[cfg(feature = "rules")]
mod bottlenecks;
#[cfg(feature = "rules")]
mod changed_pace;
mod charges;
mod exempt;
#[cfg(feature = "rules")]
mod fair;
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
mod rooms;
#[cfg(feature = "rules")]
mod rules;
#[cfg(feature = "rules")]
mod shaping;
mod shared;
mod virtual_time;
#[cfg(feature = "rules")]
mod waits_told;
mod warnings;
