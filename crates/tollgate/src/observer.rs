//! `Observer`: logging and metrics around decisions, without touching how they are made.

use std::sync::Arc;

use crate::check::Check;
use crate::decision::Decision;

/// A callback after every decision, which it cannot change.
///
/// Observers compose: a closure is an observer, and a pair of observers is one that calls both.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate::{Check, Decision, Limit, Limiter};
///
/// let refused = Arc::new(AtomicU64::new(0));
/// let count = Arc::clone(&refused);
/// let metrics = move |_: &[Check<'_>], decision: &Decision| {
///     count.fetch_add(u64::from(!decision.allowed()), Ordering::Relaxed);
/// };
/// let log = |checks: &[Check<'_>], decision: &Decision| {
///     if !decision.allowed() {
///         eprintln!("{} refused, retry in {}", checks[0].limit(), decision.retry_after());
///     }
/// };
/// let limiter = Limiter::with_capacity(1_000).observed_by((metrics, log));
/// let once = Limit::per_day(1).build()?;
/// assert!(limiter.check(&once, "anna").allowed());
/// assert!(!limiter.check(&once, "anna").allowed());
/// assert_eq!(refused.load(Ordering::Relaxed), 1);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub trait Observer: Send + Sync {
    /// Called when a request over these checks has been decided.
    fn decided(&self, checks: &[Check<'_>], decision: &Decision);
}

impl<F: Fn(&[Check<'_>], &Decision) + Send + Sync> Observer for F {
    fn decided(&self, checks: &[Check<'_>], decision: &Decision) {
        self(checks, decision);
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn decided(&self, checks: &[Check<'_>], decision: &Decision) {
        self.0.decided(checks, decision);
        self.1.decided(checks, decision);
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, checks: &[Check<'_>], decision: &Decision) {
        (**self).decided(checks, decision);
    }
}
