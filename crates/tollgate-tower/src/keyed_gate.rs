//! `KeyedGate`: a gate with limits of your own, over a limiter in this process.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
use tollgate::{
    Act, Check, Clock, Decision, KeyBuf, Limit, Limiter, MemoryStore, Outcome, Receipt, Refusal,
    SystemClock, Wait,
};

use crate::gate::{
    Admission, AdmittedResponse, BoxFuture, DecisionDetails, Gate, GateAnswer, GateRequest,
    GateVerdict,
};
use crate::key::KeyFrom;
use crate::warning::Warning;

/// A gate that gives each caller the same limits: one, or several that must all allow. Several limits are one
/// decision: a refusal charges none of them.
///
/// ```
/// use std::sync::Arc;
/// use http::HeaderName;
/// use tollgate::{Limit, Limiter};
/// use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer};
///
/// let limiter = Arc::new(Limiter::with_capacity(1_000_000));
/// let burst = Limit::per_second(10).name("api").build()?;
/// let daily = Limit::per_day(10_000).name("api").build()?;
/// let gate = KeyedGate::new(limiter, [burst, daily])?
///     .key(KeyFrom::header(HeaderName::from_static("x-api-key")).or(KeyFrom::client_ip()));
/// let layer = RateLimitLayer::new(gate);
/// # drop(layer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedGate<C = SystemClock> {
    limiter: Arc<Limiter<MemoryStore, C>>,
    limits: Arc<[GateLimit]>,
    key: KeyFrom,
    without_key: WithoutKey,
    shared_key_detector: SharedKeyDetector,
}

/// A limit and its name in header fields.
#[derive(Debug)]
struct GateLimit {
    limit: Limit,
    policy: PolicyName,
}

/// The treatment of requests without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WithoutKey {
    /// They share one key, so that a client gains nothing by leaving out its key.
    #[default]
    Shared,
    /// They are refused.
    Refused,
    /// They pass without a limit. Use it only if something else keeps such requests out.
    Passed,
}

/// The error for limits that do not make a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsError {
    /// The number of limits is 0 or more than a decision can hold.
    Number(usize),
    /// The limits at these two positions, counted from 1, share their counts, so each request would be charged
    /// twice.
    Alike(usize, usize),
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Number(limits) => {
                write!(f, "a gate has {limits} limits: give it 1 to {MAX_LIMITS}")
            }
            LimitsError::Alike(one, other) => {
                write!(
                    f,
                    "limits {one} and {other} of a gate share their counts: give one another name"
                )
            }
        }
    }
}

impl std::error::Error for LimitsError {}

impl<C: Clock + 'static> KeyedGate<C> {
    /// Makes a gate with these limits for each client address.
    ///
    /// Give the limits names: header fields report them by name, and limits with the same name, algorithm and period
    /// share their counts. Within one gate that is an error. Two gates over one limiter may share counts on purpose;
    /// otherwise they charge one key twice.
    pub fn new(
        limiter: Arc<Limiter<MemoryStore, C>>,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<KeyedGate<C>, LimitsError> {
        let named = |limit| {
            let policy = PolicyName::of(&limit);
            GateLimit { limit, policy }
        };
        let limits: Arc<[GateLimit]> = limits.into_iter().map(named).collect();
        if !(1..=MAX_LIMITS).contains(&limits.len()) {
            return Err(LimitsError::Number(limits.len()));
        }
        for (other, named) in limits.iter().enumerate() {
            let alike = |before: &GateLimit| before.limit.id() == named.limit.id();
            if let Some(one) = limits[..other].iter().position(alike) {
                return Err(LimitsError::Alike(one + 1, other + 1));
            }
        }
        let (key, without_key) = (KeyFrom::client_ip(), WithoutKey::default());
        Ok(KeyedGate {
            limiter,
            limits,
            key,
            without_key,
            shared_key_detector: SharedKeyDetector::default(),
        })
    }

    /// Sets the source of the key; the default is the client address.
    #[must_use]
    pub fn key(self, key: KeyFrom) -> KeyedGate<C> {
        KeyedGate { key, ..self }
    }

    /// Sets the treatment of requests without a key.
    #[must_use]
    pub fn without_key(self, without_key: WithoutKey) -> KeyedGate<C> {
        KeyedGate { without_key, ..self }
    }

    /// Decides under all limits at one instant. `outcomes` is filled in place: it has room for sixteen, too large to
    /// return by value.
    fn decide(
        &self,
        question: &GateRequest,
        key: &KeyBuf,
        wait: bool,
        outcomes: &mut LimitOutcomes,
    ) -> Decision {
        let cost = question.cost.unwrap_or(1);
        let check = |named| {
            let check = check(named, key, cost);
            if wait { check } else { check.at_once() }
        };
        outcomes.clear();
        match &*self.limits {
            // The usual case, and the fastest path: the lookup in the table overlaps with reading the clock.
            [only] => {
                let decision = match only.limit.is_queue() {
                    false => self.limiter.take(&only.limit, key, cost),
                    true => self.limiter.decide(&[check(only)]),
                };
                outcomes.push(decision.outcome());
                decision
            }
            several => {
                let checks: ArrayVec<Check<'_>, MAX_LIMITS> = several.iter().map(check).collect();
                outcomes.extend(checks.iter().map(|_| Outcome::default()));
                self.limiter.now().decide_each(&checks, outcomes)
            }
        }
    }

    /// Decides for a request that can wait. If the delay is longer, it refunds the charge and decides
    /// again without a wait, which refuses unless the queue has become shorter meanwhile.
    fn decide_within(
        &self,
        question: &GateRequest,
        key: &KeyBuf,
        outcomes: &mut LimitOutcomes,
    ) -> Decision {
        let decision = self.decide(question, key, true, outcomes);
        if decision.delay().is_zero() {
            return decision;
        }
        if decision.delay() <= Wait::at_least(question.patience().unwrap_or_default()) {
            return decision;
        }
        give_back(&self.limiter, &self.limits, key, receipts(outcomes));
        self.decide(question, key, false, outcomes)
    }

    fn answer(&self, question: &GateRequest, key: &KeyBuf) -> GateVerdict {
        let mut outcomes = LimitOutcomes::new();
        let decision = match question.max_wait {
            Some(_) => self.decide_within(question, key, &mut outcomes),
            None => self.decide(question, key, false, &mut outcomes),
        };
        let holds = decision.allowed() && (question.settles || !decision.delay().is_zero());
        let pass = holds.then(|| {
            let (limiter, limits) = (Arc::clone(&self.limiter), Arc::clone(&self.limits));
            Box::new(KeyedAdmission {
                limiter,
                limits,
                key: key.clone(),
                receipts: receipts(&outcomes),
            }) as Box<dyn Admission>
        });
        let policy = |(named, outcome): (_, &Outcome)| {
            let GateLimit { limit, policy }: &GateLimit = named;
            Policy { name: policy, limit, outcome: *outcome }
        };
        let mut policies = ArrayVec::<Policy<'_>, MAX_LIMITS>::new();
        policies.extend(self.limits.iter().zip(&outcomes).map(policy));
        let mut verdict = self.tell(question, &decision, &policies);
        verdict.admission = pass;
        verdict
    }

    fn tell(
        &self,
        question: &GateRequest,
        decision: &Decision,
        policies: &[Policy<'_>],
    ) -> GateVerdict {
        question.decided(&DecisionDetails {
            reply: &RateLimitReply::new(decision, policies),
            dialects: &Dialect::DEFAULT,
            decided_by: decision.decided_by(),
            delay: decision.delay(),
            policy: self.limits.get(decision.binding()).map(|named| &named.policy),
            rule: None,
            refusal: None,
            warnings: &[],
        })
    }

    fn without_a_key(&self, question: &GateRequest, key: &mut KeyBuf) -> GateVerdict {
        match self.without_key {
            WithoutKey::Passed => question.unlimited(),
            WithoutKey::Refused => {
                let now = self.limiter.clock().now();
                let refused = Decision::refused(Refusal::EmptyKey, Wait::NEVER, now);
                self.tell(question, &refused, &[])
            }
            WithoutKey::Shared => {
                key.clear();
                key.add("nobody", "");
                self.answer(question, key)
            }
        }
    }

    fn signs_of_misuse(&self, question: &GateRequest, key: Option<&KeyBuf>) -> Option<Warning> {
        let forwarded = || {
            let headers = &question.head.headers;
            headers.contains_key("x-forwarded-for") || headers.contains_key("forwarded")
        };
        let Some(key) = key else {
            return (self.without_key == WithoutKey::Shared).then_some(Warning::NoKey);
        };
        if self.key.trusts_nobody() && forwarded() {
            return Some(Warning::ForwardedIgnored);
        }
        let suspicious = !self.key.is_global() && self.shared_key_detector.all_share(question, key);
        suspicious.then_some(Warning::OneKey)
    }
}

impl<C: Clock + 'static> Gate for KeyedGate<C> {
    fn ask(&self, question: &mut GateRequest) -> GateAnswer {
        with_scratch(|key| {
            let found = match self.key.write(question, key) {
                Ok(found) => found,
                Err(header) => return GateAnswer::Now(question.ambiguous_header(header)),
            };
            let warning = match question.watching {
                true => self.signs_of_misuse(question, found.then_some(key)),
                false => None,
            };
            let mut verdict = match found {
                true => self.answer(question, key),
                false => self.without_a_key(question, key),
            };
            verdict.warning = warning;
            GateAnswer::Now(verdict)
        })
    }
}

impl<C> fmt::Debug for KeyedGate<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedGate")
            .field("limits", &self.limits)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

type LimitOutcomes = ArrayVec<Outcome, MAX_LIMITS>;
type LimitReceipts = ArrayVec<Receipt, MAX_LIMITS>;

fn check<'a>(named: &'a GateLimit, key: &'a KeyBuf, cost: u64) -> Check<'a> {
    Check::new(&named.limit, key).cost(cost)
}

fn receipts(outcomes: &LimitOutcomes) -> LimitReceipts {
    outcomes.iter().map(Outcome::receipt).collect()
}

fn give_back<C: Clock>(
    limiter: &Limiter<MemoryStore, C>,
    limits: &[GateLimit],
    key: &KeyBuf,
    receipts: LimitReceipts,
) {
    let now = limiter.now();
    for (named, receipt) in limits.iter().zip(receipts) {
        let units = receipt.granted();
        now.refund(&named.limit, key, receipt, units);
    }
}

thread_local! {
    /// The key of the request that this thread decides; its memory is reused for the next.
    static SCRATCH: Cell<KeyBuf> = const { Cell::new(KeyBuf::new()) };
}

/// Maximum capacity of the scratch buffer that a thread keeps; a larger one is freed.
const SCRATCH_BYTES_MAX: usize = 4_096;

/// Calls `act` with the scratch buffer. The buffer is taken and put back, not borrowed: a nested call gets a new
/// one.
fn with_scratch<T>(act: impl FnOnce(&mut KeyBuf) -> T) -> T {
    let mut key = SCRATCH.take();
    key.clear();
    let done = act(&mut key);
    // The capacity, not the length: a long key may have been truncated again.
    if key.capacity() <= SCRATCH_BYTES_MAX {
        SCRATCH.set(key);
    }
    done
}

/// The charge of a request until its response is ready.
struct KeyedAdmission<C> {
    limiter: Arc<Limiter<MemoryStore, C>>,
    limits: Arc<[GateLimit]>,
    key: KeyBuf,
    receipts: LimitReceipts,
}

impl<C: Clock> Admission for KeyedAdmission<C> {
    fn settle(&mut self, response: &AdmittedResponse<'_>) -> Option<BoxFuture<()>> {
        let cost = response.cost?;
        let now = self.limiter.now();
        for (named, receipt) in self.limits.iter().zip(std::mem::take(&mut self.receipts)) {
            let estimate = receipt.granted();
            if cost < estimate {
                now.refund(&named.limit, &self.key, receipt, estimate - cost);
            } else if cost > estimate {
                let force = check(named, &self.key, cost - estimate).act(Act::Force);
                let _ = now.decide(&[force]);
            }
        }
        None
    }

    fn give_back(self: Box<Self>) -> Option<BoxFuture<()>> {
        give_back(&self.limiter, &self.limits, &self.key, self.receipts);
        None
    }
}

impl<C> fmt::Debug for KeyedAdmission<C> {
    /// Leaves out the key, which may be a name or a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedAdmission").finish_non_exhaustive()
    }
}

/// Detects that requests of several callers all have one key. Its size is fixed.
#[derive(Debug, Default)]
struct SharedKeyDetector {
    hasher: RandomState,
    requests: AtomicU32,
    first_key: AtomicU64,
    first_caller: AtomicU64,
    /// True once a second key was seen: nothing is wrong then.
    several_keys: AtomicBool,
    several_callers: AtomicBool,
}

/// Number of requests with one key after which the layer warns.
const SUSPICIOUS_REQUESTS: u32 = 1_000;

impl SharedKeyDetector {
    /// Returns true once, when enough requests of several callers had one key.
    fn all_share(&self, question: &GateRequest, key: &KeyBuf) -> bool {
        if self.several_keys.load(Ordering::Relaxed) {
            return false;
        }
        let forwarded = question.head.headers.get("x-forwarded-for");
        let caller = self.hasher.hash_one((question.peer, forwarded.map(|text| text.as_bytes())));
        let key = self.hasher.hash_one(key.as_bytes());
        // The first one that is not 0, which stands for none, stays.
        let differs = |first: &AtomicU64, hash: u64| {
            let hash = hash | 1;
            let seen = first.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
            seen.is_err_and(|seen| seen != hash)
        };
        if differs(&self.first_key, key) {
            self.several_keys.store(true, Ordering::Relaxed);
            return false;
        }
        if differs(&self.first_caller, caller) {
            self.several_callers.store(true, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed) + 1 == SUSPICIOUS_REQUESTS
            && self.several_callers.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_the_memory_of_short_keys_only() {
        let kept = |value: usize, cleared: bool| {
            with_scratch(|key| {
                key.add("header.x-api-key", &"a".repeat(value));
                if cleared {
                    key.clear();
                }
            });
            with_scratch(|key| key.capacity())
        };
        assert!(kept(100, false) >= 100);
        assert_eq!((kept(SCRATCH_BYTES_MAX, false), kept(SCRATCH_BYTES_MAX, true)), (0, 0));
    }
}
