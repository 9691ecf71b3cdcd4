//! Waiting in order: fair queues and evenly spaced departures, for programs that delay work
//! instead of refusing it; and a controller that finds how much work may go on at once.
//!
//! Everything here is pure: no clock, no runtime, no lock. Time is an argument, and a scheduler
//! says who is next; the program that owns it sleeps and wakes.

pub mod adaptive_concurrency;

pub mod departure_line;

pub mod fair_queue;

mod index_list;
mod slab;

pub use adaptive_concurrency::AdaptiveConcurrency;
pub use departure_line::{DepartureLine, JoinedLine, LineFull, LineTicket, LineTimes};
pub use fair_queue::{
    FairQueue, FairTicket, FlowKey, QueueBound, QueueBounds, QueueFull, QueuedCost, QueuedItem,
    WaiterAhead, Weight,
};
