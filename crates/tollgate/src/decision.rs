//! `Decision`: the answer, the same for every algorithm, store and protocol.

use crate::check::Check;
use crate::limit::Limit;
use crate::time::{Micros, Wait};

/// Cap on the limits of one decision.
pub const MAX_LIMITS: usize = 16;

/// The answer of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// True if this limit admits the request.
    pub allowed: bool,
    /// Whole units left after this request; never more than the capacity.
    pub remaining: u64,
    /// Wait until the same request passes: zero when allowed, never when the cost exceeds the
    /// capacity.
    pub retry_after: Wait,
    /// Wait until the state equals a fresh one.
    pub reset_after: Wait,
    /// Wait until one more unit is available; zero if all are.
    pub more_after: Wait,
    /// Wait until charges beyond the capacity are paid off; zero without such debt.
    pub debt_for: Wait,
    /// Time for which to hold an admitted request; only a queue asks for that.
    pub delay: Wait,
    /// Units charged; 0 for peeks and refusals.
    pub charged: u64,
    /// The decider of this limit.
    pub decided_by: DecidedBy,
    /// Number of the state that was used. Limits of one request that have the same id and key but
    /// other numbers have a state each, and these are numbered. 0 for the first, and for limits
    /// without such a twin.
    pub twin: u8,
    /// The instant as of which the limit answers, which is also that of a charge: not before the
    /// last charge.
    pub served_at: Micros,
    /// True if the clock went back so far that the state must follow it even if nothing is charged:
    /// charging 0 moves it. Otherwise a refused client would wait for the old time to return.
    pub jumped: bool,
}

impl Outcome {
    /// Returns true if the remaining units are known. They are not if the limit refuses because the
    /// shared store is unavailable.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.allowed || !matches!(self.decided_by, DecidedBy::Closed)
    }

    /// The outcome after so many of its units were given back.
    #[must_use]
    pub fn refunded(self, units: u64, limit: &Limit) -> Outcome {
        let remaining = self.remaining.saturating_add(units).min(limit.capacity());
        Outcome { charged: self.charged.saturating_sub(units), remaining, ..self }
    }

    /// The receipt to pass to `refund`, for this limit, if the work was not done after all. Use it
    /// once.
    pub fn receipt(&self) -> Receipt {
        let Outcome { charged: granted, served_at: charged_at, decided_by, twin, .. } = *self;
        Receipt { granted, charged_at, decided_by, twin }
    }
}

/// The part of the system that decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The table in this process.
    #[default]
    Memory,
    /// A state shared by all keys that found no room in the full table.
    Overflow,
    /// A block on the key, above all limits.
    Block,
    /// A shared store.
    Redis,
    /// Budget that this instance borrowed from a shared store.
    Lease,
    /// The shared store has refused this key, and the wait it gave is not over.
    RefusalCache,
    /// This instance alone, with its share of the limit: the shared store is unavailable, or gets
    /// the charges afterwards.
    Local,
    /// No store: the shared store is unavailable, and the rule admits then.
    Open,
    /// No store: the shared store is unavailable, and the rule refuses then.
    Closed,
}

impl DecidedBy {
    /// Rank among deciders when several limits differ; 0 for the usual ones, and the highest is
    /// reported.
    const fn severity(self) -> u8 {
        match self {
            DecidedBy::Closed => 4,
            DecidedBy::Local => 3,
            DecidedBy::Open => 2,
            DecidedBy::Overflow => 1,
            _ => 0,
        }
    }

    /// The word for it in answers, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Memory => "memory",
            DecidedBy::Overflow => "overflow",
            DecidedBy::Block => "block",
            DecidedBy::Redis => "redis",
            DecidedBy::Lease => "lease",
            DecidedBy::RefusalCache => "refusal_cache",
            DecidedBy::Local => "local",
            DecidedBy::Open => "open",
            DecidedBy::Closed => "closed",
        }
    }
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A limit has no room now; see `retry_after`.
    OverLimit,
    /// The cost is above a limit's capacity: no wait helps.
    NeverFits,
    /// The key is blocked until `retry_after` has passed.
    Blocked,
    /// The key is empty, which is always a mistake of the caller.
    EmptyKey,
    /// The key has as many requests in progress as are allowed at once.
    Busy,
    /// The request has more than [`MAX_LIMITS`] limits, or limits with more than 65,535 different
    /// sets of numbers are in use.
    TooManyLimits,
    /// The shared store is unavailable, and the limit refuses then. The client is not at fault, and
    /// the remaining units are not known.
    StoreUnavailable,
    /// The queue in which the request would wait for a limit or a place has no room.
    QueueFull,
    /// The request had to leave its queue, to make room for a caller with fewer waiting requests.
    Displaced,
    /// The request has waited as long as it may.
    WaitExpired,
    /// Those ahead in the queue take longer than the request may wait.
    WaitTooLong,
}

impl Refusal {
    /// Returns true if the request waited in vain, or could not wait, for something that had no room.
    pub const fn is_of_wait(self) -> bool {
        matches!(
            self,
            Refusal::QueueFull | Refusal::Displaced | Refusal::WaitExpired | Refusal::WaitTooLong
        )
    }

    /// All reasons.
    pub const ALL: [Refusal; 11] = [
        Refusal::OverLimit,
        Refusal::NeverFits,
        Refusal::Blocked,
        Refusal::EmptyKey,
        Refusal::Busy,
        Refusal::TooManyLimits,
        Refusal::StoreUnavailable,
        Refusal::QueueFull,
        Refusal::Displaced,
        Refusal::WaitExpired,
        Refusal::WaitTooLong,
    ];

    /// The word for it in answers, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::OverLimit => "over_limit",
            Refusal::NeverFits => "never_fits",
            Refusal::Blocked => "blocked",
            Refusal::EmptyKey => "empty_key",
            Refusal::Busy => "busy",
            Refusal::TooManyLimits => "too_many_limits",
            Refusal::StoreUnavailable => "store_unavailable",
            Refusal::QueueFull => "queue_full",
            Refusal::Displaced => "displaced",
            Refusal::WaitExpired => "wait_expired",
            Refusal::WaitTooLong => "wait_too_long",
        }
    }
}

/// The answer to one request over one or several limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision that is not read limits nothing"]
pub struct Decision {
    pub(crate) refusal: Option<Refusal>,
    pub(crate) decided_by: DecidedBy,
    /// Index of the binding limit.
    pub(crate) binding: u8,
    /// One bit for each violated limit.
    pub(crate) violated: u16,
    pub(crate) at: Micros,
    pub(crate) capacity: u64,
    /// The outcome of the binding limit, with the waits and the delay combined over all.
    pub(crate) outcome: Outcome,
}

impl Decision {
    /// Returns true if the request may go on, after [`Decision::delay`].
    #[inline]
    pub fn allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// The reason for the refusal, if the request is refused.
    #[inline]
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// The instant of the request.
    pub fn at(&self) -> Micros {
        self.at
    }

    /// The outcome of the binding limit, with the waits and the delay of the whole decision.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Units charged, to the binding limit if there are several: the cost, or less with "up to", or
    /// 0 for peeks and refusals.
    pub fn granted(&self) -> u64 {
        self.outcome.charged
    }

    /// The binding limit's capacity.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whole units of the binding limit that are left.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// Wait before the next try; zero when allowed. Waiting this long admits the same request if
    /// nothing else is charged, and one microsecond less does not.
    #[inline]
    pub fn retry_after(&self) -> Wait {
        self.outcome.retry_after
    }

    /// Wait until the binding limit's state equals a fresh one.
    #[inline]
    pub fn reset_after(&self) -> Wait {
        self.outcome.reset_after
    }

    /// Wait until one more unit of the binding limit is available.
    #[inline]
    pub fn more_after(&self) -> Wait {
        self.outcome.more_after
    }

    /// Time for which to hold an admitted request so that output is evenly spaced.
    #[inline]
    pub fn delay(&self) -> Wait {
        self.outcome.delay
    }

    /// The part of the system that decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }

    /// Index of the binding limit: the one with the longest wait among those violated, else the one
    /// with the least remaining; the first of equals.
    pub fn binding(&self) -> usize {
        self.binding.into()
    }

    /// Returns true if the limit at `index` refused.
    pub fn violates(&self, index: usize) -> bool {
        index < MAX_LIMITS && self.violated >> index & 1 == 1
    }

    /// The receipt to pass to `refund` if the work was not done after all. For a decision over
    /// several limits it is the receipt of the binding one; the others are in their outcomes, see
    /// [`Moment::decide_each`](crate::Moment::decide_each). Use it once.
    pub fn receipt(&self) -> Receipt {
        self.outcome.receipt()
    }

    /// The decision of a request with one limit.
    #[inline]
    pub(crate) fn of_one(limit: &Limit, outcome: Outcome, charged: u64, at: Micros) -> Decision {
        Decision {
            refusal: refusal_of(&outcome),
            decided_by: outcome.decided_by,
            binding: 0,
            violated: u16::from(!outcome.allowed),
            at,
            capacity: limit.capacity(),
            outcome: Outcome { charged, ..outcome },
        }
    }

    /// The same decision with another decider.
    pub(crate) fn with_decided_by(self, decided_by: DecidedBy) -> Decision {
        let outcome = Outcome { decided_by, ..self.outcome };
        Decision { decided_by, outcome, ..self }
    }

    /// The decision of a request with several limits. `violated` has a bit for each that refused.
    pub(crate) fn of_all(
        checks: &[Check<'_>],
        outcomes: &[Outcome],
        violated: u16,
        at: Micros,
    ) -> Decision {
        let (mut retry_after, mut delay) = (Wait::ZERO, Wait::ZERO);
        let (mut severity_max, mut unusual) = (0, DecidedBy::Memory);
        let mut binding: Option<(usize, &Outcome)> = None;
        for (index, (check, outcome)) in checks.iter().zip(outcomes).enumerate() {
            let severity = outcome.decided_by.severity();
            if severity > severity_max {
                (severity_max, unusual) = (severity, outcome.decided_by);
            }
            // The first of equals is the binding one.
            let (votes, binds) = if violated == 0 {
                let less = |(_, other): (_, &Outcome)| outcome.remaining < other.remaining;
                (!check.shadow, binding.is_none_or(less))
            } else {
                // A limit that was judged is a better reason than an unavailable store.
                let rank = |outcome: &Outcome| (outcome.is_known(), outcome.retry_after);
                let more = |(_, other): (_, &Outcome)| rank(outcome) > rank(other);
                (violated >> index & 1 == 1, binding.is_none_or(more))
            };
            if votes {
                retry_after = retry_after.max(outcome.retry_after);
                delay = delay.max(outcome.delay);
                if binds {
                    binding = Some((index, outcome));
                }
            }
        }
        let Some((binding, outcome)) = binding else { return Decision::unlimited(at) };
        let mut outcome = *outcome;
        if violated == 0 {
            outcome.delay = delay;
        } else {
            (outcome.delay, outcome.retry_after) = (Wait::ZERO, retry_after);
        }
        // An unusual decider of any limit is reported; otherwise that of the binding limit.
        let decided_by = if severity_max > 0 { unusual } else { outcome.decided_by };
        Decision {
            decided_by,
            binding: binding as u8,
            violated,
            ..Decision::of_one(checks[binding].limit, outcome, outcome.charged, at)
        }
    }

    /// Combines the outcomes of several limits that were decided elsewhere than in a
    /// [`MemoryStore`](crate::MemoryStore): refused if an enforced limit refuses.
    #[inline]
    pub fn of_outcomes(checks: &[Check<'_>], outcomes: &[Outcome], at: Micros) -> Decision {
        if let ([check], [outcome]) = (checks, outcomes)
            && !check.shadow
        {
            // The fast path.
            return Decision::of_one(check.limit, *outcome, outcome.charged, at);
        }
        Decision::of_several(checks, outcomes, at)
    }

    fn of_several(checks: &[Check<'_>], outcomes: &[Outcome], at: Micros) -> Decision {
        let refuses = |(check, outcome): (&Check<'_>, &Outcome)| !check.shadow && !outcome.allowed;
        let refusing = checks.iter().zip(outcomes).enumerate();
        let violated = refusing.fold(0, |bits, (i, one)| bits | u16::from(refuses(one)) << i);
        Decision::of_all(checks, outcomes, violated, at)
    }

    /// A decision that allows because no limit applies.
    #[inline]
    pub(crate) fn unlimited(at: Micros) -> Decision {
        Decision {
            refusal: None,
            decided_by: DecidedBy::Memory,
            binding: 0,
            violated: 0,
            at,
            capacity: 0,
            outcome: Outcome { allowed: true, served_at: at, ..Outcome::default() },
        }
    }

    /// A refusal before any limit was judged.
    #[cold]
    pub fn refused(refusal: Refusal, retry_after: Wait, at: Micros) -> Decision {
        let decided_by = match refusal {
            Refusal::Blocked => DecidedBy::Block,
            _ => DecidedBy::Memory,
        };
        let outcome =
            Outcome { retry_after, reset_after: retry_after, decided_by, ..Outcome::default() };
        let outcome = Outcome { allowed: false, served_at: at, ..outcome };
        Decision { refusal: Some(refusal), decided_by, outcome, ..Decision::unlimited(at) }
    }

    /// The same decision as a refusal for a reason that no store knows of, such as a rule's block: with
    /// the capacity and the outcome that the refusal reports.
    #[cold]
    pub fn refused_for(self, refusal: Refusal, capacity: u64, outcome: Outcome) -> Decision {
        let outcome = Outcome { allowed: false, ..outcome };
        Decision { refusal: Some(refusal), capacity, outcome, ..self }
    }

    /// A refusal because every possible state belongs to a limited key.
    pub(crate) fn no_room(soonest: Wait, at: Micros) -> Decision {
        Decision::refused(Refusal::OverLimit, soonest, at).with_decided_by(DecidedBy::Overflow)
    }
}

#[inline]
pub(crate) fn refusal_of(outcome: &Outcome) -> Option<Refusal> {
    match outcome.allowed {
        true => None,
        false if !outcome.is_known() => Some(Refusal::StoreUnavailable),
        false if outcome.retry_after.is_never() => Some(Refusal::NeverFits),
        false => Some(Refusal::OverLimit),
    }
}

/// The units and the instant of a charge: ties a refund to its charge.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) granted: u64,
    pub(crate) charged_at: Micros,
    /// The decider whose state was charged.
    pub(crate) decided_by: DecidedBy,
    /// Number of the state charged: see [`Outcome::twin`].
    pub(crate) twin: u8,
}

impl Receipt {
    /// Units charged.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// The instant of the charge.
    pub fn charged_at(&self) -> Micros {
        self.charged_at
    }

    /// The decider that charged it. Units can only be given back there.
    pub fn decided_by(&self) -> DecidedBy {
        self.decided_by
    }

    /// Number of the state charged: see [`Outcome::twin`].
    pub fn twin(&self) -> u8 {
        self.twin
    }
}
