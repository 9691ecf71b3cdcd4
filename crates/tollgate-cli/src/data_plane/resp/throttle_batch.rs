//! Calls of `CL.THROTTLE` that arrive together are decided in one batch, as if in order at one instant: the clock is
//! read once, and the store looks up all keys together.

use std::cell::RefCell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::{Check, Decision, Limit, Micros};
use tollgate_rules::expect_ready;

use super::RespListener;
use super::commands::RespCommand;
use super::counters::RespErrorKind;
use super::replies::Replies;
use super::request::RespArgs;
use super::throttle::{self, ThrottleCommand, ThrottleError};
use super::throttle_limits::{LimitInUse, LimitLookup, ParsedLimit, ThrottleParams};
use super::throttle_repeat::ThrottleFrame;

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
    /// The last call that was parsed, as long as its limit is cached at `last_used`.
    last_call: Option<ParsedThrottle>,
    /// Instant at which a limit was looked up for a call that is not decided yet: the decision uses it too.
    looked_up_at: Option<Micros>,
}

/// A call without its key.
#[derive(Debug)]
struct ParsedThrottle {
    frame: ThrottleFrame,
    quantity: u64,
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
enum BatchAddResult {
    /// The call waits to be decided.
    Queued,
    /// The reply: the parameters allow nothing.
    Replied([i64; 5]),
    /// The call has to be decided alone: it writes nothing, so its limit is not kept in the table.
    DecideAlone(Limit),
    /// The call has to be decided in the overflow table, because too many limits are in use.
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

    /// Adds a call, whose command begins at this offset of the bytes that [`ThrottleBatch::decide`] gets.
    #[inline]
    pub(super) fn queue<'a>(
        &mut self,
        listener: &RespListener,
        args: RespArgs<'a>,
        offset: usize,
    ) -> Result<(), Box<UnqueuedThrottle<'a>>> {
        let (begin, end) = args.range(1);
        let key_range = (begin + offset as u32, end + offset as u32);
        let call = match ThrottleCommand::read(args) {
            Ok(call) => call,
            Err(error) => return Err(Box::new(UnqueuedThrottle { key_range, added: Err(error) })),
        };
        match self.add(listener, &call, key_range) {
            Ok(BatchAddResult::Queued) => Ok(()),
            other => {
                let added = other.map(|added| (call, added));
                Err(Box::new(UnqueuedThrottle { key_range, added }))
            }
        }
    }

    #[inline]
    fn add<'a>(
        &mut self,
        listener: &RespListener,
        call: &ThrottleCommand<'a>,
        key: (u32, u32),
    ) -> Result<BatchAddResult, ThrottleError<'a>> {
        if self.calls.is_full() {
            return Ok(BatchAddResult::Full);
        }
        let known = match self.recent_limits.get(self.last_used) {
            Some((params, _)) if *params == call.params => self.last_used,
            _ => match self.recent_limits.iter().position(|(params, _)| *params == call.params) {
                Some(known) => known,
                // The waiting calls use the cached limits: one more fits only after they are decided.
                None if self.recent_limits.is_full() && !self.calls.is_empty() => {
                    return Ok(BatchAddResult::Full);
                }
                None => match self.look_up_limit(listener, call)? {
                    Ok(known) => known,
                    Err(added) => return Ok(added),
                },
            },
        };
        let call =
            QueuedThrottle { key_range: key, limit_index: known as u8, quantity: call.quantity };
        self.calls.push(call);
        self.last_used = known;
        self.last_call = None;
        self.used_bits |= 1 << known;
        Ok(BatchAddResult::Queued)
    }

    /// Remembers the call that was queued last, so that the next ones like it need not be parsed.
    pub(super) fn remember(&mut self, command: &[u8], args: RespArgs<'_>) {
        self.last_call = self.calls.last().and_then(|call| {
            let frame = ThrottleFrame::of(command, args)?;
            Some(ParsedThrottle { frame, quantity: call.quantity })
        });
    }

    /// Adds the call at this offset of the input, if it differs from the last one only in its key. Returns the length of
    /// the command.
    #[inline]
    pub(super) fn queue_repeated(&mut self, input: &[u8], offset: usize) -> Option<usize> {
        let last = self.last_call.as_ref().filter(|_| !self.calls.is_full())?;
        let ((begin, end), length) = last.frame.find_key(&input[offset..])?;
        self.calls.push(QueuedThrottle {
            key_range: ((offset + begin) as u32, (offset + end) as u32),
            limit_index: self.last_used as u8,
            quantity: last.quantity,
        });
        self.used_bits |= 1 << self.last_used;
        Some(length)
    }

    /// Looks up the limit of parameters that this connection has not used lately.
    #[cold]
    fn look_up_limit<'a>(
        &mut self,
        listener: &RespListener,
        call: &ThrottleCommand<'a>,
    ) -> Result<Result<usize, BatchAddResult>, ThrottleError<'a>> {
        let now = *self.looked_up_at.get_or_insert_with(|| listener.gatekeeper.now());
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
            // All at once: there is no telling which is used next, and the shared table has them.
            self.recent_limits.clear();
            self.last_call = None;
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
        let now = self.take_instant(listener);
        self.refresh_limits(listener, now);
        if listener.gatekeeper.answers_at_once() {
            self.decide_at_once(listener, base, now, replies);
        } else {
            // Boxed: the future is large, and a store that answers at once does not need it.
            Box::pin(self.decide_later(listener, base, now, replies)).await;
        }
        self.calls.clear();
        self.used_bits = 0;
    }

    /// The instant of the next decision. The clock is read unless it was read for the same call already.
    #[inline]
    fn take_instant(&mut self, listener: &RespListener) -> Micros {
        self.looked_up_at.take().unwrap_or_else(|| listener.gatekeeper.now())
    }

    #[inline]
    fn decide_at_once(
        &self,
        listener: &RespListener,
        base: &[u8],
        now: Micros,
        replies: &mut Replies,
    ) {
        let gatekeeper = &listener.gatekeeper;
        let now = gatekeeper.clock_instant(now);
        match &self.calls[..] {
            [] => {}
            // Most clients send one call and wait: no list of decisions is needed.
            [call] => {
                let check = self.check(call, base);
                let decision = expect_ready(gatekeeper.decide_check(&check, now));
                self.write_replies(listener, &[decision], replies);
            }
            calls => {
                let mut checks = ArrayVec::<_, BATCH_MAX>::new_const();
                checks.extend(calls.iter().map(|call| self.check(call, base)));
                let mut decisions = DECISIONS.take();
                expect_ready(gatekeeper.decide_batch(&checks, now, &mut decisions));
                self.write_replies(listener, &decisions, replies);
                DECISIONS.set(decisions);
            }
        }
    }

    /// Decides all calls by a store that has to be waited for. The store gets all of them together, so that no call
    /// waits for the answer to another.
    async fn decide_later(
        &self,
        listener: &RespListener,
        base: &[u8],
        now: Micros,
        replies: &mut Replies,
    ) {
        let gatekeeper = &listener.gatekeeper;
        let checks: Vec<_> = self.calls.iter().map(|call| self.check(call, base)).collect();
        let mut decisions = Vec::with_capacity(checks.len());
        gatekeeper.decide_batch(&checks, gatekeeper.clock_instant(now), &mut decisions).await;
        self.write_replies(listener, &decisions, replies);
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

/// A call that cannot wait in the batch, or not before the calls that wait are decided. Boxed, so that the common case
/// returns nothing large.
#[derive(Debug)]
pub(super) struct UnqueuedThrottle<'a> {
    key_range: (u32, u32),
    added: Result<(ThrottleCommand<'a>, BatchAddResult), ThrottleError<'a>>,
}

impl UnqueuedThrottle<'_> {
    /// Decides the waiting calls, whose keys `base` holds, then this one or adds it to the empty batch.
    pub(super) async fn run(
        self: Box<Self>,
        listener: &RespListener,
        batch: &mut ThrottleBatch,
        base: &[u8],
        replies: &mut Replies,
    ) {
        if !batch.is_empty() {
            batch.decide(listener, base, replies).await;
        }
        let UnqueuedThrottle { key_range, mut added } = *self;
        if let Ok((call, BatchAddResult::Full)) = added {
            added = batch.add(listener, &call, key_range).map(|added| (call, added));
        }
        if !matches!(added, Ok((_, BatchAddResult::Queued))) {
            let now = batch.take_instant(listener);
            // Boxed: the future is large, and most connections never need it.
            Box::pin(reply_unqueued(listener, added, now, replies)).await;
        }
    }
}

/// Replies to a call that cannot wait in a batch. All calls before it have been decided.
async fn reply_unqueued(
    listener: &RespListener,
    added: Result<(ThrottleCommand<'_>, BatchAddResult), ThrottleError<'_>>,
    now: Micros,
    replies: &mut Replies,
) {
    let gatekeeper = &listener.gatekeeper;
    listener.counters.count_commands(Some(RespCommand::Throttle), 1);
    let reply = match added {
        Ok((call, BatchAddResult::DecideAlone(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let decision = gatekeeper.decide_check(&check, gatekeeper.clock_instant(now)).await;
            throttle::reply(limit.capacity(), &decision)
        }
        Ok((call, BatchAddResult::DecideInOverflow(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let decision = gatekeeper.decide_in_overflow(&check, gatekeeper.clock_instant(now));
            listener.counters.count_overflow_call();
            listener.audit.warn_too_many_limits(&listener.counters, now);
            throttle::reply(limit.capacity(), &decision)
        }
        Ok((_, BatchAddResult::Replied(reply))) => reply,
        Ok((_, BatchAddResult::Queued | BatchAddResult::Full)) => {
            unreachable!("an empty batch has room, and queued calls are decided by it")
        }
        Err(error) => {
            listener.counters.count_error(RespErrorKind::Command);
            return replies.error(error);
        }
    };
    listener.counters.count_throttled(u64::from(reply[0] == 0), u64::from(reply[0] == 1));
    replies.reply_fields(reply);
}
