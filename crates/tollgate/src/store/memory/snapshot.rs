//! placeholder
/// Why a snapshot could not be written or read.
#[derive(Debug)]
pub struct SnapshotError;
