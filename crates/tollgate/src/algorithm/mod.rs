//! The algorithms: pure, exact, without clock or storage.
//!
//! Each algorithm is one file with one small state and the same four steps, the [`Strategy`]:
//! *judge* reads a state and answers, *charge* writes what was granted, *refund* gives back,
//! *renumber* carries a state over to new numbers. Time is an argument. The memory store runs
//! exactly these functions inside its slots, and every other store is compared with them.
//!
//! Four rules hold for all of them and are written here once:
//!
//! * A caller whose clock is behind the state's last charge (its *mark*) is served as of the mark;
//!   its waits count from its own clock.
//! * A mark more than one horizon (a period, or a full refill) and more than one second ahead of now
//!   means that the clock jumped: the state moves to now and keeps its level. This is the one thing
//!   that a refusal or a peek may write, and it is written as a charge of 0. The caller of these
//!   functions makes sure that `now` is not merely old: see [`Now`](crate::clock::Now).
//! * Otherwise only a charge moves the mark: neither peeks nor refusals nor refunds do.
//! * Cost 0 is a peek: allowed and free. A cost above the capacity never passes.
//!
//! A new algorithm is a file here and its lines in this one: [`Algorithm`], [`State`] and
//! `LimitStateKind` with their macros. Everything else in this crate walks [`Algorithm::ALL`] or goes
//! through the traits [`Strategy`] and [`CompactState`].

use std::fmt;
use std::str::FromStr;

use crate::decision::Outcome;
use crate::limit::{Limit, LimitError, OnChange, Precision};
use crate::time::{MAX_EXACT, Micros, Wait};

mod divisor;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

pub(crate) use divisor::Divisor;

/// A rate limiting algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Bursts up to a capacity, refilled continuously.
    TokenBucket,
    /// The same numbers as a token bucket, counted up from empty; as a queue it delays instead of
    /// refusing.
    LeakyBucket,
    /// N per window, counted from zero in each.
    FixedWindow,
    /// N in any trailing period, exactly.
    SlidingWindowLog,
    /// N in the trailing period, estimated from two counters or bounded by sub-buckets.
    SlidingWindowCounter,
}

impl Algorithm {
    /// The one list of algorithms: parsers, documents, tests and benchmarks walk it. Snapshots and shared
    /// stores number algorithms by it, so a new one goes to the end.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter,
    ];

    /// The names of [`Algorithm::ALL`], in the same order.
    pub const NAMES: [&'static str; Algorithm::ALL.len()] = {
        let mut names = [""; Algorithm::ALL.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = Algorithm::ALL[index].name();
            index += 1;
        }
        names
    };

    /// The name used in rules files, on the command line and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::LeakyBucket => "leaky_bucket",
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::SlidingWindowLog => "sliding_window_log",
            Algorithm::SlidingWindowCounter => "sliding_window_counter",
        }
    }

    /// Returns true if the algorithm has a burst apart from its rate.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = LimitError;

    fn from_str(name: &str) -> Result<Algorithm, LimitError> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            let names = Algorithm::NAMES.join(", ");
            LimitError::new(format!("there is no algorithm {name:?}: write one of {names}"))
        })
    }
}

/// The steps of every algorithm. `Self` is its state of one key.
pub trait Strategy: Sized {
    /// Answers a take of `cost` now. The outcome describes the state after the take if it is
    /// allowed, and the present state otherwise.
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome;

    /// Units in use now, rounded up; more than the capacity when in debt.
    fn used(&self, limit: &Limit, now: Micros) -> u64;

    /// Charges `cost`, whatever `judge` says: charging more than is left makes debt.
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros);

    /// Charges `cost` for a request that was refused. Same as [`Strategy::charge`], but debt that a
    /// bucket collects from refusals ends at one capacity.
    #[inline]
    fn charge_refused(&mut self, limit: &Limit, cost: u64, now: Micros) {
        self.charge(limit, cost, now);
    }

    /// Charges `cost` that was granted under other numbers than those of this state. Same as
    /// [`Strategy::charge`], but a bucket owes no more than its capacity for it: the rest is excess, as if the
    /// numbers had changed afterwards.
    #[inline]
    fn charge_from_other_numbers(&mut self, limit: &Limit, cost: u64, now: Micros) {
        self.charge(limit, cost, now);
    }

    /// Gives back up to `units` that were charged at `charged_at`; without an instant, as if
    /// charged now. Units that have been refilled or have expired since are not given back again.
    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros);

    /// Converts a state from `old` numbers to `new` ones, as `on_change` of `new` says. The old
    /// numbers count up to now: whatever they have refilled or expired by then is free. Windows,
    /// counters and logs do not change if `on_change` keeps the units used.
    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros);

    /// Answers like [`Strategy::judge`], but the outcome describes the present state even if
    /// allowed.
    #[inline]
    fn peek(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        let asked = self.judge(limit, cost, now);
        if !asked.allowed || cost == 0 {
            return asked;
        }
        Outcome { delay: asked.delay, ..self.judge(limit, 0, now) }
    }

    /// The instant of the last charge.
    fn mark(&self) -> u64;

    /// Returns true if a state of this limit can have these numbers. States that come from a file or
    /// another store have to be tested, because they may hold anything.
    fn is_possible(&self, limit: &Limit) -> bool;

    /// The wait until this state answers like a fresh one, under these numbers and under any that may
    /// replace them, so that it may be dropped.
    #[inline]
    fn fresh_after(&self, limit: &Limit, now: Micros) -> Wait {
        self.judge(limit, 0, now).reset_after
    }

    /// Returns true if this state answers like a fresh one, so that it may be dropped.
    #[inline]
    fn is_fresh(&self, limit: &Limit, now: Micros) -> bool {
        self.fresh_after(limit, now).is_zero()
    }
}

/// A state of three numbers. It fits completely in a slot of the table, and in a short value of a shared
/// store.
pub trait CompactState: Strategy + Copy {
    /// The three numbers; the first is the mark.
    fn to_numbers(self) -> [u64; 3];

    /// The state of three numbers; see [`Strategy::is_possible`].
    fn from_numbers(numbers: [u64; 3]) -> Self;

    /// The longest time after its last charge for which a state without debt can differ from a fresh
    /// one, in microseconds.
    fn memory_us(limit: &Limit) -> u64;

    /// Judges a take and charges it, if the fast path can.
    #[inline(always)]
    fn take(
        self,
        limit: &Limit,
        cost: u64,
        now: Micros,
    ) -> Option<TakenState<Self, impl FnOnce() -> Outcome>> {
        judge_and_charge(self, limit, cost, now)
    }

    /// The three numbers for a script that computes in floating point.
    fn to_script_numbers(self, _limit: &Limit) -> [u64; 3] {
        self.to_numbers()
    }

    /// The state of three numbers of a script; `None` if no state of this limit can have them.
    fn from_script_numbers(_limit: &Limit, numbers: [u64; 3]) -> Option<Self> {
        Some(Self::from_numbers(numbers))
    }
}

/// A state after a take. The waits of its outcome are computed later, because no other thread has
/// to wait for them: a store writes the state first.
pub struct TakenState<S, F> {
    /// True if the take is admitted.
    pub(crate) allowed: bool,
    /// The state with the cost charged; it counts only if the take is admitted.
    pub(crate) charged: S,
    /// Computes the outcome.
    pub(crate) outcome: F,
}

#[inline(always)]
fn judge_and_charge<S: CompactState>(
    state: S,
    limit: &Limit,
    cost: u64,
    now: Micros,
) -> Option<TakenState<S, impl FnOnce() -> Outcome + use<S>>> {
    let outcome = state.judge(limit, cost, now);
    let mut charged = state;
    charged.charge(limit, cost, now);
    let taken = TakenState { allowed: outcome.allowed, charged, outcome: move || outcome };
    (!outcome.jumped).then_some(taken)
}

/// The kind of state of a limit, with staggered windows apart from others: their limit has to be
/// shifted to the key before the state can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitStateKind {
    Token,
    Leaky,
    Window,
    /// A fixed window whose start depends on the key.
    Staggered,
    Counter,
    Log,
}

impl LimitStateKind {
    pub(crate) fn new(algorithm: Algorithm, precision: Precision, stagger: bool) -> LimitStateKind {
        match (algorithm, precision) {
            (Algorithm::TokenBucket, _) => LimitStateKind::Token,
            (Algorithm::LeakyBucket, _) => LimitStateKind::Leaky,
            (Algorithm::FixedWindow, _) if stagger => LimitStateKind::Staggered,
            (Algorithm::FixedWindow, _) => LimitStateKind::Window,
            (Algorithm::SlidingWindowLog, _) | (_, Precision::Buckets(_)) => LimitStateKind::Log,
            (Algorithm::SlidingWindowCounter, Precision::Estimate) => LimitStateKind::Counter,
        }
    }

    /// The kind of state that is stored: staggered windows have the same as others.
    #[inline(always)]
    pub(crate) fn stored(self) -> LimitStateKind {
        match self {
            LimitStateKind::Staggered => LimitStateKind::Window,
            kind => kind,
        }
    }
}

/// Runs code with the type of the state of a kind, if it is a [`CompactState`]; runs `else` for logs, and
/// for staggered windows unless the kind is that of [`LimitStateKind::stored`].
macro_rules! with_compact_state {
    ($kind:expr, $type:ident => $code:expr, else $other:expr) => {
        $crate::algorithm::with_compact_state!(
            $kind, $type => $code, else $other,
            Token($crate::algorithm::token_bucket::TokenBucketState),
            Leaky($crate::algorithm::leaky_bucket::LeakyBucketState),
            Window($crate::algorithm::fixed_window::FixedWindowState),
            Counter($crate::algorithm::sliding_window_counter::SlidingCounterState),
        )
    };
    ($kind:expr, $type:ident => $code:expr, else $other:expr, $($variant:ident($state:ty),)*) => {
        match $kind {
            $($crate::algorithm::LimitStateKind::$variant => {
                type $type = $state;
                $code
            })*
            $crate::algorithm::LimitStateKind::Staggered
            | $crate::algorithm::LimitStateKind::Log => $other,
        }
    };
}
pub(crate) use with_compact_state;

/// The state of one key under one limit, of any algorithm. `L` is the log, whose entries a store may keep
/// in a place of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<L = sliding_window_log::SlidingLogState> {
    /// The state of a token bucket.
    Token(token_bucket::TokenBucketState),
    /// The state of a leaky bucket.
    Leaky(leaky_bucket::LeakyBucketState),
    /// The state of a fixed window.
    Window(fixed_window::FixedWindowState),
    /// The state of a sliding window log, or of a counter in sub-buckets.
    Log(L),
    /// The state of a sliding window counter.
    Counter(sliding_window_counter::SlidingCounterState),
}

/// Calls one step on the state inside the enum.
macro_rules! dispatch {
    ($state:expr, $inner:ident => $step:expr) => {
        match $state {
            State::Token($inner) => $step,
            State::Leaky($inner) => $step,
            State::Window($inner) => $step,
            State::Log($inner) => $step,
            State::Counter($inner) => $step,
        }
    };
}

/// Conversions that all compact states have in common.
macro_rules! compact_states {
    ($($variant:ident($state:ty),)*) => {
        $(impl<L> From<$state> for State<L> {
            #[inline]
            fn from(state: $state) -> State<L> {
                State::$variant(state)
            }
        })*

        impl<L> State<L> {
            /// The three numbers of a compact state; `None` for a log.
            #[inline]
            pub(crate) fn to_numbers(&self) -> Option<[u64; 3]> {
                match self {
                    $(State::$variant(state) => Some(state.to_numbers()),)*
                    State::Log(_) => None,
                }
            }

            /// The three numbers of a compact state with which a script computes; `None` for a log.
            pub fn to_script_numbers(&self, limit: &Limit) -> Option<[u64; 3]> {
                match self {
                    $(State::$variant(state) => Some(state.to_script_numbers(limit)),)*
                    State::Log(_) => None,
                }
            }

            /// A copy with another kind of log.
            #[inline]
            pub(crate) fn with_log<M>(&self, log: impl FnOnce(&L) -> M) -> State<M> {
                match self {
                    $(State::$variant(state) => State::$variant(*state),)*
                    State::Log(entries) => State::Log(log(entries)),
                }
            }

            /// Copies another compact state of the same kind. Returns false if there is none.
            pub(crate) fn copy_compact<M>(&mut self, other: &State<M>) -> bool {
                match (self, other) {
                    $((State::$variant(state), State::$variant(other)) => *state = *other,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

compact_states! {
    Token(token_bucket::TokenBucketState),
    Leaky(leaky_bucket::LeakyBucketState),
    Window(fixed_window::FixedWindowState),
    Counter(sliding_window_counter::SlidingCounterState),
}

impl<L> State<L> {
    /// The compact state of three numbers; `None` if the limit keeps a log.
    #[inline]
    pub(crate) fn from_numbers(limit: &Limit, numbers: [u64; 3]) -> Option<State<L>> {
        with_compact_state!(
            limit.kind.stored(),
            S => Some(S::from_numbers(numbers).into()),
            else None
        )
    }
}

impl<L> State<L> {
    /// The numbers of a bucket; `None` for any other state.
    pub fn bucket(&self) -> Option<&token_bucket::TokenBucketState> {
        match self {
            State::Token(bucket) | State::Leaky(leaky_bucket::LeakyBucketState(bucket)) => {
                Some(bucket)
            }
            _ => None,
        }
    }

    /// The numbers of a bucket, to be changed; `None` for any other state.
    pub fn bucket_mut(&mut self) -> Option<&mut token_bucket::TokenBucketState> {
        match self {
            State::Token(bucket) | State::Leaky(leaky_bucket::LeakyBucketState(bucket)) => {
                Some(bucket)
            }
            _ => None,
        }
    }
}

impl State {
    /// The state of a key without any charge.
    pub fn fresh(limit: &Limit, now: Micros) -> State {
        State::from_numbers(limit, [now.as_u64(), 0, 0])
            .unwrap_or_else(|| State::Log(sliding_window_log::SlidingLogState::fresh(now)))
    }

    /// The state of three numbers of a script; `None` if no state of this limit can have them, or if the
    /// limit keeps a log.
    pub fn from_script_numbers(limit: &Limit, numbers: [u64; 3]) -> Option<State> {
        let state: State = with_compact_state!(
            limit.kind.stored(),
            S => S::from_script_numbers(limit, numbers)?.into(),
            else return None
        );
        state.is_possible(limit).then_some(state)
    }

    /// The instant of the last charge.
    pub fn mark(&self) -> u64 {
        Strategy::mark(self)
    }

    /// Returns true if a state of this limit can have these numbers; see [`Strategy::is_possible`].
    pub fn is_possible(&self, limit: &Limit) -> bool {
        Strategy::is_possible(self, limit)
    }

    /// Units left, rounded down; negative when in debt.
    pub fn balance(&self, limit: &Limit, now: Micros) -> i64 {
        limit.capacity() as i64 - self.used(limit, now) as i64
    }
}

impl<L: Strategy> Strategy for State<L> {
    fn mark(&self) -> u64 {
        dispatch!(self, state => state.mark())
    }
    fn is_possible(&self, limit: &Limit) -> bool {
        dispatch!(self, state => state.is_possible(limit))
    }
    fn judge(&self, limit: &Limit, cost: u64, now: Micros) -> Outcome {
        dispatch!(self, state => state.judge(limit, cost, now))
    }
    fn used(&self, limit: &Limit, now: Micros) -> u64 {
        dispatch!(self, state => state.used(limit, now))
    }
    fn charge(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge(limit, cost, now));
    }
    fn charge_refused(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge_refused(limit, cost, now));
    }
    fn charge_from_other_numbers(&mut self, limit: &Limit, cost: u64, now: Micros) {
        dispatch!(self, state => state.charge_from_other_numbers(limit, cost, now));
    }
    fn refund(&mut self, limit: &Limit, units: u64, charged_at: Option<Micros>, now: Micros) {
        dispatch!(self, state => state.refund(limit, units, charged_at, now));
    }
    fn renumber(&mut self, old: &Limit, new: &Limit, now: Micros) {
        dispatch!(self, state => state.renumber(old, new, now));
    }
    fn fresh_after(&self, limit: &Limit, now: Micros) -> Wait {
        dispatch!(self, state => state.fresh_after(limit, now))
    }
}

/// Answers a take of `cost` now. Pure; reads only.
pub fn judge(limit: &Limit, state: &State, cost: u64, now: Micros) -> Outcome {
    state.judge(limit, cost, now)
}

/// Charges `cost`. Pure; the caller has judged first, or makes debt on purpose.
pub fn charge(limit: &Limit, state: &mut State, cost: u64, now: Micros) {
    state.charge(limit, cost, now);
}

/// Judges, and charges if allowed: one take, as every store must answer it.
pub fn take(limit: &Limit, state: &mut State, cost: u64, now: Micros) -> Outcome {
    let outcome = judge(limit, state, cost, now);
    if outcome.allowed && cost > 0 {
        charge(limit, state, cost, now);
    } else if outcome.jumped {
        charge(limit, state, 0, now);
    }
    outcome
}

/// Charges `cost` for a request that was refused; see [`Strategy::charge_refused`].
pub fn charge_refused(limit: &Limit, state: &mut State, cost: u64, now: Micros) {
    state.charge_refused(limit, cost, now);
}

/// Charges `cost` that was granted under other numbers; see [`Strategy::charge_from_other_numbers`].
pub fn charge_from_other_numbers(limit: &Limit, state: &mut State, cost: u64, now: Micros) {
    state.charge_from_other_numbers(limit, cost, now);
}

/// Gives back up to `units`; see [`Strategy::refund`].
pub fn refund(limit: &Limit, state: &mut State, units: u64, at: Option<Micros>, now: Micros) {
    state.refund(limit, units, at, now);
}

/// The wait until a state may be dropped; see [`Strategy::fresh_after`].
pub fn fresh_after(limit: &Limit, state: &State, now: Micros) -> Wait {
    state.fresh_after(limit, now)
}

/// Carries a state over to new numbers; see [`Strategy::renumber`].
pub fn renumber(state: &mut State, old: &Limit, new: &Limit, now: Micros) {
    state.renumber(old, new, now);
}

/// The largest lead of a mark over now that never counts as a jump of the clock, however short a
/// limit's horizon is: threads pause, and the clocks of machines differ.
pub const JUMP_US_MIN: u64 = 1_000_000;

/// Returns true if numbers of a state are within the range of every store.
fn are_exact(numbers: [u64; 3]) -> bool {
    numbers.iter().all(|number| *number <= MAX_EXACT)
}

/// The largest lead of a state's mark over now that is not a jump of the clock, for a limit whose
/// states are fresh again after `horizon_us`.
#[inline]
pub const fn lag_us_max(horizon_us: u64) -> u64 {
    if horizon_us > JUMP_US_MIN { horizon_us } else { JUMP_US_MIN }
}

/// The instant at which a check is answered: never before the state's mark.
#[derive(Clone, Copy)]
pub(crate) struct ServedInstant {
    /// The instant the state is read at.
    pub(crate) at: u64,
    /// Microseconds by which the caller's clock is behind that instant.
    pub(crate) lag: u64,
    /// Microseconds by which the state is moved back because the clock jumped; almost always 0.
    pub(crate) moved: u64,
}

impl ServedInstant {
    #[inline]
    pub(crate) fn new(mark: u64, now: Micros, horizon: u64) -> ServedInstant {
        let now = now.as_u64();
        if mark <= now {
            ServedInstant { at: now, lag: 0, moved: 0 }
        } else if mark - now <= lag_us_max(horizon) {
            ServedInstant { at: mark, lag: mark - now, moved: 0 }
        } else {
            ServedInstant { at: now, lag: 0, moved: mark - now }
        }
    }
}

/// Returns true if a state needs no conversion to these numbers, whichever numbers wrote it.
/// Windows, counters and logs keep their counts whatever N is. A bucket has to be converted: the
/// length of its debt depends on the rate, and debt above the new capacity is dropped because it
/// would take long to drain.
pub(crate) fn keeps_state(new: &Limit) -> bool {
    new.on_change() == OnChange::Keep && !new.algorithm().is_bucket()
}

/// Returns true if what is used is refilled at the rate of these numbers, so that a refusal by them has to
/// convert the state: otherwise the wait that it tells would not come true. A limit that starts fresh on
/// a change refuses only what it can never grant.
pub(crate) fn is_paced(new: &Limit) -> bool {
    new.on_change() != OnChange::Reset && new.algorithm().is_bucket()
}

/// `used` after a change of numbers, as the new limit's `on_change` says.
pub(crate) fn used_after_change(used: u64, old: &Limit, new: &Limit) -> u64 {
    let (old_capacity, new_capacity) = (old.capacity(), new.capacity());
    match new.on_change() {
        OnChange::Keep if keeps_state(new) => used,
        OnChange::Keep => used.min(new_capacity),
        OnChange::Reset => 0,
        OnChange::Scale => {
            let left = u128::from(old_capacity.saturating_sub(used));
            let scaled = left * u128::from(new_capacity) / u128::from(old_capacity);
            new_capacity - scaled as u64
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row of a table: at µs, cost, allowed, remaining, retry µs (−1: never).
    pub(crate) type TakeRow = (u64, u64, bool, u64, i64);

    /// Runs takes against a fresh state and compares each answer.
    pub(crate) fn check(limit: Limit, rows: &[TakeRow]) {
        let mut state = State::fresh(&limit, Micros::new(rows[0].0));
        for (index, &(at, cost, allowed, remaining, retry)) in rows.iter().enumerate() {
            let now = Micros::new(at);
            let got = take(&limit, &mut state, cost, now);
            let got_retry = got.retry_after.as_micros().map_or(-1, |micros| micros as i64);
            assert_eq!(
                (got.allowed, got.remaining, got_retry),
                (allowed, remaining, retry),
                "row {index} of {limit}"
            );
            let after = judge(&limit, &state, 0, now);
            let (left, waits) = (after.remaining, (after.reset_after, after.more_after));
            let judged = (got.remaining, (got.reset_after, got.more_after));
            assert_eq!(
                (left, waits),
                judged,
                "row {index} of {limit}: charged otherwise than judged"
            );
        }
    }

    pub(crate) fn limit(text: &str) -> Limit {
        text.parse().unwrap()
    }

    pub(crate) fn limit_with(text: &str, algorithm: Algorithm) -> Limit {
        crate::limit::parse_rate(text).unwrap().algorithm(algorithm).build().unwrap()
    }

    /// Runs `act` at an instant given in microseconds.
    pub(crate) fn at_instant<T>(at: u64, act: impl FnOnce(Micros) -> T) -> T {
        act(Micros::new(at))
    }

    #[test]
    fn names_round_trip() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
    }
}
