//! Identities of limits: the kind, which contains no numbers and identifies states, and the
//! fingerprint, which contains them.

use super::calendar::{Calendar, identity_hash};
use super::options::{Align, LimitOptions, Precision};
use crate::algorithm::Algorithm;
use crate::hash::public_hash;

/// Hash of the numbers of a limit.
pub(super) fn limit_fingerprint(kind: u64, options: LimitOptions, numbers: [u64; 2]) -> u64 {
    let [units, capacity] = numbers.map(u64::to_le_bytes);
    let on_change = [options.on_change as u8, u8::from(options.queue)];
    public_hash(&[&kind.to_le_bytes(), &units, &capacity, &on_change])
}

/// Hash of everything that gives states another meaning.
pub(super) fn state_kind_hash(
    algorithm: Algorithm,
    period: u64,
    options: LimitOptions,
    calendar: Option<&dyn Calendar>,
) -> u64 {
    let align = match (calendar, options.align) {
        // No anchor uses the highest bit.
        (Some(calendar), _) => identity_hash(calendar) | 1 << 63,
        (None, Align::Epoch) => 0,
        (None, Align::FirstHit) => 1,
        (None, Align::Anchor(anchor)) => 2 + anchor.as_u64() % period,
    };
    let buckets = match options.precision {
        Precision::Estimate => 0,
        Precision::Buckets(buckets) => buckets,
    };
    public_hash(&[
        algorithm.name().as_bytes(),
        &period.to_le_bytes(),
        &align.to_le_bytes(),
        &[u8::from(options.stagger)],
        &buckets.to_le_bytes(),
    ])
}

#[cfg(test)]
mod tests {
    use crate::limit::{Limit, LimitBuilder};

    #[test]
    fn identity_ignores_numbers_and_minds_the_rest() {
        let id = |builder: LimitBuilder| builder.build().unwrap().id();
        let base = id(Limit::per_minute(100));
        assert_eq!(base, id(Limit::per_minute(200)));
        for other in [
            Limit::per_hour(100),
            Limit::per_minute(100).burst(20),
            Limit::per_minute(100).name("api"),
            Limit::per_minute(100).buckets(60),
        ] {
            assert_ne!(base, id(other));
        }
    }
}
