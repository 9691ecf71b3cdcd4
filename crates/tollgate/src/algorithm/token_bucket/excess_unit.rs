//! `ExcessUnit`: a file of its own, because slots know it, and loom builds those alone.

/// The unit in which a record of two numbers holds debt and excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExcessUnit {
    /// Ticks: exact.
    Ticks,
    /// Microseconds of refill: if there are too many ticks for a record.
    Micros,
}

impl ExcessUnit {
    pub(crate) const ALL: [ExcessUnit; 2] = [ExcessUnit::Ticks, ExcessUnit::Micros];
}
