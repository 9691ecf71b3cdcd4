//! "Up to" of several limits: all of them grant what the one with the least does.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Act, Check, Outcome};

/// Units charged above the smallest grant, by check. Checks for which `counts` is false do not
/// count for the smallest grant.
pub fn up_to_excess(
    checks: &[Check<'_>],
    outcomes: &[Outcome],
    counts: impl Fn(usize) -> bool,
) -> ArrayVec<(usize, u64), MAX_LIMITS> {
    let up_to = |index: &usize| checks[*index].requested_act() == Act::UpTo;
    let all = 0..checks.len();
    if !all.clone().any(|index| up_to(&index)) {
        return ArrayVec::new();
    }
    let grants = |index: &usize| {
        let check = &checks[*index];
        let asks = check.requested_act() != Act::Peek && check.units() > 0;
        asks && !check.is_shadow() && counts(*index)
    };
    let charged = |index: usize| outcomes[index].charged;
    let Some(least) = all.clone().filter(grants).map(charged).min() else {
        return ArrayVec::new();
    };
    let more = all.filter(up_to).map(|index| (index, charged(index).saturating_sub(least)));
    more.filter(|(_, units)| *units > 0).collect()
}
