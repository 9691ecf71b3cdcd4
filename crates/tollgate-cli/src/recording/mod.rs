//! The recording of traffic: the requests of the last hour, sampled by caller, so that other rules can be
//! tried on them.
//!
//! A thread that decides packs each request of a recorded caller into a chunk of its own stripe. Full chunks go
//! to one thread, which writes them into a file if it is asked to ([`trace_file`]) and keeps them in a ring ([`ring`]).

mod entry;
mod keeper;
mod recorder;
mod ring;
mod sampling;
mod trace_file;

pub(crate) use entry::RecordedRequest;
pub(crate) use recorder::{MissingRequests, RecorderThread, TrafficRecorder};
pub(crate) use ring::RecordedTraffic;
pub(crate) use sampling::SampleShare;
pub(crate) use trace_file::RECORDED_LINE;
