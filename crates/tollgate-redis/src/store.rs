//! `RedisStore`: answers checks by one call of the script, exactly as the memory store would.
//!
//! ```text
//!   checks ─▶ request.rs  their keys            keys.rs: names, slots
//!          ─▶ script.rs   what the script reads  lua/*.lua: judges and charges
//!          ─▶ link.rs     to the server and back
//!          ─▶ request.rs  the same request on the states that the script found
//! ```
//!
//! The script says what it found, not what it thinks of it: how much is left and for how long to wait
//! is computed here, by the functions of the memory store. What the script leaves to Rust (numbers
//! that changed, values nobody can read, a clock that jumped, a calendar's next day, "up to") is
//! decided here whole and written only if nobody else wrote meanwhile.

use std::collections::HashMap;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use tokio::runtime::Handle;
use tollgate::algorithm::State;
use tollgate::store::stored_state::{self, Purpose, StoredState};
use tollgate::store::{InspectedState, InspectedStates};
use tollgate::{Check, DecidedBy, Decision, Key, Limit, Micros, Outcome, Receipt};
use tollgate_shared::TimeSource;
use tollgate_shared::remote_store::{CallTiming, StateName};

use crate::error::{ErrorClass, StoreError};
use crate::instances::StoreInstances;
use crate::options::RedisOptions;
use crate::script::call::{ScriptBody, ScriptCall};
use crate::script::keys::{self, RedisKeyNamer};
use crate::script::request::{self, ScriptRequest};
use crate::script::{self, ScriptReply, StateWrite};
use crate::transport::command::RedisCommand;
use crate::transport::link::Link;
use crate::transport::stats::LinkStats;
use crate::transport::url::StoreUrl;
use crate::transport::value::RedisValue;

use multi_slot::{PartialFailurePolicy, StoreAnswer};

mod late_changes;
mod multi_slot;
mod remote_store_impl;

/// Number of attempts to write a change that other writers overtook, while there is time.
const SWAP_ATTEMPTS_MAX: usize = 64;
/// The most limits whose description is remembered; beyond that all are described anew.
const DESCRIPTIONS_MAX: usize = 4_096;

/// Limits as the script reads them, by id and fingerprint.
type Descriptions = HashMap<(u64, u64), Arc<[u8]>>;

/// Limits that several processes keep together in Redis. Clones share it.
///
/// Used alone as a [`Store`](tollgate::Store), it does not enforce its own blocks: `block` writes them down and
/// `blocked` reads them, but decisions do not look at them. [`SharedLimiter`](crate::SharedLimiter) enforces them.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) link: Link,
    pub(crate) key_namer: Arc<RedisKeyNamer>,
    time: TimeSource,
    /// The channel between the instances on this store.
    pub(crate) instances: Arc<StoreInstances>,
    state: Arc<RedisStoreState>,
    /// The runtime of refunds in the background.
    runtime: Handle,
}

/// The part of a store that its clones share.
#[derive(Debug, Default)]
struct RedisStoreState {
    /// Bound: `DESCRIPTIONS_MAX`.
    descriptions: RwLock<Descriptions>,
    unreadable: AtomicU64,
    mismatches: AtomicU64,
    multi_call: AtomicU64,
    unanswered: AtomicU64,
    refunds_lost: AtomicU64,
}

/// Figures about a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisStats {
    /// Values found that nobody can read: foreign, or damaged. Each counted as nothing stored.
    pub unreadable: u64,
    /// Decisions in which script and Rust did not agree. Any but 0 is a bug, or a value written by
    /// another program.
    pub mismatches: u64,
    /// Requests that took more than one call: numbers that changed, clocks that jumped, "up to".
    pub multi_call: u64,
    /// Resets, and refunds that name no charge, which the store did not answer: it may not have them.
    pub unanswered: u64,
}

/// The result of a request to one slot, beside the outcomes.
struct ScriptDecision {
    /// True if the request passes.
    admitted: bool,
    /// The instant of the answer by the server's clock.
    at: Micros,
    /// The states after it, by key. Bound: one for each check. A log may have only those entries that
    /// matter to the answer.
    states: Vec<State>,
}

impl RedisStore {
    /// The store at this address. Starts to connect, on the tokio runtime it is called on, and returns
    /// at once. Calls before the first connection wait for it, at most [`RedisOptions::timeout`].
    pub fn at(url: &StoreUrl, options: &RedisOptions) -> RedisStore {
        RedisStore {
            link: Link::start(url, options),
            instances: Arc::new(StoreInstances::new(options)),
            key_namer: Arc::new(RedisKeyNamer::new(options, url.slots)),
            time: options.time,
            state: Arc::default(),
            runtime: Handle::current(),
        }
    }

    /// Figures for metrics.
    pub fn stats(&self) -> RedisStats {
        RedisStats {
            unreadable: self.state.unreadable.load(Ordering::Relaxed),
            mismatches: self.state.mismatches.load(Ordering::Relaxed),
            multi_call: self.state.multi_call.load(Ordering::Relaxed),
            unanswered: self.state.unanswered.load(Ordering::Relaxed),
        }
    }

    /// Figures about the connections to the servers: connections, calls, failures by class.
    pub fn link_stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Decides several checks as one request: all pass and are charged, or none is charged.
    /// `outcomes`, which is as long as `checks`, gets what each limit said, in order.
    pub async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, StoreError> {
        if let Some(decision) = stored_state::answer_without_store(checks, now) {
            outcomes.fill(Outcome::default());
            return Ok(decision);
        }
        let answer = self
            .answer_checks(
                checks,
                self.call_timing(now),
                outcomes,
                PartialFailurePolicy::FailRequest,
            )
            .await?;
        self.refund_in_background(checks, answer.to_refund, now);
        let (by, at) = (DecidedBy::Redis, answer.answered_at);
        Ok(stored_state::decision_of_outcomes(checks, outcomes, by, at))
    }

    /// A caller waits who asked at this instant.
    fn call_timing(&self, now: Micros) -> CallTiming {
        CallTiming { now, deadline: self.link.deadline() }
    }

    /// Answers checks, wherever their keys are. In a cluster some of the nodes may fail.
    async fn answer_checks(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        partly: PartialFailurePolicy,
    ) -> Result<StoreAnswer, StoreError> {
        let limits = stored_state::limits_for_keys(checks);
        let request = ScriptRequest::new(&self.key_namer, checks, &limits);
        if self.link.is_cluster() && !is_same(request.slots()) {
            return Box::pin(self.answer_multi_slot(checks, when, outcomes, partly)).await;
        }
        let ScriptDecision { at, states, .. } =
            match self.decide_in_one_call(&request, when, outcomes).await {
                Err(error) if error.class == ErrorClass::TryAgain => {
                    return Box::pin(self.answer_multi_slot(checks, when, outcomes, partly)).await;
                }
                told => told?,
            };
        let states = request.states_by_check(states);
        Ok(StoreAnswer { answered_at: at, states, failed_checks: 0, to_refund: Vec::new() })
    }

    /// A request whose keys are in one slot, or need not be.
    async fn decide_in_one_call(
        &self,
        request: &ScriptRequest<'_>,
        when: CallTiming,
        outcomes: &mut [Outcome],
    ) -> Result<ScriptDecision, StoreError> {
        if request.has_up_to() {
            return Box::pin(self.decide_up_to(request, when, outcomes)).await;
        }
        let reply = self.call_for_request(request, when).await?;
        match self.read_decision(request, &reply, outcomes) {
            Some(told) => Ok(told),
            None => Box::pin(self.decide_in_rust(request, reply, when, outcomes)).await,
        }
    }

    async fn call_for_request(
        &self,
        request: &ScriptRequest<'_>,
        when: CallTiming,
    ) -> Result<ScriptReply, StoreError> {
        let plain = script::is_plain(&request.checks);
        let body = (!plain).then(|| request.body());
        self.call_script(&request.keys, self.request_descriptions(request, when), body, when).await
    }

    async fn call_script(
        &self,
        keys: &[Vec<u8>],
        limits: Vec<Arc<[u8]>>,
        body: Option<ScriptBody>,
        when: CallTiming,
    ) -> Result<ScriptReply, StoreError> {
        let slot = if self.link.is_cluster() { keys::slot(&keys[0]) } else { 0 };
        let now = (self.time == TimeSource::Caller).then_some(when.now.as_u64());
        let call = ScriptCall { slot, keys: keys.to_vec(), limits, body, now };
        let reply = ScriptReply::read(self.link.call_by(call, when.deadline).await?)?;
        if reply.stored_values.len() != keys.len() {
            return Err(script::not_understood());
        }
        Ok(reply)
    }

    /// Reads the decision of the script and computes the outcomes. `None` if it decided nothing, or
    /// decided on an invalid state, which must be repaired.
    fn read_decision(
        &self,
        request: &ScriptRequest<'_>,
        reply: &ScriptReply,
        outcomes: &mut [Outcome],
    ) -> Option<ScriptDecision> {
        let charged = reply.refused? == 0;
        let (mut seen, unreadable) = request.decode_all(reply);
        if unreadable > 0 {
            return None;
        }
        let admitted = request.decide(&mut seen, reply.now, outcomes);
        if admitted != charged {
            self.state.mismatches.fetch_add(1, Ordering::Relaxed);
            // What the script did not charge must not pass.
            if !charged {
                return None;
            }
        }
        let states = seen.into_iter().map(StoredState::into_state).collect();
        Some(ScriptDecision { admitted, at: reply.now, states })
    }

    /// Decides on what was found and writes it, if nobody else writes meanwhile.
    async fn decide_in_rust(
        &self,
        request: &ScriptRequest<'_>,
        mut reply: ScriptReply,
        when: CallTiming,
        outcomes: &mut [Outcome],
    ) -> Result<ScriptDecision, StoreError> {
        self.state.multi_call.fetch_add(1, Ordering::Relaxed);
        // What the script cannot be trusted with it is not asked again.
        let mut scripted = reply.refused.is_none() && !request.has_up_to();
        for round in 0..SWAP_ATTEMPTS_MAX {
            let (mut seen, unreadable) = request.decode_all(&reply);
            if round == 0 {
                self.state.unreadable.fetch_add(unreadable as u64, Ordering::Relaxed);
            }
            let admitted = request.decide(&mut seen, reply.now, outcomes);
            let states = seen.iter().map(|seen| seen.state().clone()).collect();
            let told = ScriptDecision { admitted, at: reply.now, states };
            let writes: Vec<StateWrite> = seen
                .into_iter()
                .enumerate()
                .map(|(place, seen)| {
                    request::state_write(request.limit(place), seen, self.time, reply.now)
                })
                .collect();
            if writes.iter().all(Option::is_none) {
                return Ok(told);
            }
            let limits =
                if scripted { self.request_descriptions(request, when) } else { Vec::new() };
            let body = script::swap(
                reply.stored_values.iter().zip(&writes),
                scripted.then(|| request.body()),
            );
            reply = self.call_script(&request.keys, limits, Some(body), when).await?;
            if reply.swapped {
                return Ok(told);
            }
            if let Some(told) = self.read_decision(request, &reply, outcomes) {
                return Ok(told);
            }
            scripted &= reply.refused.is_none();
        }
        Err(self.contended())
    }

    /// "Up to": asks how much there is, and takes that, if it is still there.
    async fn decide_up_to(
        &self,
        request: &ScriptRequest<'_>,
        when: CallTiming,
        outcomes: &mut [Outcome],
    ) -> Result<ScriptDecision, StoreError> {
        for _ in 0..SWAP_ATTEMPTS_MAX {
            let look = Some(script::read_values(request.keys.len()));
            let found = self.call_script(&request.keys, Vec::new(), look, when).await?;
            let (mut seen, unreadable) = request.decode_all(&found);
            let admitted = request.decide(&mut seen, found.now, outcomes);
            let Some(certain) = request.with_granted_costs(outcomes) else {
                return self.decide_in_rust(request, found, when, outcomes).await;
            };
            if !admitted || unreadable > 0 {
                return self.decide_in_rust(request, found, when, outcomes).await;
            }
            let reply = self.call_for_request(&certain, when).await?;
            match (reply.refused, self.read_decision(&certain, &reply, outcomes)) {
                (Some(0), Some(told)) => return Ok(told),
                (Some(1..), Some(_)) => {}
                _ => return self.decide_in_rust(request, reply, when, outcomes).await,
            }
        }
        Err(self.contended())
    }

    /// The descriptions of the limits of a request.
    fn request_descriptions(
        &self,
        request: &ScriptRequest<'_>,
        when: CallTiming,
    ) -> Vec<Arc<[u8]>> {
        let places = 0..request.keys.len();
        places.map(|place| self.describe(request.limit(place), when.now)).collect()
    }

    /// The description of a limit.
    fn describe(&self, limit: &Limit, now: Micros) -> Arc<[u8]> {
        if limit.is_staggered() || limit.calendar().is_some() {
            return script::describe(limit, self.time, now).into();
        }
        let name = (limit.id(), limit.fingerprint());
        let known = self.state.descriptions.read().unwrap_or_else(|poison| poison.into_inner());
        if let Some(known) = known.get(&name) {
            return Arc::clone(known);
        }
        drop(known);
        let description: Arc<[u8]> = script::describe(limit, self.time, now).into();
        let mut described =
            self.state.descriptions.write().unwrap_or_else(|poison| poison.into_inner());
        if described.len() >= DESCRIPTIONS_MAX {
            described.clear();
        }
        described.insert(name, Arc::clone(&description));
        description
    }

    /// Gives back up to `units`: of what a receipt is of, or, without one, as if charged now.
    pub async fn refund(
        &self,
        limit: &Limit,
        key: Key<'_>,
        receipt: Option<Receipt>,
        units: u64,
        now: Micros,
    ) -> Result<(), StoreError> {
        let units = receipt.as_ref().map_or(units, |receipt| units.min(receipt.granted()));
        if key.is_empty() || units == 0 {
            return Ok(());
        }
        let twin = receipt.as_ref().map_or(0, Receipt::twin);
        let charged_at = receipt.map(|receipt| receipt.charged_at());
        let limit = &*limit.for_key(key.as_bytes());
        let state = StateName { key: self.key_namer.hash(key.as_bytes()), twin };
        self.refund_state_by(state, limit, units, charged_at, self.call_timing(now)).await
    }

    /// The command for one take of this check, as it is sent: benchmarks send it over other transports.
    #[doc(hidden)]
    pub fn encoded_call(&self, check: &Check<'_>, now: Micros) -> Vec<u8> {
        let checks = slice::from_ref(check);
        let limits = stored_state::limits_for_keys(checks);
        let request = ScriptRequest::new(&self.key_namer, checks, &limits);
        let limits = self.request_descriptions(&request, self.call_timing(now));
        let body = (!script::is_plain(&request.checks)).then(|| request.body());
        let mut bytes = Vec::new();
        let call = ScriptCall { slot: 0, keys: request.keys, limits, body, now: None };
        script::assemble(&[call]).write_to(&mut bytes);
        bytes
    }

    /// The command that loads the script, as it is sent.
    #[doc(hidden)]
    pub fn encoded_load() -> Vec<u8> {
        let mut bytes = Vec::new();
        script::load().write_to(&mut bytes);
        bytes
    }

    fn decode_one(
        &self,
        limit: &Limit,
        reply: &ScriptReply,
        purpose: Purpose,
    ) -> (StoredState, bool) {
        let (seen, read) =
            request::decode_value(limit, &reply.stored_values[0], purpose, reply.now);
        self.state.unreadable.fetch_add(u64::from(!read), Ordering::Relaxed);
        (seen, read)
    }

    /// Forgets what is used of a limit. Whether there was anything.
    pub async fn reset(&self, limit: &Limit, key: Key<'_>) -> Result<bool, StoreError> {
        let key = self.key_namer.key(self.key_namer.subject(key.as_bytes()), limit, 0);
        let del = RedisCommand::new("DEL").arg(&key[..]);
        match self.link.run(del, Some(keys::slot(&key))).await? {
            RedisValue::Int(count) => Ok(count > 0),
            _ => Err(script::not_understood()),
        }
    }

    /// Units left, rounded down; negative when in debt.
    pub async fn balance(
        &self,
        limit: &Limit,
        key: Key<'_>,
        now: Micros,
    ) -> Result<i64, StoreError> {
        let limit = &*limit.for_key(key.as_bytes());
        let keys = [self.key_namer.key(self.key_namer.subject(key.as_bytes()), limit, 0)];
        let when = self.call_timing(now);
        let reply = self.call_script(&keys, Vec::new(), Some(script::read_values(1)), when).await?;
        let (seen, _) = self.decode_one(limit, &reply, Purpose::Read);
        Ok(seen.state().balance(limit, reply.now))
    }

    /// Reads the states that a request of at most
    /// [`MAX_LIMITS`](tollgate::decision::MAX_LIMITS) checks would be decided on; changes nothing.
    pub async fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Micros,
    ) -> Result<InspectedStates, StoreError> {
        let limits = stored_state::limits_for_keys(checks);
        let request = ScriptRequest::new(&self.key_namer, checks, &limits);
        let when = self.call_timing(now);
        let mut read = InspectedStates::at(now);
        // In a cluster the keys may be on several nodes.
        let keys_at_once = if self.link.is_cluster() { 1 } else { request.keys.len().max(1) };
        for (chunk, keys) in request.keys.chunks(keys_at_once).enumerate() {
            let look = Some(script::read_values(keys.len()));
            let reply = self.call_script(keys, Vec::new(), look, when).await?;
            read.at = read.at.max(reply.now);
            for (index, value) in reply.stored_values.iter().enumerate() {
                let limit = request.limit(chunk * keys_at_once + index);
                let (state, _) = request::decode_value(limit, value, Purpose::Read, reply.now);
                read.states.push(InspectedState { state, decided_by: DecidedBy::Redis });
            }
        }
        Ok(read)
    }

    /// Others were faster each time, and now it is too late.
    fn contended(&self) -> StoreError {
        self.link.count(ErrorClass::Contended);
        StoreError::new(ErrorClass::Contended, "others kept changing the state meanwhile")
    }
}

fn is_same(mut slots: impl Iterator<Item = u16>) -> bool {
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}
