//! Promises about time: waits are enough and minimal, idleness heals, looking changes nothing.

use super::*;

proptest! {
    #![proptest_config(config())]

    /// Waiting `retry_after` admits, a microsecond less does not; the same for `more_after` and
    /// `reset_after`; and never means never.
    #[test]
    fn waits_are_enough_and_minimal(trace in traces(EVERY_SHAPE, jumping(), takes())) {
        take_along(&trace, |_, cost, now, outcome, after| {
            let retry = outcome.retry_after;
            prop_assert_eq!(outcome.allowed, retry.is_zero());
            prop_assert_eq!(retry.is_never(), cost > trace.limit.capacity());
            if let Some(at) = later(now, retry).filter(|_| !outcome.allowed) {
                prop_assert!(after.judge(cost, at).allowed, "{retry:?} is not enough");
                prop_assert!(!after.judge(cost, earlier(at)).allowed, "{retry:?} is too long");
            }
            let more = outcome.more_after;
            if let Some(at) = later(now, more).filter(|_| !more.is_zero()) {
                prop_assert!(after.judge(0, at).remaining > outcome.remaining);
                prop_assert_eq!(after.judge(0, earlier(at)).remaining, outcome.remaining);
            }
            prop_assert_eq!(more.is_zero(), outcome.remaining == trace.limit.capacity());
            let reset = outcome.reset_after;
            if let Some(at) = later(now, reset).filter(|_| !reset.is_zero()) {
                prop_assert!(after.judge(0, at).reset_after.is_zero());
                prop_assert!(!after.judge(0, earlier(at)).reset_after.is_zero());
            }
            Ok(())
        })?;
    }

    /// Who cannot wait is admitted by a queue exactly if it is not delayed; else waiting
    /// `retry_after` admits, a microsecond less does not, and nothing was charged. Alone and
    /// together with another limit.
    #[test]
    fn who_cannot_wait_is_told_when(trace in traces(&[LimitShape::Queue], jumping(), takes())) {
        let store = MemoryStore::new(16);
        let other = Limit::per_second(1_000_000).burst(1_000_000).name("other").build().unwrap();
        let mut course = TraceCursor::of(&trace);
        for (nth, &(when, act)) in trace.steps.iter().enumerate() {
            let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when), course.cost(cost));
            let plain = Check::new(&trace.limit, "a").cost(cost);
            let at_once = plain.at_once();
            let peek = |now| store.decide_one(&at_once.act(tollgate::Act::Peek), now);
            let expected = store.decide_one(&plain.act(tollgate::Act::Peek), now);
            let present = store.decide_one(&plain.cost(0), now).outcome();
            let mut outcomes = [Outcome::default(); 2];
            let check = if nth % 3 == 0 { plain } else { at_once };
            let decision = match nth % 3 {
                1 => store.decide_one(&check, now),
                _ => store.decide_each(&[check, Check::new(&other, "b")], now, &mut outcomes),
            };
            let got = if nth % 3 == 1 { decision.outcome() } else { outcomes[0] };
            course.record_outcome(got, got.allowed && cost > 0);
            if nth % 3 == 0 {
                continue;
            }
            prop_assert_eq!(got.allowed, expected.allowed() && expected.delay().is_zero());
            prop_assert_eq!(got.allowed, decision.allowed());
            prop_assert!(got.delay.is_zero());
            if got.allowed {
                continue;
            }
            let retry = got.retry_after;
            prop_assert_eq!(Outcome { allowed: true, retry_after: Wait::ZERO, ..got }, present);
            prop_assert_eq!(store.decide_one(&plain.cost(0), now).outcome(), present);
            prop_assert_eq!(retry.is_never(), cost > trace.limit.capacity());
            if expected.allowed() {
                prop_assert_eq!(retry, expected.delay());
            }
            if let Some(at) = later(now, retry) {
                prop_assert!(peek(at).allowed(), "{:?} is not enough", retry);
                prop_assert!(!peek(earlier(at)).allowed(), "{:?} is too long", retry);
            }
        }
    }

    /// A state with nothing to reset answers every later question as a fresh one.
    #[test]
    fn long_idle_is_fresh(
        trace in traces(EVERY_SHAPE, jumping(), takes()),
        (idle, mut rest) in (0..=3_000u64, traces(EVERY_SHAPE, late(), takes())),
    ) {
        let (mut idled, mut course) = end_of(&trace);
        // A caller before the last charge is served as of that charge; a fresh state has none.
        course.now = course.now.max(course.mark);
        let reset = idled.judge(0, Micros::new(course.now)).reset_after;
        let Some(at) = later(Micros::new(course.now), reset) else { return Ok(()) };
        course.now = at.as_u64();
        let at = course.advance(StepTime::Part(idle));
        let mut fresh = CoreModel::fresh(&trace.limit, at);
        (rest.limit, rest.start) = (trace.limit.clone(), at.as_u64());
        let mut course = TraceCursor::of(&rest);
        for &(when, act) in &rest.steps {
            let StepAct::Take(cost) = act else { unreachable!("a trace of takes") };
            let (now, cost) = (course.advance(when).max(at), course.cost(cost));
            let outcome = fresh.take(cost, now);
            prop_assert_eq!(idled.take(cost, now), outcome);
            course.record_outcome(outcome, outcome.allowed && cost > 0);
        }
    }

    /// What is left passes whole or in parts, with the same result, and not one unit more.
    #[test]
    fn parts_add_up(trace in traces(EVERY_SHAPE, jumping(), takes()), part in 0..=1_000u64) {
        let (core, course) = end_of(&trace);
        let now = Micros::new(course.now);
        let left = core.judge(0, now).remaining;
        let part = (u128::from(left) * u128::from(part) / 1_000) as u64;
        prop_assert!(!core.judge(left + 1, now).allowed);
        let (mut whole, mut parts, mut units) = (core.clone(), core.clone(), core);
        prop_assert!(whole.take(left, now).allowed);
        prop_assert!(parts.take(part, now).allowed && parts.take(left - part, now).allowed);
        prop_assert_eq!(whole.judge(1, now), parts.judge(1, now));
        prop_assert_eq!(whole.judge(1, now).allowed, false);
        if left <= 100 {
            let passed = (0..=left).filter(|_| units.take(1, now).allowed).count();
            prop_assert_eq!(passed as u64, left);
            prop_assert_eq!(whole.judge(1, now), units.judge(1, now));
        }
    }

    /// Peeks, refused requests and those of cost 0 change no later answer, however many there are
    /// and whenever they come, short of a jump of the clock.
    #[test]
    fn polling_changes_nothing(
        trace in traces(EVERY_SHAPE, late(), takes()),
        noise in prop::collection::vec((0..3u8, 0..=3_000u64), 16),
    ) {
        let mut polled = CoreModel::fresh(&trace.limit, Micros::new(trace.start));
        let (mut index, horizon) = (0, u128::from(horizon(&trace.limit)));
        take_along(&trace, |_, cost, now, outcome, _| {
            let (kind, part) = noise[index];
            let ahead = (horizon * u128::from(part) / 1_000) as u64;
            let at = Micros::new(now.as_u64().saturating_add(ahead));
            match kind {
                0 => prop_assert!(polled.take(0, at).allowed),
                1 => _ = polled.peek(cost, at),
                _ => {
                    let refused = polled.judge(0, at).remaining + 1;
                    prop_assert!(!polled.take(refused, at).allowed);
                }
            }
            prop_assert_eq!(polled.take(cost, now), outcome);
            index += 1;
            Ok(())
        })?;
    }

    /// A token bucket and a leaky bucket that is no queue give the same answers.
    #[test]
    fn a_meter_is_a_token_bucket(
        rate in rates(),
        burst in bursts(),
        trace in traces(EVERY_SHAPE, jumping(), acts()),
    ) {
        let trace = RequestTrace { limit: limit(LimitShape::Token, rate, burst, 0), ..trace };
        let (mut course, start) = (TraceCursor::of(&trace), Micros::new(trace.start));
        let mut token = CoreModel::fresh(&trace.limit, start);
        let mut meter = CoreModel::fresh(&limit(LimitShape::Meter, rate, burst, 0), start);
        for &(when, act) in &trace.steps {
            let now = course.advance(when);
            match act {
                StepAct::Take(cost) | StepAct::Peek(cost) => {
                    let cost = course.cost(cost);
                    let outcome = token.take(cost, now);
                    prop_assert_eq!(meter.take(cost, now), outcome);
                    course.record_outcome(outcome, outcome.allowed && cost > 0);
                }
                StepAct::Force(cost) => {
                    let cost = course.cost(cost);
                    token.force(cost, now);
                    meter.force(cost, now);
                }
                StepAct::Refused(cost) => {
                    let cost = course.cost(cost);
                    token.force_refused(cost, now);
                    meter.force_refused(cost, now);
                }
                StepAct::Refund(..) => {}
                StepAct::RefundNow(cost) => {
                    let cost = course.cost(cost);
                    token.refund(cost, None, now);
                    meter.refund(cost, None, now);
                }
            }
        }
        let now = Micros::new(course.now);
        prop_assert_eq!(token.judge(1, now), meter.judge(1, now));
    }
}
