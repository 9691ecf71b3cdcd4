//! Calls of `CL.THROTTLE` that arrive together are decided together, as if in order at one instant:
//! the clock is read once, and the memory is asked for all keys at once.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use arrayvec::ArrayVec;
use tollgate::{Check, Decision, Limit, Micros, Now, Outcome, Store};

use super::RespListener;
use super::commands::Command;
use super::numbers::{Entry, Found, Meaning, Numbers};
use super::reply::Replies;
use super::throttle::{self, Throttle, ThrottleError};
use crate::store::ServerStore;

/// The most calls that are decided together.
pub(super) const BATCH_MAX: usize = 64;

/// The most sets of numbers that a connection remembers.
const KNOWN_MAX: usize = 16;

/// Calls that wait to be decided, and the numbers that this connection uses.
#[derive(Debug, Default)]
pub(super) struct Batch {
    calls: ArrayVec<Call, BATCH_MAX>,
    known: ArrayVec<(Numbers, Arc<Entry>), KNOWN_MAX>,
    /// Which of them the last call had,
    last: usize,
    /// and, one bit each, which any call has that waits.
    used: u16,
}

/// One call: where its key is, and what it asks.
#[derive(Clone, Copy, Debug)]
struct Call {
    key: (u32, u32),
    known: u8,
    quantity: u64,
}

/// What became of a call.
#[derive(Debug)]
pub(super) enum Added {
    /// It waits to be decided.
    Waits,
    /// It has its reply: nothing passes under its numbers.
    Nothing([i64; 5]),
    /// It is to be decided alone,
    Alone(Limit),
    /// or beside all others: there are too many numbers.
    Beyond(Limit),
    /// There is no room: those that wait have to be decided first.
    Full,
}

thread_local! {
    /// Room for decisions. Bound: [`BATCH_MAX`].
    static DECISIONS: RefCell<Vec<Decision>> = const { RefCell::new(Vec::new()) };
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a call, whose key begins and ends there.
    #[inline]
    pub(super) fn add<'a>(
        &mut self,
        listener: &RespListener,
        call: &Throttle<'a>,
        key: (u32, u32),
    ) -> Result<Added, ThrottleError<'a>> {
        let known = match self.known.get(self.last) {
            Some((numbers, _)) if *numbers == call.numbers => self.last,
            _ => match self.known.iter().position(|(numbers, _)| *numbers == call.numbers) {
                Some(known) => known,
                None => match self.learn(listener, call)? {
                    Ok(known) => known,
                    Err(added) => return Ok(added),
                },
            },
        };
        let call = Call { key, known: known as u8, quantity: call.quantity };
        if self.calls.try_push(call).is_err() {
            return Ok(Added::Full);
        }
        self.last = known;
        self.used |= 1 << known;
        Ok(Added::Waits)
    }

    /// Finds out about numbers that this connection has not used lately.
    #[cold]
    fn learn<'a>(
        &mut self,
        listener: &RespListener,
        call: &Throttle<'a>,
    ) -> Result<Result<usize, Added>, ThrottleError<'a>> {
        let now = listener.gatekeeper.now();
        let entry = match listener.book.known(call.numbers, now) {
            Some(entry) => entry,
            None => match call.numbers.meaning()? {
                Meaning::Limit(limit) => {
                    match listener.book.find(call.numbers, limit, call.quantity, now) {
                        Found::Used(entry) => entry,
                        Found::Asked(limit) => return Ok(Err(Added::Alone(limit))),
                        Found::Beyond(limit) => return Ok(Err(Added::Beyond(limit))),
                    }
                }
                Meaning::Nothing => {
                    let reply = throttle::reply_nothing(call.numbers, call.quantity);
                    return Ok(Err(Added::Nothing(reply)));
                }
            },
        };
        if self.known.is_full() {
            if !self.calls.is_empty() {
                return Ok(Err(Added::Full));
            }
            // All at once: which of them is used again is anybody's guess, and the book knows them.
            self.known.clear();
        }
        self.known.push((call.numbers, entry));
        Ok(Ok(self.known.len() - 1))
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
        let ServerStore::Memory(store) = listener.gatekeeper.limiter().store() else {
            return false;
        };
        let now = listener.gatekeeper.now();
        self.stay_known(listener, now);
        match &self.calls[..] {
            [] => {}
            // Most clients send one call and wait: no room is made for others.
            [call] => {
                let decision =
                    store.decide_one(&self.check(call, base), listener.gatekeeper.as_read(now));
                self.answer(listener, &[decision], replies);
            }
            calls => {
                let mut checks = ArrayVec::<_, BATCH_MAX>::new_const();
                checks.extend(calls.iter().map(|call| self.check(call, base)));
                let mut decisions = DECISIONS.take();
                store.decide_batch(&checks, listener.gatekeeper.as_read(now), &mut decisions);
                self.answer(listener, &decisions, replies);
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
        self.stay_known(listener, now);
        let store = listener.gatekeeper.limiter().store();
        let checks: Vec<_> = self.calls.iter().map(|call| self.check(call, base)).collect();
        let now = listener.gatekeeper.as_read(now);
        let asked = checks.iter().map(|check| Box::pin(decide_one(store, check, now))).collect();
        let decisions = all(asked).await;
        drop(checks);
        self.answer(listener, &decisions, replies);
        self.clear();
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.used = 0;
    }

    /// Numbers that nobody has used for long may have been forgotten: they are looked up again.
    fn stay_known(&mut self, listener: &RespListener, now: Micros) {
        for (index, (numbers, entry)) in self.known.iter_mut().enumerate() {
            if self.used >> index & 1 == 1
                && !entry.touch(now)
                && let Found::Used(found) =
                    listener.book.find(*numbers, entry.limit.clone(), 1, now)
            {
                *entry = found;
            }
        }
    }

    #[inline]
    fn check<'a>(&'a self, call: &Call, base: &'a [u8]) -> Check<'a> {
        let (_, entry) = &self.known[usize::from(call.known)];
        let (begin, end) = call.key;
        Check::new(&entry.limit, &base[begin as usize..end as usize]).cost(call.quantity)
    }

    fn answer(&self, listener: &RespListener, decisions: &[Decision], replies: &mut Replies) {
        let mut refused = 0;
        for (call, decision) in self.calls.iter().zip(decisions) {
            let (_, entry) = &self.known[usize::from(call.known)];
            replies.five(throttle::reply(entry.limit.capacity(), decision));
            refused += u64::from(!decision.allowed());
        }
        listener.figures.throttled(decisions.len() as u64 - refused, refused);
        listener.figures.commands(Some(Command::Throttle), decisions.len() as u64);
    }
}

/// Decides one call that is not put together with others.
pub(super) async fn decide_alone(listener: &RespListener, check: &Check<'_>) -> Decision {
    let now = listener.gatekeeper.as_read(listener.gatekeeper.now());
    Box::pin(decide_one(listener.gatekeeper.limiter().store(), check, now)).await
}

async fn decide_one(store: &ServerStore, check: &Check<'_>, now: Now<'_>) -> Decision {
    let outcomes = &mut [Outcome::default()];
    let Ok(decision) = store.decide_each(std::slice::from_ref(check), now, outcomes).await;
    decision
}

/// Waits for all of them. Bound: as many as there are.
pub(super) async fn all<T>(mut asked: Vec<Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
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
