//! What [`Shared`](crate::Shared) needs of a store that several instances share, beside answers.

use std::future::Future;
use std::time::Duration;

use arrayvec::ArrayVec;
use tokio::time::Instant;
use tollgate::algorithm::State;
use tollgate::decision::MAX_LIMITS;
use tollgate::{Check, Decision, Key, Limit, Micros, Outcome, Receipt, Store};

use crate::blocks::KeyHash;
use crate::error::StoreError;

/// A store that several instances share.
pub trait Remote: Store<Error = StoreError> + 'static {
    /// How long an answer is waited for, however many questions it takes.
    fn timeout(&self) -> Duration;

    /// As [`Store::decide_each`]; `seen` gets what the answer was made of.
    fn decide_seen(
        &self,
        checks: &[Check<'_>],
        when: When,
        outcomes: &mut [Outcome],
        seen: &mut Seen,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// A key as the store has it: short, however long the key is.
    fn hash(&self, key: Key<'_>) -> KeyHash;

    /// Tells the store of units that were moved before, each as of its own instant. `limit` is the one
    /// that applies to the key. The state after it and the store's clock, unless all that was told is one
    /// refund.
    fn settle(
        &self,
        state: StateName,
        limit: &Limit,
        late: &[LateUnits],
        when: When,
    ) -> impl Future<Output = Result<Option<(State, Micros)>, StoreError>> + Send;

    /// How often the store could not give back by itself what somebody was charged who no longer waited.
    fn refunds_lost(&self) -> u64;

    /// Writes down that an instance is about to hold budget of a key that it has not spent. Charges
    /// nothing: that is the taking that follows.
    fn lend(
        &self,
        check: &Check<'_>,
        lend: Lend,
    ) -> impl Future<Output = Result<Lent, StoreError>> + Send;

    /// Takes what was lent. Nobody waits for that: the answer may come later than a caller would wait.
    fn take_lent(
        &self,
        check: &Check<'_>,
        now: Micros,
        seen: &mut Seen,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;
}

/// When a question is asked, and until when an answer is of use.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The asker's clock.
    pub now: Micros,
    /// Then nobody waits any more.
    pub deadline: Instant,
}

/// Which state of a limit it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateName {
    /// Whose.
    pub key: KeyHash,
    /// Which one of those that limits of one request have: see [`Outcome::twin`].
    pub twin: u8,
}

/// Units that a store is told of later than they were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateUnits {
    /// How many.
    pub units: u64,
    /// The instant that they belong to, by the store's clock; [`LateUnits::NOW`] for its present one.
    pub at: Micros,
    /// What happened to them.
    pub kind: LateKind,
}

impl LateUnits {
    /// Whatever the store's clock shows when it is told.
    pub const NOW: Micros = Micros::MAX;
}

/// What happened to units that a store is told of late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateKind {
    /// They were spent at that instant.
    Charge,
    /// They were charged at that instant and are given back.
    Refund,
    /// They were given back at that instant; nobody says when they were charged.
    RefundOfNoCharge,
}

/// What an answer was made of: enough to go on without the store.
#[derive(Debug, Default)]
pub struct Seen {
    /// The instant of the answer by the store's clock.
    pub at: Micros,
    /// The state of each check after it, in order.
    pub states: ArrayVec<State, MAX_LIMITS>,
    /// A bit for each check that no node answered: its outcome and state mean nothing. The others
    /// were charged as if those had admitted.
    pub failed: u16,
    /// What is charged and was not granted, by check: whoever asked gives it back.
    pub back: ArrayVec<(usize, Receipt), MAX_LIMITS>,
}

/// What an instance wants to hold of a key's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lend {
    /// Which instance.
    pub instance: u64,
    /// What it holds already.
    pub held: u64,
    /// What it wants on top of that.
    pub more: u64,
    /// Less than this is not worth it.
    pub least: u64,
    /// The most that all instances may hold together.
    pub most: u64,
    /// How long it will hold it, in microseconds. At most [`LEASE_US_MAX`].
    pub lasts_us: u64,
}

/// What an instance may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// On top of what it holds: 0, or from `least` to `more`.
    pub granted: u64,
    /// What all instances hold together then.
    pub outstanding: u64,
}

/// The longest that budget is held unspent.
pub const LEASE_US_MAX: u64 = 1_000_000;
