//! `ExcessUnits`: a file of its own, because slots know it, and loom builds those alone.

/// The unit in which a number of a record counts usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageUnit {
    /// Ticks: exact.
    Ticks,
    /// Microseconds of refill.
    Micros,
    /// Units of the limit.
    Units,
}

/// The units of the two numbers in the record of a bucket with excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExcessUnits {
    pub(crate) debt: UsageUnit,
    pub(crate) excess: UsageUnit,
}

impl ExcessUnits {
    /// Bits of [`ExcessUnits::number`].
    pub(crate) const BITS: u32 = 4;

    /// These units as a number in a record; 0 stands for no excess.
    pub(crate) fn number(self) -> u32 {
        self.debt as u32 | (self.excess as u32 + 1) << 2
    }

    /// The units with this number; `None` for no excess and for other numbers.
    pub(crate) fn of_number(number: u32) -> Option<ExcessUnits> {
        let unit = |number: u32| match number {
            0 => Some(UsageUnit::Ticks),
            1 => Some(UsageUnit::Micros),
            2 => Some(UsageUnit::Units),
            _ => None,
        };
        let excess = (number >> 2).checked_sub(1)?;
        Some(ExcessUnits { debt: unit(number & 3)?, excess: unit(excess)? })
    }
}
