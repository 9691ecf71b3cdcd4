//! Stores: what answers a list of checks atomically. All are charged or none is.

pub mod memory;

pub use memory::MemoryStore;
