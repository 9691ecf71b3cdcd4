//! The cost of waiting work, in virtual time.

use crate::time::MAX_EXACT;

/// The share of a flow beside others: an exact decimal with three places, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight {
    thousandths: u32,
}

impl Weight {
    /// The usual weight.
    pub const ONE: Weight = Weight { thousandths: 1_000 };

    /// A weight of `thousandths` / 1,000; `None` for 0.
    pub const fn from_thousandths(thousandths: u32) -> Option<Weight> {
        if thousandths == 0 { None } else { Some(Weight { thousandths }) }
    }

    /// The weight in thousandths.
    pub const fn thousandths(self) -> u32 {
        self.thousandths
    }
}

/// The cost of a waiter and the weight of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedCost {
    /// Units of work. 0 counts as 1, because work without a cost would always go first; more than
    /// 2^53 − 1 count as that.
    pub units: u64,
    /// Share of the flow.
    pub weight: Weight,
}

impl QueuedCost {
    /// One unit with the usual weight.
    pub const ONE: QueuedCost = QueuedCost { units: 1, weight: Weight::ONE };

    /// Virtual time that the service takes, in 2^−32 units, rounded up.
    pub(super) fn stride(self) -> u128 {
        let thousandths = u128::from(self.units.clamp(1, MAX_EXACT)) * 1_000;
        (thousandths << 32).div_ceil(u128::from(self.weight.thousandths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_above_zero() {
        assert_eq!(Weight::from_thousandths(0), None);
        assert_eq!(Weight::from_thousandths(1_000), Some(Weight::ONE));
        assert_eq!(Weight::from_thousandths(1_500).map(Weight::thousandths), Some(1_500));
    }

    #[test]
    fn strides_are_rounded_up() {
        // units, thousandths, stride
        let cases = [
            (1, 1_000, 1 << 32),
            (0, 1_000, 1 << 32),
            (3, 2_000, 3 << 31),
            (1, 3_000, (1 << 32) / 3 + 1),
            (1, 1, 1_000 << 32),
            (u64::MAX, 1, (u128::from(MAX_EXACT) * 1_000) << 32),
        ];
        for (units, thousandths, stride) in cases {
            let weight = Weight::from_thousandths(thousandths).unwrap();
            assert_eq!(QueuedCost { units, weight }.stride(), stride, "{units} {thousandths}");
        }
    }
}
