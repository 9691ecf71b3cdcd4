//! One request as the script reads it: owned, so that it can wait in line and travel with others.

/// One request to the script, all of whose keys are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The slot of its keys: requests of one slot can share a call of the script.
    pub(crate) slot: u16,
    /// Full names of keys. Bound: two for each limit of a decision.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Everything else, as `script.rs` writes it and `lua/decide.lua` reads it.
    pub(crate) body: Vec<Vec<u8>>,
    /// The asker's clock, if that decides; calls of different instants never share one.
    pub(crate) now: Option<u64>,
}
