//! One way to ask every implementation: the vectors and the properties speak to an [`Executor`].
//!
//! A new store becomes testable by implementing `Executor`. What only knows one key at a time
//! implements [`KeyModel`] and is made an executor by [`KeyedExecutor`].

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use std::collections::HashMap;

use tollgate::algorithm::{self, State};
use tollgate::{Check, Decision, Limit, Limiter, Micros, OnChange, Outcome, Wait};

/// Whatever decides for keys: the pure core, the naive model, a table, a server.
pub(crate) trait Executor {
    /// Judges, and charges if allowed.
    fn take(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome;
    /// Judges `cost` and charges nothing; what is reported is the present.
    fn peek(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome;
    /// Charges whatever is left; returns the balance, which may be negative.
    fn force(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64;
    /// Gives back as if charged now; returns the balance.
    fn refund(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64;
    /// Charges all limits or none.
    fn take_all(&mut self, key: &str, limits: &[Limit], cost: u64, now: Micros) -> CombinedAnswer;
}

/// The answer of several limits at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CombinedAnswer {
    pub(crate) allowed: bool,
    /// Units left in each, after the decision.
    pub(crate) remaining: Vec<u64>,
    /// The longest wait of those that refuse.
    pub(crate) retry_after: Wait,
    /// Indices of the limits that refuse.
    pub(crate) violated: Vec<usize>,
}

/// Why nothing was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BookingRefusal {
    Never,
    TooLate,
}

/// The booking step of *wait until ready*: charges now and says how long to hold the work.
pub(crate) fn book(
    executor: &mut impl Executor,
    (key, limit): (&str, &Limit),
    units: u64,
    wait_max: Wait,
    now: Micros,
) -> Result<Wait, BookingRefusal> {
    let wait = executor.peek(key, limit, units, now).retry_after;
    if wait.is_never() {
        return Err(BookingRefusal::Never);
    }
    if wait > wait_max {
        return Err(BookingRefusal::TooLate);
    }
    executor.force(key, limit, units, now);
    Ok(wait)
}

/// What is remembered about one key under one limit.
pub(crate) trait KeyModel: Clone {
    fn fresh(limit: &Limit, now: Micros) -> Self;
    fn limit(&self) -> &Limit;
    fn judge(&self, cost: u64, now: Micros) -> Outcome;
    fn take(&mut self, cost: u64, now: Micros) -> Outcome;
    fn force(&mut self, units: u64, now: Micros);
    /// Charges units that were granted under other numbers.
    fn force_from_other_numbers(&mut self, units: u64, now: Micros);
    /// Charges for a request that was refused.
    fn force_refused(&mut self, units: u64, now: Micros);
    fn refund(&mut self, units: u64, charged_at: Option<Micros>, now: Micros);
    fn renumber(&mut self, new: &Limit, now: Micros);
    /// True if nothing tells it from one that was never charged, under any numbers.
    fn is_fresh(&self, now: Micros) -> bool;
    /// Units left, rounded down; negative when in debt.
    fn balance(&self, now: Micros) -> i64;

    /// Judges `cost`; what is reported is the present.
    fn peek(&self, cost: u64, now: Micros) -> Outcome {
        let asked = self.judge(cost, now);
        match asked.allowed && cost > 0 {
            true => Outcome { delay: asked.delay, ..self.judge(0, now) },
            false => asked,
        }
    }
}

/// The functions of `tollgate::algorithm` on one state.
#[derive(Clone, Debug)]
pub(crate) struct CoreModel {
    limit: Limit,
    pub(crate) state: State,
}

impl KeyModel for CoreModel {
    fn fresh(limit: &Limit, now: Micros) -> CoreModel {
        CoreModel { limit: limit.clone(), state: State::fresh(limit, now) }
    }

    fn limit(&self) -> &Limit {
        &self.limit
    }

    fn judge(&self, cost: u64, now: Micros) -> Outcome {
        algorithm::judge(&self.limit, &self.state, cost, now)
    }

    fn take(&mut self, cost: u64, now: Micros) -> Outcome {
        algorithm::take(&self.limit, &mut self.state, cost, now)
    }

    fn force(&mut self, units: u64, now: Micros) {
        algorithm::charge(&self.limit, &mut self.state, units, now);
    }

    fn force_from_other_numbers(&mut self, units: u64, now: Micros) {
        algorithm::charge_from_other_numbers(&self.limit, &mut self.state, units, now);
    }

    fn force_refused(&mut self, units: u64, now: Micros) {
        algorithm::charge_refused(&self.limit, &mut self.state, units, now);
    }

    fn refund(&mut self, units: u64, charged_at: Option<Micros>, now: Micros) {
        algorithm::refund(&self.limit, &mut self.state, units, charged_at, now);
    }

    fn renumber(&mut self, new: &Limit, now: Micros) {
        algorithm::renumber(&mut self.state, &self.limit, new, now);
        self.limit = new.clone();
    }

    fn is_fresh(&self, now: Micros) -> bool {
        algorithm::fresh_after(&self.limit, &self.state, now).is_zero()
    }

    fn balance(&self, now: Micros) -> i64 {
        self.state.balance(&self.limit, now)
    }
}

/// Decides together: every subject is charged or none is.
pub(crate) fn take_together<S: KeyModel>(
    subjects: &mut [S],
    cost: u64,
    now: Micros,
) -> CombinedAnswer {
    let judged: Vec<Outcome> = subjects.iter().map(|subject| subject.judge(cost, now)).collect();
    let violated: Vec<usize> = (0..judged.len()).filter(|&index| !judged[index].allowed).collect();
    // A refusal charges nothing, but a state whose clock jumped follows it even then.
    let charged = if violated.is_empty() { cost } else { 0 };
    for subject in &mut *subjects {
        subject.take(charged, now);
    }
    CombinedAnswer {
        allowed: violated.is_empty(),
        remaining: subjects.iter().map(|subject| subject.judge(0, now).remaining).collect(),
        retry_after: violated.iter().map(|&i| judged[i].retry_after).max().unwrap_or(Wait::ZERO),
        violated,
    }
}

/// An executor that keeps one subject for each key and limit, under the numbers that last judged a take;
/// where no rate matters, under those that last granted something. Others only look at it.
#[derive(Debug)]
pub(crate) struct KeyedExecutor<S> {
    subjects: HashMap<(String, u64), S>,
}

impl<S: KeyModel> KeyedExecutor<S> {
    pub(crate) fn new() -> KeyedExecutor<S> {
        KeyedExecutor { subjects: HashMap::new() }
    }

    /// The subject as it is. One that is fresh is as good as none, whichever numbers wrote it.
    fn subject(&mut self, key: &str, limit: &Limit, now: Micros) -> &mut S {
        let place = (key.to_string(), limit.id());
        let subject = self.subjects.entry(place).or_insert_with(|| S::fresh(limit, now));
        if subject.limit() != limit && subject.is_fresh(now) {
            subject.renumber(limit, now);
        }
        subject
    }

    /// A copy as these numbers see it.
    fn renumbered_copy(&mut self, key: &str, limit: &Limit, now: Micros) -> S {
        let mut subject = self.subject(key, limit, now).clone();
        if subject.limit() != limit {
            subject.renumber(limit, now);
        }
        subject
    }
}

/// True if what is used flows back at the rate of the numbers, so that a refusal by others converts it.
fn is_converted(limit: &Limit) -> bool {
    limit.algorithm().is_bucket() && limit.on_change() != OnChange::Reset
}

impl<S: KeyModel> Executor for KeyedExecutor<S> {
    fn take(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        let mut seen = self.renumbered_copy(key, limit, now);
        let outcome = seen.take(cost, now);
        match (outcome.allowed || is_converted(limit)) && cost > 0 {
            true => *self.subject(key, limit, now) = seen,
            // A state whose clock jumped follows it even then.
            false => _ = self.subject(key, limit, now).take(0, now),
        }
        outcome
    }

    fn peek(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        self.renumbered_copy(key, limit, now).peek(cost, now)
    }

    fn force(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        let subject = self.subject(key, limit, now);
        match subject.limit() == limit {
            true => subject.force(units, now),
            false => subject.force_from_other_numbers(units, now),
        }
        self.renumbered_copy(key, limit, now).balance(now)
    }

    fn refund(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        self.subject(key, limit, now).refund(units, None, now);
        self.renumbered_copy(key, limit, now).balance(now)
    }

    fn take_all(&mut self, key: &str, limits: &[Limit], cost: u64, now: Micros) -> CombinedAnswer {
        let mut subjects: Vec<S> =
            limits.iter().map(|limit| self.renumbered_copy(key, limit, now)).collect();
        let together = take_together(&mut subjects, cost, now);
        for (limit, subject) in limits.iter().zip(subjects) {
            match (together.allowed || is_converted(limit)) && cost > 0 {
                true => *self.subject(key, limit, now) = subject,
                false => _ = self.subject(key, limit, now).take(0, now),
            }
        }
        together
    }
}

/// The limiter with its table, as programs use it.
#[derive(Debug)]
pub(crate) struct TableExecutor(pub(crate) Limiter);

impl TableExecutor {
    pub(crate) fn new() -> TableExecutor {
        TableExecutor(Limiter::with_capacity(1_000))
    }
}

/// A decision as one limit's outcome.
pub(crate) fn outcome_of(decision: &Decision) -> Outcome {
    Outcome {
        allowed: decision.allowed(),
        remaining: decision.remaining(),
        retry_after: decision.retry_after(),
        reset_after: decision.reset_after(),
        more_after: decision.more_after(),
        debt_for: decision.outcome().debt_for,
        delay: decision.delay(),
        ..Outcome::default()
    }
}

impl Executor for TableExecutor {
    fn take(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        outcome_of(&self.0.at(now).take(limit, key, cost))
    }

    fn peek(&mut self, key: &str, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        outcome_of(&self.0.at(now).peek(limit, key, cost))
    }

    fn force(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        let _ = self.0.at(now).force(limit, key, units);
        self.0.at(now).balance(limit, key)
    }

    fn refund(&mut self, key: &str, limit: &Limit, units: u64, now: Micros) -> i64 {
        self.0.at(now).grant(limit, key, units);
        self.0.at(now).balance(limit, key)
    }

    fn take_all(&mut self, key: &str, limits: &[Limit], cost: u64, now: Micros) -> CombinedAnswer {
        let checks: Vec<Check<'_>> =
            limits.iter().map(|limit| Check::new(limit, key).cost(cost)).collect();
        let mut outcomes = vec![Outcome::default(); limits.len()];
        let decision = self.0.at(now).decide_each(&checks, &mut outcomes);
        CombinedAnswer {
            allowed: decision.allowed(),
            remaining: outcomes.iter().map(|outcome| outcome.remaining).collect(),
            retry_after: decision.retry_after(),
            violated: (0..limits.len()).filter(|&index| decision.violates(index)).collect(),
        }
    }
}
