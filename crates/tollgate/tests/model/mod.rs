//! The naive model: what the algorithms mean, written so that it is obviously right and as unlike
//! the implementation as possible.
//!
//! It forgets nothing: every charge stays in a list, and every question walks the whole list. The
//! only thing each algorithm says about itself is how many units are in use at an instant. What is
//! left and every wait are *searched* with that predicate, never computed by a formula. Numbers are
//! exact fractions over the period, in 128 bits. It is far too slow for anything but a test.
//!
//! The rules of the clock are here too:
//!
//! * The mark is the instant of the last charge. An earlier caller is served as of the mark and
//!   its waits count from its own clock.
//! * A mark more than a horizon and more than a second ahead means a clock that jumped: the charges
//!   move with it, so that what is in use stays in use, and even a refusal leaves them moved.
//!
//! One thing is no idea but a bound: stores keep amounts in numbers of 53 bits. Debt beside excess, and excess,
//! are rounded up if they are larger; see [`AlgorithmModel::round_as_stored`].

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use tollgate::{Algorithm, Align, Limit, Micros, OnChange, Outcome, Precision, Wait};

use crate::executor::KeyModel;

/// What is counted, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelKind {
    Bucket,
    /// Windows that begin at this instant and every period before and after.
    Window(i128),
    FirstHit,
    Log,
    Counter,
    /// So many sub-buckets to a period.
    Buckets(i128),
}

/// Units charged, less those given back.
#[derive(Clone, Copy, Debug)]
struct ModelCharge {
    /// When, as the receipt says.
    at: i128,
    /// Where it counts: an instant, or the number of a window or sub-bucket, or the instant at
    /// which its window opened.
    filed: i128,
    /// Negative for what flows back into a bucket.
    units: i128,
    /// The reason, for which a bucket may owe less.
    reason: ModelChargeReason,
}

/// The reason for a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelChargeReason {
    Plain,
    /// For a request that was refused: of a bucket's debt, at most one capacity is for such.
    Refused,
    /// Granted under other numbers: beyond a bucket's capacity it is excess.
    OtherNumbers,
}

/// The largest number of a store.
const LARGEST: i128 = (1 << 53) - 1;
/// The longest debt, in microseconds.
const LONGEST_DEBT: i128 = 1 << 52;

/// Every charge ever, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct AlgorithmModel {
    limit: Limit,
    kind: ModelKind,
    rate: i128,
    period: i128,
    capacity: i128,
    mark: i128,
    charges: Vec<ModelCharge>,
    /// What a bucket brought along from other numbers.
    carried: Option<CarriedUsage>,
}

/// Usage of a bucket when its numbers changed, times the period.
#[derive(Clone, Copy, Debug)]
struct CarriedUsage {
    at: i128,
    /// What the new numbers count.
    counted: i128,
    /// What is beyond their capacity: it flows back after all else, and larger numbers count it again.
    excess: i128,
}

impl AlgorithmModel {
    /// How long a state remembers: a period, or a full refill.
    pub(crate) fn horizon(&self) -> i128 {
        match self.kind {
            ModelKind::Bucket => first(|wait| wait * self.rate >= self.capacity * self.period),
            _ => self.period,
        }
    }

    pub(crate) fn mark(&self) -> u64 {
        self.mark as u64
    }

    /// Where a charge of this instant is filed.
    fn file(&self, at: i128) -> i128 {
        match self.kind {
            ModelKind::Window(anchor) => (at - anchor).div_euclid(self.period),
            ModelKind::Counter => at.div_euclid(self.period),
            ModelKind::Buckets(buckets) => (at * buckets).div_euclid(self.period),
            ModelKind::Bucket | ModelKind::FirstHit | ModelKind::Log => at,
        }
    }

    /// Whether a charge still counts at an instant, wholly or in part.
    fn counts(&self, charge: &ModelCharge, at: i128) -> bool {
        match self.kind {
            ModelKind::Bucket => true,
            ModelKind::Window(_) => self.file(at) == charge.filed,
            ModelKind::FirstHit => {
                self.charges.last().is_some_and(|last| last.filed == charge.filed)
                    && at - charge.filed < self.period
            }
            ModelKind::Log => at - charge.filed < self.period,
            ModelKind::Counter => self.file(at) - charge.filed <= 1,
            ModelKind::Buckets(buckets) => self.file(at) - charge.filed <= buckets,
        }
    }

    fn sum(&self, which: impl Fn(&ModelCharge) -> bool) -> i128 {
        self.charges.iter().filter(|charge| which(charge)).map(|charge| charge.units).sum()
    }

    /// Units in use at an instant, times the period.
    fn in_use(&self, at: i128) -> i128 {
        let at = at.max(self.mark);
        let units = match self.kind {
            ModelKind::Bucket => return self.capacity * self.period - self.level(at).0,
            ModelKind::Counter => {
                let current = self.sum(|charge| charge.filed == self.file(at));
                let previous = self.sum(|charge| charge.filed == self.file(at) - 1);
                let overlap = self.period - at.rem_euclid(self.period);
                previous * overlap / self.period + current
            }
            _ => self.sum(|charge| self.counts(charge, at)),
        };
        units * self.period
    }

    /// Tokens in the bucket at an instant, times the period: full at first, never more than full. And the
    /// excess, into which flows what finds the bucket full.
    fn level(&self, at: i128) -> (i128, i128) {
        let full = self.capacity * self.period;
        let first = self.charges.first().map_or(at, |first| first.filed);
        let nothing = CarriedUsage { at: first, counted: 0, excess: 0 };
        let CarriedUsage { at: mut last, counted, mut excess } = self.carried.unwrap_or(nothing);
        let mut level = full - counted;
        let flow = |excess: &mut i128, level: i128| {
            *excess = 0.max(*excess - 0.max(level - full));
            full.min(level)
        };
        for charge in &self.charges {
            level = flow(&mut excess, level + self.rate * (charge.filed - last));
            let before = level;
            level = flow(&mut excess, level - charge.units * self.period);
            match charge.reason {
                ModelChargeReason::Plain => {}
                ModelChargeReason::Refused => level = level.max(before.min(-full)),
                ModelChargeReason::OtherNumbers => {
                    let least = before.min(0);
                    excess += 0.max(least - level);
                    level = level.max(least);
                }
            }
            last = charge.filed;
        }
        level = flow(&mut excess, level + self.rate * (at - last));
        (level, excess)
    }

    fn fits(&self, cost: i128, at: i128) -> bool {
        cost == 0 || self.in_use(at) + cost * self.period <= self.capacity * self.period
    }

    /// Whether nothing tells this from a state that was never charged.
    fn is_fresh(&self, at: i128) -> bool {
        match self.kind {
            // A counter is there until its time is over, however little it weighs.
            ModelKind::Counter => self.sum(|charge| self.counts(charge, at.max(self.mark))) == 0,
            _ => self.in_use(at) == 0,
        }
    }

    /// The most that fits.
    fn remaining(&self, at: i128) -> i128 {
        match self.fits(self.capacity, at) {
            true => self.capacity,
            false => first(|cost| !self.fits(cost + 1, at)),
        }
    }

    /// Follows a clock that jumped back: what is in use at the mark is in use now.
    fn follow_clock_jump(&mut self, now: i128) -> bool {
        let ahead = self.mark - now;
        if ahead <= self.horizon() || ahead <= 1_000_000 {
            return false;
        }
        let back = self.file(self.mark) - self.file(now);
        for charge in &mut self.charges {
            charge.filed -= back;
        }
        if let Some(carried) = &mut self.carried {
            carried.at -= back;
        }
        self.mark = now;
        true
    }

    fn charge(&mut self, units: i128, reason: ModelChargeReason, now: i128) {
        self.follow_clock_jump(now);
        self.mark = self.mark.max(now);
        let filed = match (self.kind, self.charges.last()) {
            (ModelKind::FirstHit, Some(last)) if self.in_use(self.mark) > 0 => last.filed,
            _ => self.file(self.mark),
        };
        self.charges.push(ModelCharge { at: self.mark, filed, units, reason });
        self.round_as_stored();
    }

    /// Ends debt and excess where stores end them, and rounds up what is too large for a number of theirs, as they do
    /// when they write a bucket with excess. Few ticks are exact. More debt is whole microseconds of refill, and more
    /// excess is whole units.
    fn round_as_stored(&mut self) {
        if self.kind != ModelKind::Bucket {
            return;
        }
        let (level, excess) = self.level(self.mark);
        let (rate, period) = (self.rate, self.period);
        let tick = common_divisor(rate, period);
        let debt_max = (LONGEST_DEBT * rate).min(LARGEST * period);
        let up = |amount: i128, to: i128| (amount + to - 1) / to * to;
        let stored = |amount: i128, to: i128| {
            if amount <= LARGEST * tick { amount } else { up(amount, to) }
        };
        let debt = debt_max.min(self.capacity * period - level);
        let counted = if excess == 0 { debt } else { stored(debt, rate).min(debt_max) };
        let excess = stored(excess, period).min(LARGEST * period);
        self.carried = Some(CarriedUsage { at: self.mark, counted, excess });
        self.charges.clear();
    }
}

fn common_divisor(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The smallest whole number for which something holds that goes on holding.
fn first(holds: impl Fn(i128) -> bool) -> i128 {
    let mut high = 0;
    while !holds(high) {
        assert!(high < 1 << 60, "never holds");
        high = 2 * high + 1;
    }
    let mut low = high / 2;
    // It does not hold below `low`, and holds at `high`.
    while low < high {
        let middle = (low + high) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

/// The shortest wait from `now` until something holds that goes on holding.
fn wait(now: i128, holds: impl Fn(i128) -> bool) -> Wait {
    Wait::from_micros(first(|wait| holds(now + wait)) as u64)
}

impl KeyModel for AlgorithmModel {
    fn fresh(limit: &Limit, now: Micros) -> AlgorithmModel {
        let kind = match (limit.algorithm(), limit.align(), limit.precision()) {
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, ..) => ModelKind::Bucket,
            (Algorithm::FixedWindow, Align::Epoch, _) => ModelKind::Window(0),
            (Algorithm::FixedWindow, Align::Anchor(at), _) => ModelKind::Window(at.as_u64().into()),
            (Algorithm::FixedWindow, Align::FirstHit, _) => ModelKind::FirstHit,
            (Algorithm::SlidingWindowLog, ..) => ModelKind::Log,
            (Algorithm::SlidingWindowCounter, _, Precision::Estimate) => ModelKind::Counter,
            (Algorithm::SlidingWindowCounter, _, Precision::Buckets(k)) => {
                ModelKind::Buckets(k.into())
            }
        };
        AlgorithmModel {
            limit: limit.clone(),
            kind,
            rate: limit.units().into(),
            period: limit.period().as_micros() as i128,
            capacity: limit.capacity().into(),
            mark: now.as_u64().into(),
            charges: Vec::new(),
            carried: None,
        }
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }

    fn judge(&self, cost: u64, now: Micros) -> Outcome {
        let (cost, now) = (i128::from(cost), i128::from(now.as_u64()));
        let mut before = self.clone();
        let jumped = before.follow_clock_jump(now);
        let allowed = before.fits(cost, now);
        let mut after = before.clone();
        if allowed && cost > 0 {
            after.charge(cost, ModelChargeReason::Plain, now);
        }
        let remaining = after.remaining(now);
        let queued = self.limit.is_queue() && allowed && cost > 0;
        Outcome {
            allowed,
            remaining: remaining as u64,
            retry_after: match cost > self.capacity {
                true => Wait::NEVER,
                false => wait(now, |at| before.fits(cost, at)),
            },
            reset_after: wait(now, |at| after.is_fresh(at)),
            more_after: match remaining == after.capacity {
                true => Wait::ZERO,
                false => wait(now, |at| after.fits(remaining + 1, at)),
            },
            debt_for: wait(now, |at| after.in_use(at) <= after.capacity * after.period),
            // Until the backlog ahead is gone.
            delay: if queued { wait(now, |at| before.is_fresh(at)) } else { Wait::ZERO },
            served_at: Micros::new(before.mark.max(now) as u64),
            jumped,
            ..Outcome::default()
        }
    }

    fn take(&mut self, cost: u64, now: Micros) -> Outcome {
        let outcome = self.judge(cost, now);
        self.follow_clock_jump(now.as_u64().into());
        if outcome.allowed && cost > 0 {
            self.force(cost, now);
        }
        outcome
    }

    fn force(&mut self, units: u64, now: Micros) {
        self.charge(units.into(), ModelChargeReason::Plain, now.as_u64().into());
    }

    fn force_from_other_numbers(&mut self, units: u64, now: Micros) {
        self.charge(units.into(), ModelChargeReason::OtherNumbers, now.as_u64().into());
    }

    fn force_refused(&mut self, units: u64, now: Micros) {
        self.charge(units.into(), ModelChargeReason::Refused, now.as_u64().into());
    }

    /// Out of that charge while it counts, or without a receipt out of what counts as charged now.
    fn refund(&mut self, units: u64, charged_at: Option<Micros>, now: Micros) {
        let jumped = self.clone().follow_clock_jump(now.as_u64().into());
        // A refund moves nothing, so after a jump it looks at the state as it was.
        let at = if jumped { self.mark } else { self.mark.max(now.as_u64().into()) };
        let charged_at = charged_at.map(|at| i128::from(at.as_u64()));
        if self.kind == ModelKind::Bucket {
            if at - charged_at.unwrap_or(at) < self.horizon() {
                let units = -i128::from(units);
                let (at, filed) = (self.mark, self.mark);
                let reason = ModelChargeReason::Plain;
                self.charges.push(ModelCharge { at, filed, units, reason });
                self.round_as_stored();
            }
            return;
        }
        let model = self.clone();
        let ours = |charge: &ModelCharge| match charged_at {
            Some(charged_at) => model.counts(charge, at) && charge.at == charged_at,
            None if model.kind == ModelKind::Counter => charge.filed == model.file(at),
            None => model.counts(charge, at),
        };
        let mut left = i128::from(units);
        for charge in self.charges.iter_mut().rev().filter(|charge| ours(charge)) {
            let taken = charge.units.min(left);
            charge.units -= taken;
            left -= taken;
        }
    }

    /// What is counted is counted, whatever the numbers are. A bucket keeps what is used, to the tick, and
    /// counts as much as it can hold. What is not kept: as if what stays used had been charged at once, now.
    fn renumber(&mut self, new: &Limit, now: Micros) {
        if new.on_change() == OnChange::Keep && self.kind != ModelKind::Bucket {
            let fresh = AlgorithmModel::fresh(new, now);
            *self = AlgorithmModel {
                mark: self.mark,
                charges: std::mem::take(&mut self.charges),
                ..fresh
            };
            return;
        }
        self.follow_clock_jump(now.as_u64().into());
        let at = self.mark.max(now.as_u64().into());
        let (left, old) = (self.remaining(at), self.capacity);
        let usage =
            if self.kind == ModelKind::Bucket { self.in_use(at) + self.level(at).1 } else { 0 };
        let mut renumbered = AlgorithmModel::fresh(new, Micros::new(at as u64));
        let capacity = renumbered.capacity;
        let used = match new.on_change() {
            OnChange::Keep => {
                let tick = common_divisor(renumbered.rate, self.period);
                let usage = (usage + tick - 1) / tick * tick;
                let counted = usage.min(capacity * self.period);
                let excess = usage - counted;
                renumbered.mark = if usage > 0 { at } else { 0 };
                renumbered.carried = Some(CarriedUsage { at, counted, excess });
                renumbered.round_as_stored();
                *self = renumbered;
                return;
            }
            OnChange::Reset => 0,
            OnChange::Scale => capacity - left * capacity / old,
        };
        renumbered.charge(used, ModelChargeReason::Plain, at);
        *self = renumbered;
    }

    fn is_fresh(&self, now: Micros) -> bool {
        let mut model = self.clone();
        model.follow_clock_jump(now.as_u64().into());
        let at = model.mark.max(now.as_u64().into());
        let excess = if self.kind == ModelKind::Bucket { model.level(at).1 } else { 0 };
        AlgorithmModel::is_fresh(&model, at) && excess == 0
    }

    fn balance(&self, now: Micros) -> i64 {
        let mut model = self.clone();
        model.follow_clock_jump(now.as_u64().into());
        let in_use = model.in_use(now.as_u64().into());
        let used = first(|units| units * self.period >= in_use);
        (self.capacity - used) as i64
    }
}
