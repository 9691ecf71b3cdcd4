//! The audit of sealed facts: an instance compares what it knows with what the store has, a few facts at a time, and
//! sends a fact again that somebody has changed or deleted there.
//!
//! Who writes to the store need not write to its log of changes, so that no instance would hear of it but those that start
//! later. The audit sends known facts as after a lost reply: the store keeps an equal value, takes a missing one, and
//! tells of any other.

use std::collections::BTreeSet;
use std::ops::Bound;

use tollgate::Micros;

use super::shared_fact::FactName;

/// Shortest time between two calls with facts that are only compared.
const AUDIT_EVERY_US: u64 = 250_000;
/// The most facts compared in one call.
const AUDITED_FACTS_MAX: usize = 8;
/// Bytes of facts compared in a second, on average. A longer fact delays the next ones.
const AUDITED_BYTES_PER_SECOND: u64 = 16 << 10;

/// Shortest time between two tries to put a fact back. It doubles with each, up to 64 times.
const HEAL_EVERY_US: u64 = 1_000_000;
const HEAL_DOUBLINGS_MAX: u32 = 6;
/// After this time without a try the first pace holds again.
const HEAL_CALM_US: u64 = 600_000_000;

/// The facts to compare, in turn.
#[derive(Debug, Default)]
pub(super) struct FactAudit {
    /// Bound: the sealed facts that are known.
    names: BTreeSet<FactName>,
    /// The fact that was compared last.
    last: Option<FactName>,
    /// The instant of the last call, by this instance's clock.
    called: Micros,
    /// Time until the next call.
    pause_us: u64,
}

impl FactAudit {
    pub(super) fn add(&mut self, name: FactName) {
        self.names.insert(name);
    }

    pub(super) fn remove(&mut self, name: FactName) {
        self.names.remove(&name);
    }

    /// The facts to compare now. `length` tells the bytes of one.
    pub(super) fn next_names(
        &mut self,
        now: Micros,
        length: impl Fn(&FactName) -> usize,
    ) -> Vec<FactName> {
        let mut names = Vec::new();
        if !self.names.is_empty() && is_past(self.called, self.pause_us, now) {
            let bytes_max = AUDITED_BYTES_PER_SECOND * AUDIT_EVERY_US / 1_000_000;
            let mut bytes = 0;
            while names.len() < AUDITED_FACTS_MAX.min(self.names.len()) && bytes < bytes_max {
                let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
                let next = self.names.range((after, Bound::Unbounded)).next();
                let Some(name) = next.or(self.names.first()).copied() else { break };
                bytes += length(&name) as u64;
                self.last = Some(name);
                names.push(name);
            }
            self.called = now;
            let of_bytes = bytes.saturating_mul(1_000_000) / AUDITED_BYTES_PER_SECOND;
            self.pause_us = of_bytes.max(AUDIT_EVERY_US);
        }
        names
    }
}

/// The pace at which one fact is put back: servers with different secrets would otherwise write over each other without
/// a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HealPace {
    last: Micros,
    /// Tries so far. Bound: `HEAL_DOUBLINGS_MAX` + 1.
    tries: u32,
}

impl HealPace {
    /// Begins a try, unless it is too early.
    pub(super) fn begin(&mut self, now: Micros) -> bool {
        let pause_us = HEAL_EVERY_US << self.tries.saturating_sub(1);
        if self.tries > 0 && !is_past(self.last, pause_us, now) {
            return false;
        }
        if is_past(self.last, HEAL_CALM_US, now) {
            self.tries = 0;
        }
        *self = HealPace { last: now, tries: (self.tries + 1).min(HEAL_DOUBLINGS_MAX + 1) };
        true
    }
}

/// Returns true if this much time has passed since an instant, or the clock was set back behind it.
fn is_past(since: Micros, pause_us: u64, now: Micros) -> bool {
    now.as_u64().checked_sub(since.as_u64()).is_none_or(|passed| passed >= pause_us)
}

#[cfg(test)]
mod tests {
    use super::super::shared_fact::FactKind;
    use super::*;

    fn name(number: u8) -> FactName {
        FactName { kind: FactKind::Override, id: [number; 16] }
    }

    fn next(audit: &mut FactAudit, now: u64, length: usize) -> Vec<u8> {
        let names = audit.next_names(Micros::new(now), |_| length);
        names.into_iter().map(|name| name.id[0]).collect()
    }

    #[test]
    fn facts_are_compared_in_turn_and_long_ones_less_often() {
        let mut audit = FactAudit::default();
        assert!(next(&mut audit, 1_000_000, 1).is_empty());
        (0..10).for_each(|number| audit.add(name(number)));
        assert_eq!(next(&mut audit, 1_000_000, 1), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(next(&mut audit, 1_249_999, 1).is_empty());
        audit.remove(name(8));
        assert_eq!(next(&mut audit, 1_250_000, 1), [9, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(next(&mut audit, 1_500_000, 1 << 20), [7], "1 MiB is the work of 64 s");
        assert!(next(&mut audit, 65_499_999, 1).is_empty());
        assert_eq!(next(&mut audit, 65_500_000, 2_048), [9, 0]);
        assert_eq!(next(&mut audit, 5, 1)[0], 1, "the clock was set back");
        (1..10).for_each(|number| audit.remove(name(number)));
        assert_eq!(next(&mut audit, 90_000_000, 1), [0], "each once in a call");
    }

    #[test]
    fn the_pace_of_putting_back_slows_down() {
        let mut pace = HealPace::default();
        let mut tries = Vec::new();
        for second in 0..400 {
            if pace.begin(Micros::from_secs(second)) {
                tries.push(second);
            }
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
        assert!(pace.begin(Micros::from_secs(383 + 600)));
        assert!(pace.begin(Micros::from_secs(384 + 600)), "it was calm for ten minutes");
        assert!(!pace.begin(Micros::from_secs(385 + 600)));
    }
}
