//! What [`SharedStore`](crate::SharedStore) needs of a store that several instances share, beside answers.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::algorithm::State;
use tollgate::{Check, Key, Limit, Micros, Outcome, Receipt, Store};

use crate::blocks::KeyHash;

/// A failure of a remote store, as far as [`SharedStore`](crate::SharedStore) needs to know it.
pub trait RemoteError: std::error::Error + Send + Sync + 'static {
    /// Returns true if the store certainly did nothing of the request, so that it can be sent again. False if it may
    /// have been executed: a timeout, or a connection that ended before the answer.
    fn certainly_not_executed(&self) -> bool;
}

/// Number of calls that one batch has in flight at once. A node of Redis takes 4,096 calls of all callers
/// together and fails the next ones, which opens its breaker; so 16 batches fit.
pub const BATCH_CALLS_MAX: usize = 256;

/// A store that several instances share. Its decisions need not enforce its blocks: a
/// [`SharedStore`](crate::SharedStore) looks at them first.
pub trait RemoteStore: Store<Error: RemoteError> + 'static {
    /// Timeout of a decision, for all of its calls together.
    fn timeout(&self) -> Duration;

    /// Decides like [`Store::decide_each`]: `outcomes` gets the outcome of each check and `seen` the states
    /// behind it, of which the caller makes the decision. There is at least one check and there are at most
    /// [`MAX_LIMITS`](tollgate::decision::MAX_LIMITS), none of them with an empty key.
    fn decide_with_states(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        seen: &mut AnswerStates,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// A key as the store has it: short, however long the key is.
    fn hash(&self, key: Key<'_>) -> KeyHash;

    /// Applies late changes, each at its own instant. `limit` is the one that applies to the key.
    /// Returns the state after them and the store's clock; `None` is allowed if the only change is
    /// one refund.
    fn apply_late_units(
        &self,
        state: StateName,
        limit: &Limit,
        late: &[LateUnits],
        when: CallTiming,
    ) -> impl Future<Output = Result<Option<(State, Micros)>, Self::Error>> + Send;

    /// Number of refunds that the store itself could not make for callers that had gone.
    fn refunds_lost(&self) -> u64;

    /// Writes down that an instance is about to hold budget of a key that it has not spent. Charges
    /// nothing: that is the taking that follows.
    fn reserve_lease(
        &self,
        check: &Check<'_>,
        lend: LeaseRequest,
    ) -> impl Future<Output = Result<LeaseGrant, Self::Error>> + Send;

    /// Takes what was lent. Nobody waits for that: the answer may come later than a caller would wait.
    fn take_leased_units(
        &self,
        check: &Check<'_>,
        now: Micros,
        seen: &mut AnswerStates,
    ) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;
}

/// The time of a request and its deadline.
#[derive(Clone, Copy, Debug)]
pub struct CallTiming {
    /// The caller's clock.
    pub now: Micros,
    /// Then nobody waits any more.
    pub deadline: Instant,
}

/// The identity of a state of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateName {
    /// The hash of the key.
    pub key: KeyHash,
    /// The number of the state among those that limits of one request have: see [`Outcome::twin`].
    pub twin: u8,
}

/// Units of a change that reaches a store late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateUnits {
    /// Number of units.
    pub units: u64,
    /// The instant that they belong to, by the store's clock; [`LateUnits::NOW`] for its present one.
    pub at: Micros,
    /// The kind of change.
    pub kind: LateKind,
}

impl LateUnits {
    /// The time of the store's clock when the change arrives.
    pub const NOW: Micros = Micros::MAX;
}

/// The kind of a change that a store gets late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateKind {
    /// They were spent at that instant.
    Charge,
    /// They were asked for at that instant, of a limit that counts refused requests: what was refused of
    /// them makes a bucket's debt no longer than one capacity.
    ChargeWithRefusals,
    /// They were charged at that instant and are given back.
    Refund,
    /// They were given back at that instant; nobody says when they were charged.
    RefundOfNoCharge,
}

impl LateKind {
    /// Units that were asked for by this check, and are charged.
    pub(crate) fn of_charge(check: &Check<'_>) -> LateKind {
        if check.counts_denied() { LateKind::ChargeWithRefusals } else { LateKind::Charge }
    }
}

/// The states behind an answer: enough to continue without the store.
#[derive(Debug, Default)]
pub struct AnswerStates {
    /// The instant of the answer by the store's clock.
    pub answered_at: Micros,
    /// The state of each check after it, in order. Bound: one for each check.
    pub states: Vec<State>,
    /// A bit for each check that no node answered: its outcome and state mean nothing. The others
    /// were charged as if those had admitted.
    pub failed_checks: u16,
    /// Charges that were not granted, by check; the caller refunds them. Bound: one for each check.
    pub to_refund: Vec<(usize, Receipt)>,
}

/// The request of an instance to hold units of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The instance.
    pub instance: u64,
    /// Units that it holds already.
    pub held: u64,
    /// Units that it wants in addition.
    pub wanted: u64,
    /// Less than this is not worth it.
    pub grant_min: u64,
    /// The most that all instances may hold together.
    pub outstanding_max: u64,
    /// Time for which it will hold them, in microseconds. At most [`LEASE_US_MAX`].
    pub duration_us: u64,
}

/// The units that an instance may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseGrant {
    /// On top of what it holds: 0, or from `grant_min` to `wanted`.
    pub granted: u64,
    /// Units that all instances hold together then.
    pub outstanding: u64,
}

/// The longest that budget is held unspent.
pub const LEASE_US_MAX: u64 = 1_000_000;
