//! The recording of traffic: the requests of the last hour, sampled by caller, so that other rules can be
//! tried on them.
//!
//! A thread that decides packs each request of a recorded caller into a chunk of its own stripe. Full chunks go
//! to one thread, which keeps them in a ring ([`ring`]).

mod entry;
mod recorder;
mod ring;
mod sampling;

pub(crate) use entry::RecordedRequest;
pub(crate) use recorder::{MissingRequests, RecorderThread, TrafficRecorder};
pub(crate) use ring::RecordedTraffic;
pub(crate) use sampling::SampleShare;
