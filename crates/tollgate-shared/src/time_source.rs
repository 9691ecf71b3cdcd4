//! The clock that decides.

/// The clock that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The store's own clock, so differences between the clocks of instances do not matter.
    #[default]
    Server,
    /// The caller's clock, for simulations and tests. Values written by it expire within the hour.
    Caller,
}
