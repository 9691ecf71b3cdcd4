//! The pace of lines whose limit changes, by a reload, an override, or the end of one: those who stand there move up with a
//! higher rate, before any newcomer under it, and keep their departures under a lower one.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use tollgate::queue::LineTimes;
use tollgate::{KeyBuf, Limit, Micros, Wait};

use super::BottleneckId;
use super::departures::{DepartureLines, KeyLine};
use crate::rule_set::RuleSet;

/// A request in a line.
#[derive(Debug)]
pub(super) struct LineRequest {
    /// The waker of its task.
    pub(super) waker: Option<Waker>,
    /// The limit that its departure is by.
    limit: Arc<Limit>,
    cost: u64,
}

/// The caller and the rule whose limit paces a line.
#[derive(Debug)]
pub(super) struct LineOwner {
    /// The hash of the rule's name.
    pub(super) rule: u64,
    /// The key of the caller, whatever the tier.
    pub(super) caller: KeyBuf,
    /// The tier by whose numbers the limit was found.
    pub(super) tier: Option<Box<str>>,
    /// The limit as it was last.
    pub(super) limit: Arc<Limit>,
}

/// A period whose length is converted to compare two rates.
const COMPARED: Wait = Wait::from_micros(1_000_000_000_000);

/// Returns true if a limit may replace another one and has a higher rate. A request that was charged before its limit was
/// lowered may come after others that were charged later, and brings the old limit.
fn moves_up(limit: &Limit, other: &Limit) -> bool {
    let is_older = limit.numbers_since() < other.numbers_since();
    !is_older && limit.wait_converted(other, COMPARED) < COMPARED
}

/// The instant from which the store counts by the numbers of a limit: newcomers are scheduled behind the others then.
fn in_force_since(limit: &Limit, now: Micros) -> Micros {
    limit.numbers_since().map_or(now, |since| since.min(now))
}

impl LineRequest {
    pub(super) fn new(limit: &Arc<Limit>, cost: u64) -> LineRequest {
        LineRequest { waker: None, limit: Arc::clone(limit), cost }
    }

    pub(super) fn into_limit(self) -> Arc<Limit> {
        self.limit
    }

    /// The times of the request under a limit, if its rate is higher.
    fn follow(&mut self, limit: &Arc<Limit>, times: LineTimes) -> LineTimes {
        if !moves_up(limit, &self.limit) {
            return times;
        }
        let times = LineTimes {
            until_due: limit.wait_converted(&self.limit, times.until_due),
            interval: limit.time_of(self.cost),
        };
        self.limit = Arc::clone(limit);
        times
    }
}

impl LineOwner {
    /// The limit in a version of the rules, whose numbers are by the hash of the name. `None` if there is none that delays.
    fn limit_in<'r>(
        &self,
        (rules, numbers): (&'r RuleSet, &HashMap<u64, u32>),
        now: Micros,
    ) -> Option<&'r Arc<Limit>> {
        let number = *numbers.get(&self.rule)?;
        let limits = match rules.override_of(number, &self.caller, now) {
            Some(replaced) => rules.limits_of_override(replaced),
            None => {
                let tier = rules.tier_index(self.tier.as_deref());
                let (limits, own) = rules.rule_at(number).limits.of(tier);
                let after = (!own).then(|| rules.limits_after_override(number, &self.caller));
                after.flatten().unwrap_or(limits)
            }
        };
        let queues = || limits.iter().map(|one| &one.limit).filter(|limit| limit.is_queue());
        let same = queues().find(|limit| limit.id() == self.limit.id());
        // Another period is another limit. Of several nobody knows which.
        same.or_else(|| queues().next().filter(|_| queues().count() == 1))
    }
}

impl KeyLine {
    /// Lets the line follow the limit of a newcomer. Returns the waker of a head that moved up.
    pub(super) fn follow_newcomer(
        &mut self,
        limit: &Arc<Limit>,
        owner: impl FnOnce() -> LineOwner,
        now: Micros,
    ) -> Option<Waker> {
        if self.owner.is_none() {
            self.owner = Some(Box::new(owner()));
        }
        self.follow(limit, now)
    }

    /// Shortens the interval of the last departure to that of a limit with a higher rate.
    pub(super) fn release_by(&mut self, limit: &Arc<Limit>, now: Micros) {
        let Some((departed_at, held_by)) = &mut self.held_by else { return };
        if !moves_up(limit, held_by) {
            return;
        }
        let since = in_force_since(limit, now).max(*departed_at);
        let left = limit.wait_converted(held_by, since.until(self.line.free_at()));
        self.line.release_at(since.after(left));
        (*departed_at, *held_by) = (since, Arc::clone(limit));
    }

    /// Lets the line follow a limit. Returns the waker of a head that moved up.
    fn follow(&mut self, limit: &Arc<Limit>, now: Micros) -> Option<Waker> {
        let owner = self.owner.as_mut()?;
        let numbers = |limit: &Limit| (limit.id(), limit.fingerprint());
        if numbers(limit) == numbers(&owner.limit) {
            return None;
        }
        owner.limit = Arc::clone(limit);
        self.release_by(limit, now);
        let since = in_force_since(limit, now);
        self.line.change_pace(since, |request, times| request.follow(limit, times));
        self.take_head_waker()
    }
}

impl DepartureLines {
    /// Lets all lines follow the limits of new rules.
    #[cold]
    pub(super) fn follow_rules(&self, rules: &RuleSet, now: Micros) {
        let mut table = self.table();
        if table.lines.is_empty() {
            return;
        }
        let numbers = rules.numbers_by_name_hash();
        let mut wakers = Vec::new();
        for one in table.lines.values_mut() {
            let limit = one.owner.as_ref();
            let limit = limit.and_then(|owner| owner.limit_in((rules, &numbers), now));
            wakers.extend(limit.and_then(|limit| one.follow(limit, now)));
        }
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lets one line follow new rules, because a request has joined that was charged under others.
    #[cold]
    pub(super) fn follow_rules_at(&self, line: BottleneckId, rules: &RuleSet, now: Micros) {
        let numbers = rules.numbers_by_name_hash();
        let mut table = self.table();
        let Some(one) = table.lines.get_mut(&line) else { return };
        let limit = one.owner.as_ref();
        let limit = limit.and_then(|owner| owner.limit_in((rules, &numbers), now));
        let waker = limit.and_then(|limit| one.follow(limit, now));
        drop(table);
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_former_rules_moves_nobody_up() {
        let limit = |text: &str, since| {
            let limit: Limit = text.parse().unwrap();
            Arc::new(limit.with_numbers_since(Some(Micros::from_secs(since))))
        };
        let times = LineTimes {
            until_due: Wait::from_micros(5_000_000),
            interval: Wait::from_micros(1_000_000),
        };
        let slow = limit("60/minute burst 60", 200);
        let after = |other: Arc<Limit>| {
            LineRequest::new(&slow, 1).follow(&other, LineTimes { ..times }).until_due
        };
        assert_eq!(after(limit("6000/minute burst 60", 100)), times.until_due, "lowered since");
        assert_eq!(after(limit("6000/minute burst 60", 300)), Wait::from_micros(50_000), "raised");
        assert_eq!(after(limit("6/minute burst 60", 300)), times.until_due, "lowered again");
    }
}
