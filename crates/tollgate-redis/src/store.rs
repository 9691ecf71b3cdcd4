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

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use redis::Value;
use tollgate::algorithm::State;
use tollgate::store::replay::{self, Purpose, Seen};
use tollgate::{Act, Check, Decision, Key, Limit, Micros, Outcome, Receipt, Wait};

use crate::call::{Body, Call};
use crate::control::Instances;
use crate::error::{ErrorClass, StoreError};
use crate::keys::{self, Names};
use crate::link::Link;
use crate::options::{Options, TimeOf};
use crate::request::{self, Request};
use crate::script::{self, Found, Reply, Write};
use crate::stats::LinkStats;
use crate::url::StoreUrl;

mod lend;

/// How often a change that others overtook is tried again.
const ROUNDS: usize = 8;
/// The most limits whose description is remembered; beyond that all are described anew.
const MAX_DESCRIBED: usize = 4_096;

/// Limits that several processes keep together in Redis.
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) link: Link,
    pub(crate) names: Names,
    time: TimeOf,
    /// What all instances on it tell each other.
    pub(crate) instances: Instances,
    /// Descriptions by id and fingerprint. Bound: `MAX_DESCRIBED`.
    described: RwLock<HashMap<(u64, u64), Arc<[u8]>>>,
    unreadable: AtomicU64,
    mismatches: AtomicU64,
    retold: AtomicU64,
}

/// Figures about a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisStats {
    /// Values found that nobody can read: foreign, or damaged. Each counted as nothing stored.
    pub unreadable: u64,
    /// Decisions in which script and Rust did not agree. Anything but 0 is a bug, or a value that
    /// somebody else wrote.
    pub mismatches: u64,
    /// Requests that took more than one call: numbers that changed, clocks that jumped, "up to".
    pub retold: u64,
}

/// What a request came to, beside the outcomes.
struct Told {
    decision: Decision,
    /// The states after it, by place.
    states: Vec<State>,
}

impl RedisStore {
    /// The store at this address. Begins to connect, on the tokio runtime it is called on, and does
    /// not wait for that: until there is a connection, questions fail at once.
    pub fn at(url: &StoreUrl, options: &Options) -> RedisStore {
        RedisStore {
            link: Link::start(url, options),
            instances: Instances::new(&options.prefix),
            names: Names::new(options),
            time: options.time,
            described: RwLock::default(),
            unreadable: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            retold: AtomicU64::new(0),
        }
    }

    /// Figures for metrics.
    pub fn stats(&self) -> RedisStats {
        RedisStats {
            unreadable: self.unreadable.load(Ordering::Relaxed),
            mismatches: self.mismatches.load(Ordering::Relaxed),
            retold: self.retold.load(Ordering::Relaxed),
        }
    }

    /// How the way to the servers is doing: connections, calls, failures by class.
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
        self.decide_telling(checks, now, outcomes, |_, _| ()).await
    }

    /// As [`RedisStore::decide_each`]; `tell` gets the state of each check's limit after it. A log
    /// may have only those entries that matter to the answer.
    pub async fn decide_telling(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
        mut tell: impl FnMut(&Check<'_>, &State) + Send,
    ) -> Result<Decision, StoreError> {
        if let Some(decision) = replay::without_asking(checks, now) {
            outcomes.fill(Outcome::default());
            return Ok(decision);
        }
        let limits = request::shifted(checks);
        let request = Request::new(&self.names, checks, &limits);
        if self.link.is_cluster() && !is_same(request.slots()) {
            return self.decide_apart(checks, now, outcomes, &mut tell).await;
        }
        let told = self.decide_together(&request, now, outcomes).await?;
        for (check, place) in checks.iter().zip(&request.places) {
            tell(check, &told.states[*place]);
        }
        Ok(told.decision)
    }

    /// A request whose keys are in one slot, or need not be.
    async fn decide_together(
        &self,
        request: &Request<'_>,
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Result<Told, StoreError> {
        if request.asked.iter().any(|one| one.check.what() == Act::UpTo) {
            return self.decide_up_to(request, now, outcomes).await;
        }
        let reply = self.ask(request, now).await?;
        match reply.refused {
            Some(refused) => Ok(self.told(request, &reply, refused, outcomes)),
            None => self.decide_here(request, reply, now, outcomes).await,
        }
    }

    async fn ask(&self, request: &Request<'_>, now: Micros) -> Result<Reply, StoreError> {
        let plain = script::is_plain(&request.asked);
        let places = &request.places;
        let body = (!plain).then(|| script::decide(&request.asked, places, request.keys.len()));
        let limits =
            (0..request.keys.len()).map(|place| self.describe(request.limit(place), now)).collect();
        self.call(&request.keys, limits, body, now).await
    }

    async fn call(
        &self,
        keys: &[Vec<u8>],
        limits: Vec<Arc<[u8]>>,
        body: Option<Body>,
        now: Micros,
    ) -> Result<Reply, StoreError> {
        let slot = if self.link.is_cluster() { keys::slot(&keys[0]) } else { 0 };
        let now = (self.time == TimeOf::Caller).then_some(now.as_u64());
        let call = Call { slot, keys: keys.to_vec(), limits, body, now };
        let reply = Reply::read(self.link.call(call).await?)?;
        if reply.found.len() != keys.len() {
            return Err(script::not_understood());
        }
        Ok(reply)
    }

    /// What the script decided, as this process would have said it.
    fn told(
        &self,
        request: &Request<'_>,
        reply: &Reply,
        refused: u16,
        outcomes: &mut [Outcome],
    ) -> Told {
        let (mut seen, _) = self.open(request, reply);
        let decision = request.decide(&mut seen, reply.now, outcomes);
        if decision.allowed() != (refused == 0) {
            self.mismatches.fetch_add(1, Ordering::Relaxed);
        }
        Told { decision, states: seen.iter().map(|seen| seen.state().clone()).collect() }
    }

    fn open(&self, request: &Request<'_>, reply: &Reply) -> (Vec<Seen>, usize) {
        let opened = reply.found.iter().enumerate();
        let opened = opened.map(|(place, found)| request.open(place, found, reply.now));
        let (seen, read): (Vec<Seen>, Vec<bool>) = opened.unzip();
        let unreadable = read.iter().filter(|read| !**read).count();
        self.unreadable.fetch_add(unreadable as u64, Ordering::Relaxed);
        (seen, unreadable)
    }

    /// Decides on what was found and writes it, if nobody else writes meanwhile.
    async fn decide_here(
        &self,
        request: &Request<'_>,
        mut reply: Reply,
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Result<Told, StoreError> {
        self.retold.fetch_add(1, Ordering::Relaxed);
        for _ in 0..ROUNDS {
            let (mut seen, _) = self.open(request, &reply);
            let decision = request.decide(&mut seen, reply.now, outcomes);
            let states = seen.iter().map(|seen| seen.state().clone()).collect();
            let limits = (0..request.keys.len()).map(|place| request.limit(place));
            let writes = limits.zip(seen);
            let writes: Vec<Write> = writes
                .map(|(limit, seen)| request::write(limit, seen, self.time, reply.now))
                .collect();
            match self.swap(&request.keys, &reply.found, &writes, now).await? {
                None => return Ok(Told { decision, states }),
                Some(again) => reply = again,
            }
        }
        Err(contended())
    }

    /// Writes, if what was found is still there; else says what is.
    async fn swap(
        &self,
        keys: &[Vec<u8>],
        found: &[Found],
        writes: &[Write],
        now: Micros,
    ) -> Result<Option<Reply>, StoreError> {
        if writes.iter().all(Option::is_none) {
            return Ok(None);
        }
        let body = script::swap(found.iter().zip(writes));
        let reply = self.call(keys, Vec::new(), Some(body), now).await?;
        Ok(reply.refused.is_none().then_some(reply))
    }

    /// "Up to": asks how much there is, and takes that.
    async fn decide_up_to(
        &self,
        request: &Request<'_>,
        now: Micros,
        outcomes: &mut [Outcome],
    ) -> Result<Told, StoreError> {
        let look = Some(script::look(request.keys.len()));
        let found = self.call(&request.keys, Vec::new(), look, now).await?;
        self.decide_here(request, found, now, outcomes).await
    }

    /// The description of a limit.
    fn describe(&self, limit: &Limit, now: Micros) -> Arc<[u8]> {
        if limit.is_staggered() || limit.calendar().is_some() {
            return script::describe(limit, self.time, now).into();
        }
        let name = (limit.id(), limit.fingerprint());
        let known = self.described.read().unwrap_or_else(|poison| poison.into_inner());
        if let Some(known) = known.get(&name) {
            return Arc::clone(known);
        }
        drop(known);
        let description: Arc<[u8]> = script::describe(limit, self.time, now).into();
        let mut described = self.described.write().unwrap_or_else(|poison| poison.into_inner());
        if described.len() >= MAX_DESCRIBED {
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
        let charged_at = receipt.map(|receipt| receipt.charged_at());
        let limit = &*limit.for_key(key.as_bytes());
        let keys = [self.names.key(self.names.subject(key.as_bytes()), limit, 0)];
        let body = script::refund(limit, units, charged_at);
        let mut reply = self.call(&keys, vec![self.describe(limit, now)], Some(body), now).await?;
        for _ in 0..ROUNDS {
            if reply.refused.is_some() || reply.found == [Found::Nothing] {
                return Ok(());
            }
            let (mut seen, _) = self.open_one(limit, &reply, Purpose::Settle);
            seen.refund(limit, units, charged_at, reply.now);
            let write = request::write(limit, seen, self.time, reply.now);
            match self.swap(&keys, &reply.found, &[write], now).await? {
                None => return Ok(()),
                Some(again) => reply = again,
            }
        }
        Err(contended())
    }

    fn open_one(&self, limit: &Limit, reply: &Reply, purpose: Purpose) -> (Seen, bool) {
        let (seen, read) = request::open(limit, &reply.found[0], purpose, reply.now);
        self.unreadable.fetch_add(u64::from(!read), Ordering::Relaxed);
        (seen, read)
    }

    /// Forgets what is used of a limit. Whether there was anything.
    pub async fn reset(&self, limit: &Limit, key: Key<'_>) -> Result<bool, StoreError> {
        let key = self.names.key(self.names.subject(key.as_bytes()), limit, 0);
        let del = redis::cmd("DEL").arg(&key[..]).take();
        match self.link.run(del, Some(keys::slot(&key))).await? {
            Value::Int(count) => Ok(count > 0),
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
        let keys = [self.names.key(self.names.subject(key.as_bytes()), limit, 0)];
        let reply = self.call(&keys, Vec::new(), Some(script::look(1)), now).await?;
        let (seen, _) = self.open_one(limit, &reply, Purpose::Ask);
        Ok(seen.state().balance(limit, reply.now))
    }

    /// A request whose keys are in several slots: each slot's checks in turn, in the order of the
    /// checks. If one refuses, what the others were charged is given back: never above a limit, below
    /// it at most by the requests on their way.
    async fn decide_apart(
        &self,
        checks: &[Check<'_>],
        now: Micros,
        outcomes: &mut [Outcome],
        tell: &mut (impl FnMut(&Check<'_>, &State) + Send),
    ) -> Result<Decision, StoreError> {
        let mut charged: Vec<(usize, State)> = Vec::new();
        let mut refused = false;
        for group in groups(&self.names, checks) {
            let asked: Vec<Check<'_>> = group
                .iter()
                .map(|&index| match refused && !checks[index].counts_denied() {
                    true => checks[index].act(Act::Peek),
                    false => checks[index],
                })
                .collect();
            let limits = request::shifted(&asked);
            let request = Request::new(&self.names, &asked, &limits);
            let mut said = vec![Outcome::default(); asked.len()];
            let told = match self.decide_together(&request, now, &mut said).await {
                Ok(told) => told,
                Err(error) => {
                    self.give_back(checks, &charged, outcomes, now).await;
                    return Err(error);
                }
            };
            refused |= !told.decision.allowed();
            for (&index, (outcome, place)) in group.iter().zip(said.iter().zip(&request.places)) {
                outcomes[index] = *outcome;
                charged.push((index, told.states[*place].clone()));
            }
        }
        if refused {
            self.give_back(checks, &charged, outcomes, now).await;
        }
        for (index, state) in &charged {
            tell(&checks[*index], state);
        }
        Ok(Decision::of_outcomes(checks, outcomes, now))
    }

    /// Gives back what a request that is refused after all was charged, and takes it out of what its
    /// limits said. What cannot be given back runs out by itself.
    async fn give_back(
        &self,
        checks: &[Check<'_>],
        charged: &[(usize, State)],
        outcomes: &mut [Outcome],
        now: Micros,
    ) {
        for (index, state) in charged {
            let (check, outcome) = (&checks[*index], &mut outcomes[*index]);
            if outcome.charged == 0 || check.counts_denied() {
                outcome.charged = 0;
                continue;
            }
            let (limit, units, at) = (check.limit(), outcome.charged, outcome.served_at);
            let receipt = outcome.receipt();
            let _ = self.refund(limit, check.key(), Some(receipt), units, now).await;
            let limit: Cow<'_, Limit> = limit.for_key(check.key().as_bytes());
            let mut state = state.clone();
            tollgate::algorithm::refund(&limit, &mut state, units, Some(at), at);
            let after = tollgate::algorithm::judge(&limit, &state, 0, at);
            *outcome =
                Outcome { charged: 0, delay: Wait::ZERO, decided_by: outcome.decided_by, ..after };
        }
    }
}

fn is_same(mut slots: impl Iterator<Item = u16>) -> bool {
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

/// The checks of each slot, slots in the order of their first checks.
fn groups(names: &Names, checks: &[Check<'_>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(u16, Vec<usize>)> = Vec::new();
    for (index, check) in checks.iter().enumerate() {
        let subject = names.subject(check.key().as_bytes());
        let slot = keys::slot(&names.key(subject, check.limit(), 0));
        match groups.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, group)) => group.push(index),
            None => groups.push((slot, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn contended() -> StoreError {
    StoreError::new(ErrorClass::Contended, "others kept changing the state meanwhile")
}
