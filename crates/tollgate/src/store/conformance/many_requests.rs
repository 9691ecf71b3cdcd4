//! The behaviour of many requests of several checks that are decided together.

use std::fmt;

use super::probe::{Probe, at, ten_per_hour};
use super::random_traffic::{LaneRandom, comparable, summary};
use crate::check::{Act, Check};
use crate::clock::Now;
use crate::decision::Outcome;
use crate::limit::Limit;
use crate::store::{MemoryStore, RequestList, Store};

/// Number of lists of requests.
const LISTS: u64 = 40;

/// Random lists of requests, compared with a memory store that decides one request after the other. All
/// checks of a request have one key, and none is "up to": a remote store decides it by one call.
pub(super) async fn in_order<S: Store<Error: fmt::Debug>>(probe: &Probe<'_, S>) {
    let memory = MemoryStore::new(1_000);
    let limits: Vec<Limit> = ten_per_hour().collect();
    let keys: Vec<String> = (0..LISTS).map(|nth| probe.key(nth)).collect();
    let mut random = LaneRandom::new(1);
    for seconds in 1..=LISTS {
        let (mut checks, mut ends, now) = (Vec::new(), Vec::new(), at(seconds));
        for _ in 0..random.below(12) {
            // A few keys, so that requests meet, and others from list to list.
            let key = &keys[(seconds / 4 + random.below(3)) as usize % keys.len()];
            let first = random.below(limits.len() as u64) as usize;
            for nth in 0..random.below(4) as usize {
                checks.push(random_check(&mut random, &limits[(first + nth) % limits.len()], key));
            }
            ends.push(checks.len());
        }
        let requests = RequestList::new(&checks, &ends);
        let mut got = vec![Outcome::default(); checks.len()];
        let decisions = probe.decide_requests(requests, now, &mut got).await;
        probe.equal(decisions.len(), ends.len(), format_args!("decisions of list {seconds}"));
        for (nth, (range, decision)) in requests.ranges().zip(&decisions).enumerate() {
            let mut want = vec![Outcome::default(); range.len()];
            let own = &checks[range.clone()];
            let Ok(wanted) = Store::decide_each(&memory, own, Now::at(now), &mut want).await;
            let what = format_args!("request {nth} of list {seconds}");
            probe.equal(summary(decision), summary(&wanted), what);
            let outcomes = |list: &[Outcome]| list.iter().map(comparable).collect::<Vec<_>>();
            probe.equal(outcomes(&got[range]), outcomes(&want), what);
        }
    }
}

fn random_check<'a>(random: &mut LaneRandom, limit: &'a Limit, key: &'a str) -> Check<'a> {
    // Mostly one unit, the usual request.
    let check = Check::new(limit, key).cost(*random.pick(&[1, 1, 1, 1, 0, 2, 3]));
    match random.below(12) {
        0 => check.act(Act::Peek),
        1 => check.act(Act::Force),
        2 => check.shadow(),
        3 => check.count_denied(),
        _ => check,
    }
}
