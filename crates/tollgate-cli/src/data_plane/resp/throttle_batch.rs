//! Calls of `CL.THROTTLE` that arrive together are decided in one batch, as if in order at one instant: the clock is
//! read once, and the store looks up all keys together.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use arrayvec::ArrayVec;
use tollgate::{Check, Decision, Limit, Micros};
use tollgate_rules::expect_ready;

use super::RespListener;
use super::commands::RespCommand;
use super::replies::Replies;
use super::throttle::{self, ThrottleCommand, ThrottleError};
use super::throttle_limits::{LimitInUse, LimitLookup, ParsedLimit, ThrottleParams};

/// Maximum calls of a batch.
pub(super) const BATCH_MAX: usize = 64;

/// Maximum limits that a connection caches.
const RECENT_LIMITS_MAX: usize = 16;

/// Calls that wait to be decided, and the limits that this connection used lately.
#[derive(Debug, Default)]
pub(super) struct ThrottleBatch {
    calls: ArrayVec<QueuedThrottle, BATCH_MAX>,
    recent_limits: ArrayVec<(ThrottleParams, Arc<LimitInUse>), RECENT_LIMITS_MAX>,
    /// Index of the limit of the last call.
    last_used: usize,
    /// Limits of the waiting calls, one bit each.
    used_bits: u16,
}

/// One call: the range of its key, its limit and its quantity.
#[derive(Clone, Copy, Debug)]
struct QueuedThrottle {
    key_range: (u32, u32),
    limit_index: u8,
    quantity: u64,
}

/// Result of adding a call.
#[derive(Debug)]
pub(super) enum BatchAddResult {
    /// The call waits to be decided.
    Queued,
    /// The reply: the parameters allow nothing.
    Replied([i64; 5]),
    /// The call has to be decided alone, because it takes up no limit.
    DecideAlone(Limit),
    /// The call has to be decided in the overflow store, because too many limits are in use.
    DecideInOverflow(Limit),
    /// The batch is full: the waiting calls have to be decided first.
    Full,
}

thread_local! {
    /// Room for decisions. Bound: [`BATCH_MAX`].
    static DECISIONS: RefCell<Vec<Decision>> = const { RefCell::new(Vec::new()) };
}

impl ThrottleBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a call; `key` is the range of its key.
    #[inline]
    pub(super) fn add<'a>(
        &mut self,
        listener: &RespListener,
        call: &ThrottleCommand<'a>,
        key: (u32, u32),
    ) -> Result<BatchAddResult, ThrottleError<'a>> {
        let known = match self.recent_limits.get(self.last_used) {
            Some((params, _)) if *params == call.params => self.last_used,
            _ => match self.recent_limits.iter().position(|(params, _)| *params == call.params) {
                Some(known) => known,
                None => match self.look_up_limit(listener, call)? {
                    Ok(known) => known,
                    Err(added) => return Ok(added),
                },
            },
        };
        let call =
            QueuedThrottle { key_range: key, limit_index: known as u8, quantity: call.quantity };
        if self.calls.try_push(call).is_err() {
            return Ok(BatchAddResult::Full);
        }
        self.last_used = known;
        self.used_bits |= 1 << known;
        Ok(BatchAddResult::Queued)
    }

    /// Looks up the limit of parameters that this connection has not used lately.
    #[cold]
    fn look_up_limit<'a>(
        &mut self,
        listener: &RespListener,
        call: &ThrottleCommand<'a>,
    ) -> Result<Result<usize, BatchAddResult>, ThrottleError<'a>> {
        let now = listener.gatekeeper.now();
        let entry = match listener.throttle_limits.get(call.params, now) {
            Some(entry) => entry,
            None => match call.params.to_limit()? {
                ParsedLimit::Limit(limit) => {
                    match listener.throttle_limits.find_or_insert(
                        call.params,
                        limit,
                        call.quantity,
                        now,
                    ) {
                        LimitLookup::InUse(entry) => entry,
                        LimitLookup::ReadOnly(limit) => {
                            return Ok(Err(BatchAddResult::DecideAlone(limit)));
                        }
                        LimitLookup::Overflow(limit) => {
                            return Ok(Err(BatchAddResult::DecideInOverflow(limit)));
                        }
                    }
                }
                ParsedLimit::NothingPasses => {
                    let reply = throttle::reply_nothing_passes(call.params, call.quantity);
                    return Ok(Err(BatchAddResult::Replied(reply)));
                }
            },
        };
        if self.recent_limits.is_full() {
            if !self.calls.is_empty() {
                return Ok(Err(BatchAddResult::Full));
            }
            // All at once: there is no telling which is used next, and the shared table has them.
            self.recent_limits.clear();
        }
        self.recent_limits.push((call.params, entry));
        Ok(Ok(self.recent_limits.len() - 1))
    }

    /// Decides all calls and writes the replies, in order. `base` holds their keys.
    #[inline]
    pub(super) async fn decide(
        &mut self,
        listener: &RespListener,
        base: &[u8],
        replies: &mut Replies,
    ) {
        if !self.decide_now(listener, base, replies) {
            // In a box: it is large, and only needed with a store that answers later.
            Box::pin(self.decide_later(listener, base, replies)).await;
        }
    }

    /// The same, unless the store answers later: then `false`.
    #[inline]
    fn decide_now(&mut self, listener: &RespListener, base: &[u8], replies: &mut Replies) -> bool {
        let gatekeeper = &listener.gatekeeper;
        if !gatekeeper.answers_at_once() {
            return false;
        }
        let now = listener.gatekeeper.now();
        self.refresh_limits(listener, now);
        match &self.calls[..] {
            [] => {}
            // Most clients send one call and wait: no room is made for others.
            [call] => {
                let check = self.check(call, base);
                let decision =
                    expect_ready(gatekeeper.decide_check(&check, gatekeeper.clock_instant(now)));
                self.write_replies(listener, &[decision], replies);
            }
            calls => {
                let mut checks = ArrayVec::<_, BATCH_MAX>::new_const();
                checks.extend(calls.iter().map(|call| self.check(call, base)));
                let mut decisions = DECISIONS.take();
                let now = gatekeeper.clock_instant(now);
                expect_ready(gatekeeper.decide_batch(&checks, now, &mut decisions));
                self.write_replies(listener, &decisions, replies);
                DECISIONS.set(decisions);
            }
        }
        self.clear();
        true
    }

    /// The same, by a store that is asked for all of them at once: in order, and no call waits for the
    /// answer to another. Every answer comes within the store's deadline.
    async fn decide_later(&mut self, listener: &RespListener, base: &[u8], replies: &mut Replies) {
        let now = listener.gatekeeper.now();
        self.refresh_limits(listener, now);
        let checks: Vec<_> = self.calls.iter().map(|call| self.check(call, base)).collect();
        let now = listener.gatekeeper.clock_instant(now);
        let decide = |check| Box::pin(listener.gatekeeper.decide_check(check, now));
        let decisions = join_all(checks.iter().map(decide).collect()).await;
        drop(checks);
        self.write_replies(listener, &decisions, replies);
        self.clear();
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.used_bits = 0;
    }

    /// Looks up limits again that were unused for so long that the table may have dropped them.
    fn refresh_limits(&mut self, listener: &RespListener, now: Micros) {
        for (index, (params, entry)) in self.recent_limits.iter_mut().enumerate() {
            if self.used_bits >> index & 1 == 1
                && !entry.touch(now)
                && let LimitLookup::InUse(found) =
                    listener.throttle_limits.find_or_insert(*params, entry.limit.clone(), 1, now)
            {
                *entry = found;
            }
        }
    }

    #[inline]
    fn check<'a>(&'a self, call: &QueuedThrottle, base: &'a [u8]) -> Check<'a> {
        let (_, entry) = &self.recent_limits[usize::from(call.limit_index)];
        let (begin, end) = call.key_range;
        Check::new(&entry.limit, &base[begin as usize..end as usize]).cost(call.quantity)
    }

    fn write_replies(
        &self,
        listener: &RespListener,
        decisions: &[Decision],
        replies: &mut Replies,
    ) {
        let mut refused = 0;
        for (call, decision) in self.calls.iter().zip(decisions) {
            let (_, entry) = &self.recent_limits[usize::from(call.limit_index)];
            replies.reply_fields(throttle::reply(entry.limit.capacity(), decision));
            refused += u64::from(!decision.allowed());
        }
        listener.counters.count_throttled(decisions.len() as u64 - refused, refused);
        listener.counters.count_commands(Some(RespCommand::Throttle), decisions.len() as u64);
    }
}

/// Decides one call that is not put together with others.
pub(super) async fn decide_alone(listener: &RespListener, check: &Check<'_>) -> Decision {
    let now = listener.gatekeeper.clock_instant(listener.gatekeeper.now());
    Box::pin(listener.gatekeeper.decide_check(check, now)).await
}

/// Waits for all of them. Bound: as many as there are.
pub(super) async fn join_all<T>(mut asked: Vec<Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = asked.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut missing = false;
        for (future, answer) in asked.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => missing = true,
                }
            }
        }
        if missing { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    answers.into_iter().flatten().collect()
}
