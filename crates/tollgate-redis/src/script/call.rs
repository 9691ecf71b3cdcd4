//! One request as the script reads it: owned, so that it can wait in line and travel with others.

use std::sync::Arc;

/// One request to the script, all of whose keys are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct ScriptCall {
    /// The slot of its keys: requests of one slot can share a call of the script.
    pub(crate) slot: u16,
    /// Full names of keys. Bound: one for each limit of a decision.
    pub(crate) keys: Vec<Vec<u8>>,
    /// The limits that the script needs, as `script.rs` describes them: those of several requests
    /// travel once. Bound: one for each key.
    pub(crate) limits: Vec<Arc<[u8]>>,
    /// The request; `None` is one unit of the one limit.
    pub(crate) body: Option<ScriptBody>,
    /// The caller's clock, if that decides; calls of different instants never share a command.
    pub(crate) now: Option<u64>,
}

/// The request in two parts: between them come the numbers that the limits have in a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptBody {
    pub(crate) head: Vec<u8>,
    pub(crate) tail: Vec<u8>,
}
