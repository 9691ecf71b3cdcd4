//! Never more than the limit says.

use super::*;

/// Takes along a trace; what was admitted, and when.
fn admitted(trace: &RequestTrace) -> Vec<(i128, i128)> {
    let mut admitted = Vec::new();
    let keep = |_: &CoreModel, cost: u64, _: Micros, outcome: Outcome, _: &CoreModel| {
        if outcome.allowed && cost > 0 {
            admitted.push((outcome.served_at.as_u64().into(), cost.into()));
        }
        Ok(())
    };
    take_along(trace, keep).expect("nothing is asserted");
    admitted
}

/// Units within each span from one admission to another, and how long it is.
fn spans(admitted: &[(i128, i128)]) -> impl Iterator<Item = (i128, i128)> {
    (0..admitted.len()).flat_map(move |from| {
        let mut sum = 0;
        admitted[from..].iter().map(move |&(at, units)| {
            sum += units;
            (at - admitted[from].0, sum)
        })
    })
}

proptest! {
    #![proptest_config(config())]

    /// A bucket admits at most burst + rate × time in any interval.
    #[test]
    fn a_bucket_keeps_its_bound(
        trace in traces(&[LimitShape::Token, LimitShape::Meter, LimitShape::Queue], late(), takes()),
    ) {
        let (units, period, capacity) = numbers(&trace.limit);
        for (time, sum) in spans(&admitted(&trace)) {
            prop_assert!(sum * period <= capacity * period + units * time, "{sum} in {time} us");
        }
    }

    /// A fixed window admits at most N between two of its boundaries.
    #[test]
    fn a_fixed_window_keeps_its_bound(
        trace in traces(&[LimitShape::Window, LimitShape::Anchored], late(), takes()),
    ) {
        let (_, period, capacity) = numbers(&trace.limit);
        let anchor = match trace.limit.align() {
            Align::Anchor(anchor) => i128::from(anchor.as_u64()),
            _ => 0,
        };
        let admitted = admitted(&trace);
        for &(start, _) in &admitted {
            let window = |at: i128| (at - anchor).div_euclid(period);
            let same = admitted.iter().filter(|(at, _)| window(*at) == window(start));
            let sum: i128 = same.map(|(_, units)| units).sum();
            prop_assert!(sum <= capacity, "{sum} in the window of {start}");
        }
    }

    /// A window opened by its first hit admits at most N before it closes, one period later.
    #[test]
    fn an_opened_window_keeps_its_bound(trace in traces(&[LimitShape::FirstHit], late(), takes())) {
        let (_, period, capacity) = numbers(&trace.limit);
        let (mut opened, mut sum) = (-period, 0);
        for (at, units) in admitted(&trace) {
            if at - opened >= period {
                (opened, sum) = (at, 0);
            }
            sum += units;
            prop_assert!(sum <= capacity, "{sum} since {opened}");
        }
    }

    /// A log and a counter in sub-buckets admit at most N in any trailing period.
    #[test]
    fn trailing_periods_keep_their_bound(
        trace in traces(&[LimitShape::Log, LimitShape::Buckets], late(), takes()),
    ) {
        let (_, period, capacity) = numbers(&trace.limit);
        for (time, sum) in spans(&admitted(&trace)) {
            prop_assert!(time >= period || sum <= capacity, "{sum} in {time} us");
        }
    }

    /// A counter admits only while its estimate, recounted, is at most N; so at most 2 N in any
    /// trailing period.
    #[test]
    fn a_counter_keeps_its_estimate(trace in traces(&[LimitShape::Counter], late(), takes())) {
        let (_, period, capacity) = numbers(&trace.limit);
        let admitted = admitted(&trace);
        for (index, &(at, _)) in admitted.iter().enumerate() {
            let in_window = |window: i128| -> i128 {
                let until_now = &admitted[..=index];
                let ours = until_now.iter().filter(|(at, _)| at / period == window);
                ours.map(|(_, units)| units).sum()
            };
            let (previous, current) = (in_window(at / period - 1), in_window(at / period));
            let estimate = previous * (period - at % period) / period + current;
            prop_assert!(estimate <= capacity, "an estimate of {estimate} at {at}");
        }
        for (time, sum) in spans(&admitted) {
            prop_assert!(time >= period || sum <= 2 * capacity, "{sum} in {time} us");
        }
    }
}
