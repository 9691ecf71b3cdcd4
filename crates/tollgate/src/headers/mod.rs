//! A decision in HTTP: header fields in every dialect, and the body of a refusal.
//!
//! All text that a client reads about its limits is made here, so that rounding is decided once:
//! waits round up to whole seconds, `Retry-After` is at least 1, and no reset lies before it.
//! Headers allocate nothing: their values are written wherever `fmt` can write, or into a buffer.
//!
//! ```
//! use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
//! use tollgate::{Limit, Limiter, Micros};
//!
//! let limiter = Limiter::with_capacity(1_000);
//! let limit = Limit::per_second(10).burst(10).name("api").build()?;
//! let name = PolicyName::of(&limit); // made once, kept beside the limit
//!
//! let now = limiter.at(Micros::from_secs(1_795_000_000));
//! assert!(now.take(&limit, "user:42", 10).allowed());
//! let decision = now.check(&limit, "user:42");
//!
//! let policies = [Policy::alone(&name, &limit, &decision)];
//! let reply = RateLimitReply::new(&decision, &policies);
//! let headers = reply.headers(&Dialect::DEFAULT).map(|(name, value)| format!("{name}: {value}"));
//! assert_eq!(
//!     headers.collect::<Vec<_>>(),
//!     [
//!         "X-RateLimit-Limit: 10",
//!         "X-RateLimit-Remaining: 0",
//!         "X-RateLimit-Reset: 1795000001",
//!         "RateLimit-Policy: \"api-1s\";q=10;w=1",
//!         "RateLimit: \"api-1s\";r=0;t=1",
//!         "Retry-After: 1",
//!         "Cache-Control: no-store",
//!     ]
//! );
//!
//! let body = reply.problem().expect("a refusal has one").to_string();
//! assert!(body.contains(r#""error":"Too Many Requests""#));
//! # Ok::<(), tollgate::LimitError>(())
//! ```

mod dialect;
mod escape;
mod field_value;
#[cfg(feature = "http")]
mod fields;
mod policy_name;
mod problem_details;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use arrayvec::ArrayVec;

use crate::decision::{Decision, Outcome, Refusal};
use crate::limit::Limit;
use crate::time::{Micros, Wait};

pub use dialect::{Dialect, HeaderError, RateLimitField};
pub use escape::escape_non_utf8;
pub use field_value::RateLimitFieldValue;
#[cfg(feature = "http")]
pub use fields::{FieldText, RateLimitFields};
pub use policy_name::PolicyName;
pub use problem_details::ProblemDetails;

use field_value::RateLimitFieldContent;

/// Cap on the fields of a reply: each name is sent once.
const FIELDS_MAX: usize = RateLimitField::ALL.len();

/// The content of a reply: a decision, and the policies under which it was made.
///
/// The fields are public because some listeners know more than the decision: one that cannot hold a
/// request back turns a delay into a refusal.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitReply<'a> {
    /// The enforced limits, in the order of the rule. Shadow limits are left out: a client that
    /// paces itself by a limit that is not enforced would be slowed down for nothing.
    /// Bound: [`MAX_LIMITS`](crate::decision::MAX_LIMITS), as in a decision.
    pub policies: &'a [Policy<'a>],
    /// The reason for the refusal, if the request is refused.
    pub refusal: Option<Refusal>,
    /// The instant of the request.
    pub at: Micros,
    /// The binding limit's capacity; 0 if there was no limit.
    pub capacity: u64,
    /// Whole units of the binding limit that are left.
    pub remaining: u64,
    /// Wait until the same request passes; read only for refusals.
    pub retry_after: Wait,
    /// Wait until the binding limit is full again.
    pub reset_after: Wait,
}

/// One limit of a decision, with the name that clients know.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The name that clients know.
    pub name: &'a PolicyName,
    /// The limit, with the numbers of the client's tier.
    pub limit: &'a Limit,
    /// The limit's outcome.
    pub outcome: Outcome,
}

impl<'a> Policy<'a> {
    /// The policy of a decision that was made under this limit only.
    pub fn alone(name: &'a PolicyName, limit: &'a Limit, decision: &Decision) -> Policy<'a> {
        Policy { name, limit, outcome: decision.outcome }
    }

    /// Whole seconds until one more unit is available; `None` when all are, or none ever will be.
    fn more_after_s(&self) -> Option<u64> {
        let full = self.outcome.remaining >= self.limit.capacity();
        self.outcome.more_after.seconds().filter(|seconds| !full && *seconds > 0)
    }
}

/// The time in which a client may use the whole capacity of a limit once, in seconds. For buckets it
/// is the time to refill the capacity, rounded up. For others it is the period, if it is a constant
/// whole number of seconds, because dialects cannot express anything else. A day counts as 24 hours,
/// even in a calendar; a month has no length.
fn window_s(limit: &Limit) -> Option<u64> {
    if limit.algorithm().is_bucket() {
        return Some(limit.full_refill_us().div_ceil(1_000_000));
    }
    let period = match limit.calendar() {
        Some(calendar) => calendar.unit().nominal()?,
        None => limit.period(),
    };
    (period.subsec_nanos() == 0).then_some(period.as_secs())
}

impl<'a> RateLimitReply<'a> {
    /// The reply to a decision made under these limits.
    pub fn new(decision: &Decision, policies: &'a [Policy<'a>]) -> RateLimitReply<'a> {
        RateLimitReply {
            policies,
            refusal: decision.refusal(),
            at: decision.at(),
            capacity: decision.capacity(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
        }
    }

    /// The header fields in these dialects, names and values. A refusal also has `Retry-After` and
    /// `Cache-Control`, whatever the dialects, even if there are none.
    ///
    /// `draft` and `legacy` share the name `RateLimit-Policy` and disagree about its value: with
    /// both, `draft` has it.
    pub fn headers(
        &self,
        dialects: &[Dialect],
    ) -> impl Iterator<Item = (&'static str, RateLimitFieldValue<'a>)> + use<'a> {
        let mut headers = ArrayVec::<_, FIELDS_MAX>::new();
        self.for_each_header(dialects, |field, value| headers.push((field.name(), value)));
        headers.into_iter()
    }

    /// Calls `tell` with every header field: faster than [`RateLimitReply::headers`] where replies
    /// are made by the million.
    #[inline]
    pub fn for_each_header(
        &self,
        dialects: &[Dialect],
        mut tell: impl FnMut(RateLimitField, RateLimitFieldValue<'a>),
    ) {
        let wants = |dialect| dialects.contains(&dialect);
        if wants(Dialect::XRateLimit) {
            self.x_ratelimit(&mut tell);
        }
        if wants(Dialect::Draft) {
            self.draft(&mut tell);
        }
        if wants(Dialect::Legacy) {
            self.legacy(!wants(Dialect::Draft), &mut tell);
        }
        if self.refusal.is_some() {
            if let Some(seconds) = self.retry_after_s() {
                tell(RateLimitField::RetryAfter, RateLimitFieldValue::number(seconds));
            }
            tell(RateLimitField::CacheControl, RateLimitFieldValue(RateLimitFieldContent::NoStore));
        }
    }

    /// The integer of `Retry-After`: whole seconds, at least 1. `None` when allowed, and when no
    /// wait helps.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.refusal?;
        self.retry_after.seconds().map(|seconds| seconds.max(1))
    }

    /// The body of a refusal; `None` when allowed.
    pub fn problem(&self) -> Option<ProblemDetails<'a>> {
        self.refusal.map(|refusal| ProblemDetails { reply: *self, refusal })
    }

    fn x_ratelimit(&self, tell: &mut impl FnMut(RateLimitField, RateLimitFieldValue<'a>)) {
        let Some((limit, remaining)) = self.binding() else { return };
        tell(RateLimitField::XLimit, RateLimitFieldValue::number(limit));
        tell(RateLimitField::XRemaining, RateLimitFieldValue::number(remaining));
        if let Some(reset) = self.reset_at_s() {
            tell(RateLimitField::XReset, RateLimitFieldValue::number(reset));
        }
    }

    fn draft(&self, tell: &mut impl FnMut(RateLimitField, RateLimitFieldValue<'a>)) {
        if !self.policies.is_empty() {
            tell(
                RateLimitField::Policy,
                RateLimitFieldValue(RateLimitFieldContent::DraftPolicies(*self)),
            );
        }
        if self.reported_policies().next().is_some() {
            tell(
                RateLimitField::RateLimit,
                RateLimitFieldValue(RateLimitFieldContent::DraftLimits(*self)),
            );
        }
    }

    fn legacy(
        &self,
        with_policies: bool,
        tell: &mut impl FnMut(RateLimitField, RateLimitFieldValue<'a>),
    ) {
        let Some((limit, remaining)) = self.binding() else { return };
        tell(RateLimitField::Limit, RateLimitFieldValue::integer(limit));
        tell(RateLimitField::Remaining, RateLimitFieldValue::integer(remaining));
        // The draft wants it to name the same time as `Retry-After` where both are sent.
        if let Some(reset) = self.retry_after_s().or(self.reset_after.seconds()) {
            tell(RateLimitField::Reset, RateLimitFieldValue::integer(reset));
        }
        // Here a window is required, unlike in later drafts: a policy without one cannot be sent.
        if with_policies && self.named_policies().any(|policy| window_s(policy.limit).is_some()) {
            tell(
                RateLimitField::Policy,
                RateLimitFieldValue(RateLimitFieldContent::LegacyPolicies(*self)),
            );
        }
    }

    /// Capacity and remaining units of the binding limit. A block is above all limits and has no
    /// numbers of its own, so those of the first limit are used. The remaining units are not known
    /// while the store is unavailable.
    fn binding(&self) -> Option<(u64, u64)> {
        match self.capacity {
            _ if self.refusal == Some(Refusal::StoreUnavailable) => None,
            0 if self.refusal.is_some() => Some((self.policies.first()?.limit.capacity(), 0)),
            0 => None,
            capacity => Some((capacity, self.remaining)),
        }
    }

    /// The Unix second when the binding limit is full again, never before `Retry-After` has passed.
    pub fn reset_at_s(&self) -> Option<u64> {
        let after = |wait_us: u64| self.at.as_u64().saturating_add(wait_us).div_ceil(1_000_000);
        let reset = self.reset_after.as_micros().map(after);
        let retry = self.retry_after_s().map(|seconds| after(seconds.saturating_mul(1_000_000)));
        reset.max(retry)
    }

    /// The policies, each name once. If several limits have one name, such as one limit for each of
    /// several keys, the binding one is used.
    fn named_policies(&self) -> impl Iterator<Item = &'a Policy<'a>> + Clone + use<'a> {
        let reply = *self;
        let is_first = move |(index, policy): &(usize, &Policy<'_>)| {
            !reply.policies[..*index].iter().any(|before| before.name.is(policy.name))
        };
        let first = self.policies.iter().enumerate().filter(is_first);
        first.map(move |(index, policy)| reply.binding_of(index, policy))
    }

    /// The binding policy among those from `index` on that have the name of `first`: the one that
    /// refuses for longest, or else has the least left; the first of equals.
    fn binding_of(&self, index: usize, first: &'a Policy<'a>) -> &'a Policy<'a> {
        let weight = |policy: &Policy<'_>| {
            let refused_for = self.violates(policy).then_some(policy.outcome.retry_after);
            (refused_for, Reverse(policy.outcome.remaining))
        };
        let others = self.policies[index + 1..].iter().filter(|policy| policy.name.is(first.name));
        others.fold(first, |best, next| if weight(next) > weight(best) { next } else { best })
    }

    /// The policies whose state is sent. A refusal has only those that refused, so that no policy
    /// gives a later time than `Retry-After`.
    fn reported_policies(&self) -> impl Iterator<Item = &'a Policy<'a>> + use<'a> {
        let reply = *self;
        self.named_policies()
            .filter(move |policy| reply.refusal.is_none() || reply.violates(policy))
    }

    /// The policies that refused. There are none if something else did, such as a block.
    fn violated_policies(&self) -> impl Iterator<Item = &'a Policy<'a>> + Clone + use<'a> {
        let reply = *self;
        self.named_policies().filter(move |policy| reply.violates(policy))
    }

    fn violates(&self, policy: &Policy<'_>) -> bool {
        let is_by_limits = |refusal: Refusal| {
            matches!(refusal, Refusal::OverLimit | Refusal::NeverFits) || refusal.is_of_wait()
        };
        let by_limits = self.refusal.is_some_and(is_by_limits);
        by_limits && !policy.outcome.allowed && policy.outcome.is_known()
    }
}
