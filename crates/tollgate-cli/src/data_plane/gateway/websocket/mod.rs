//! WebSockets in a tunnel: reads the frames of both directions and enforces the limits of the rules.
//!
//! ```text
//! frame.rs           finds frames in a stream, in pieces of any size
//! frame_budget.rs    decides about the frames of one direction
//! close_notice.rs    the end by the gateway: code, reason, Close frame
//! tunnel_metrics.rs  counts of all WebSockets
//! ```

pub(crate) mod close_notice;
pub(crate) mod frame;
pub(crate) mod frame_budget;
pub(crate) mod tunnel_metrics;
