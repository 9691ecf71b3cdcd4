//! Stand-in until the seam lands.
use std::sync::Arc;
/// What changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// New names.
    pub added: Vec<Arc<str>>,
    /// Names that are gone.
    pub removed: Vec<Arc<str>>,
    /// Changed.
    pub changed: Vec<Arc<str>>,
    /// Fresh.
    pub fresh: Vec<Arc<str>>,
    /// Unchanged.
    pub unchanged: usize,
    /// Settings.
    pub settings: bool,
}
