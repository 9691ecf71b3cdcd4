//! New numbers: what is used stays used.

use super::*;

proptest! {
    #![proptest_config(config())]

    /// Whenever numbers change, what is used by then stays used, or starts fresh, or what is left
    /// scales; and whoever had used nothing has used nothing.
    #[test]
    fn new_numbers_keep_what_is_used(
        trace in traces(EVERY, jumping(), takes()),
        units in prop_oneof![1..=12u64, any_size(MAX_EXACT)],
        when in forward(),
        on_change in select(vec![OnChange::Keep, OnChange::Reset, OnChange::Scale]),
    ) {
        let (mut core, mut course) = end_of(&trace);
        let now = course.advance(when);
        let new = renumbered(&trace.limit, units, on_change);
        let (left, old) = (core.judge(0, now).remaining, trace.limit.capacity());
        core.renumber(&new, now);
        let want = match on_change {
            OnChange::Keep => units - (old - left).min(units),
            OnChange::Reset => units,
            OnChange::Scale => (u128::from(left) * u128::from(units) / u128::from(old)) as u64,
        };
        prop_assert_eq!(core.judge(0, now).remaining, want, "{} left of {}", left, old);
        prop_assert!(core.balance(now) >= 0, "what has no room is forgotten, not owed");
    }
}
