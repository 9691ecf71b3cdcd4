//! Notes on limits that are an estimate where a hard bound may have been meant: few units in a
//! period, or a `ban` that counts refusals.

use tollgate::limit::Precision;
use tollgate::{Algorithm, Limit};

use crate::Problem;
use crate::compile::WrittenRule;

/// The most units of a limit whose estimate is far off under ordinary traffic. `cargo xtask errors`
/// measures up to 1.4 times the limit for 10 in a period and 1.07 times for 100.
const FEW_UNITS: u64 = 20;

/// Notes each estimate of a rule that nobody asked for by its name. The short form cannot name one.
pub(super) fn check(written: &WrittenRule<'_>) {
    if written.is_short {
        return;
    }
    let limits = written.specs.iter().zip(written.rule.limits.plain());
    let unnamed = limits.filter(|(one, _)| one.spec.algorithm.is_none());
    for (one, limit) in unnamed.filter(|(_, limit)| is_estimate(&limit.limit)) {
        let (text, units) = (&limit.text, limit.limit.units());
        let message = if written.rule.ban.is_some() {
            format!(
                "`{text}` is an estimate, so `ban` may count refusals of callers who keep to the limit"
            )
        } else if units <= FEW_UNITS {
            let most = units * 2;
            format!("`{text}` is an estimate: up to {most} units can pass within one period")
        } else {
            continue;
        };
        let rate = limit.limit.rate();
        let hint = format!(
            "for a hard bound write `{{ rate: {rate}, algorithm: sliding_window_log }}`; if an \
             estimate will do, write `algorithm: sliding_window_counter`"
        );
        written.context.note(one.span, Problem::new(message).hint(hint));
    }
}

fn is_estimate(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingWindowCounter && limit.precision() == Precision::Estimate
}
