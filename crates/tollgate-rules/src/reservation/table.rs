//! The table of open reservations: how many there may be, how large, and how many of one caller.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{KeyBuf, Micros};

use super::adaptive_bounds::{AdaptiveBoundReport, AdaptiveBounds, WorkOutcome};
use super::request_bytes::CountedEstimate;
use super::{
    Binding, ConcurrencyRefusal, ReservationId, ReservedCharge, SettleError, websocket_limits,
};
use crate::facts::Facts;
use crate::normalized_facts::network_of;
use crate::plan::RequestPlan;
use crate::rule::Rule;
use crate::waiting::BottleneckId;

/// The most reservations that are open at once; about as many expired ones are remembered, to
/// distinguish expired ids from unknown ones.
pub const RESERVATIONS_MAX: usize = 65_536;

/// The most reservations that one caller has open at once; under a rule whose `concurrency` is
/// higher, that many. A caller is a user, an API key or an address that a request states, and each
/// key that its rules count, unless others share it: one made of a path alone only if the request
/// states no caller.
pub const RESERVATIONS_PER_CALLER_MAX: usize = 1_024;

/// The largest reservation that is counted by number and not by bytes. All short ones together take
/// at most 96 MiB.
const SHORT_BYTES: usize = 1_536;

/// The bytes of all longer ones together: 32 MiB. Reservations under long keys cannot use up the
/// room of short ones.
pub(super) const LONG_BYTES_MAX: usize = 32 << 20;

/// The bytes that one caller has of these.
const LONG_BYTES_PER_CALLER_MAX: usize = LONG_BYTES_MAX / 16;

/// Bytes that the collections take for one reservation, without its contents.
const RESERVATION_BYTES: usize = 256;

/// Bytes that the collections take for one hash.
const HASH_ENTRY_BYTES: usize = 48;

/// Number of expired reservations removed with each call.
const EXPIRED_PER_CALL: usize = 64;

/// Secrets of this process: they seal ids without charges, and hash keys so that nobody can aim at a
/// hash.
#[derive(Debug, Default)]
pub(super) struct ReservationSecrets([RandomState; 2]);

impl ReservationSecrets {
    /// A random id, which nobody can guess.
    fn new_id() -> ReservationId {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system gives random numbers");
        ReservationId(u128::from_le_bytes(bytes))
    }

    /// The id of a reservation without charges: its deadline, sealed.
    pub(super) fn id_without_charges(&self, deadline: Micros) -> ReservationId {
        let deadline = deadline.as_u64();
        let seal = self.0[0].hash_one(("nothing", deadline));
        ReservationId(u128::from(seal) << 64 | u128::from(deadline))
    }

    /// The deadline in an id of [`id_without_charges`](ReservationSecrets::id_without_charges).
    pub(super) fn deadline_without_charges(&self, id: ReservationId) -> Option<Micros> {
        let deadline = Micros::new(id.0 as u64);
        (self.id_without_charges(deadline) == id).then_some(deadline)
    }

    /// The hash of the work of a rule and key that is in flight.
    pub(super) fn in_flight_hash(&self, rule: &Rule, key: &KeyBuf) -> u64 {
        self.hash(&rule.scoped("in_flight", key))
    }

    fn hash(&self, key: &KeyBuf) -> u64 {
        self.0[1].hash_one(key)
    }
}

/// The most bounds on work in progress of one request: each rule of a plan, with limits or without, may have two.
const BOUNDS_MAX: usize = 4 * MAX_LIMITS;

/// A bound on work in progress.
#[derive(Clone, Copy)]
enum WorkBound<'r> {
    /// The `concurrency` of a rule, which may be adaptive.
    Concurrency(&'r Rule),
    /// Connections of WebSockets.
    Connections(u32),
}

impl WorkBound<'_> {
    /// Returns true if latency decides the bound: work counts until its measured time ends.
    fn is_adaptive(self) -> bool {
        let WorkBound::Concurrency(rule) = self else { return false };
        rule.concurrency.as_ref().is_some_and(|one| one.adaptive_min.is_some())
    }

    /// The highest that the bound can be.
    fn max(self) -> u32 {
        match self {
            WorkBound::Concurrency(rule) => rule.concurrency.as_ref().map_or(0, |one| one.max),
            WorkBound::Connections(max) => max,
        }
    }
}

/// The size of a reservation, and its callers.
pub(super) struct ReservationRequest<'r> {
    bytes: usize,
    /// The caller, by each of its names.
    callers: ArrayVec<u64, { MAX_LIMITS + 1 }>,
    /// The most that this caller may have.
    max_reservations: usize,
    /// Bounds on work in progress: which, how much, and the hash of what they count.
    concurrency: ArrayVec<(Binding, WorkBound<'r>, u64), BOUNDS_MAX>,
}

impl<'r> ReservationRequest<'r> {
    pub(super) fn new(
        plan: &RequestPlan<'r>,
        facts: &Facts<'_>,
        secrets: &ReservationSecrets,
    ) -> ReservationRequest<'r> {
        let mut callers = ArrayVec::<u64, { MAX_LIMITS + 1 }>::new();
        callers.extend(stated_caller(plan, facts).map(|key| secrets.hash(&key)));
        let is_stated = !callers.is_empty();
        let own = plan.limits.iter().filter(|planned| {
            let key = &plan.rule(planned).key;
            if is_stated { key.names_caller() } else { !key.is_global() }
        });
        for key in own.map(|planned| secrets.hash(plan.caller(planned))) {
            if !callers.contains(&key) {
                callers.push(key);
            }
        }
        let counted: ArrayVec<(Binding, WorkBound<'r>, u64), BOUNDS_MAX> = plan
            .enforced()
            .flat_map(|(number, rule, key)| {
                let in_flight = rule.concurrency.as_ref().map(|_| {
                    let hash = secrets.in_flight_hash(rule, key);
                    (Binding::Concurrency(number), WorkBound::Concurrency(rule), hash)
                });
                let connections = websocket_limits(rule, facts).and_then(|limits| {
                    let bound = WorkBound::Connections(limits.connections.as_ref()?.max);
                    let hash = secrets.hash(&rule.scoped("connections", key));
                    Some((Binding::Connections(number), bound, hash))
                });
                in_flight.into_iter().chain(connections)
            })
            .collect();
        let allowed = counted.iter().map(|(_, bound, _)| bound.max() as usize).max().unwrap_or(0);
        let keys: usize = SharedKeys::new(plan).0.iter().map(|key| key.as_bytes().len()).sum();
        let bytes = RESERVATION_BYTES
            + plan.limits.len() * size_of::<ReservedCharge>()
            + keys
            + (callers.len() + counted.len()) * HASH_ENTRY_BYTES;
        ReservationRequest {
            bytes,
            callers,
            max_reservations: allowed.max(RESERVATIONS_PER_CALLER_MAX),
            concurrency: counted,
        }
    }

    fn long_bytes(&self) -> usize {
        if self.bytes > SHORT_BYTES { self.bytes } else { 0 }
    }
}

/// The caller that the request states, whatever the rules count.
fn stated_caller(plan: &RequestPlan<'_>, facts: &Facts<'_>) -> Option<KeyBuf> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(String::from);
    let network = || {
        let prefix = plan.rules().settings().identify.ipv6_prefix;
        facts.ip.map(|ip| network_of(ip.to_canonical(), prefix).to_string())
    };
    let named = [("user", given(facts.user)), ("api_key", given(facts.api_key)), ("ip", network())];
    let (name, value) = named.into_iter().find_map(|(name, value)| Some((name, value?)))?;
    Some(KeyBuf::new().with(name, &value))
}

/// The different keys of a plan, each once however many limits count it.
pub(super) struct SharedKeys<'p>(ArrayVec<&'p KeyBuf, MAX_LIMITS>);

impl<'p> SharedKeys<'p> {
    pub(super) fn new(plan: &'p RequestPlan<'_>) -> SharedKeys<'p> {
        let mut keys = ArrayVec::<&KeyBuf, MAX_LIMITS>::new();
        for key in plan.limits.iter().map(|planned| plan.key_for(planned)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        SharedKeys(keys)
    }

    /// Copies each key, and returns a function that finds the copy.
    pub(super) fn copied(&self) -> impl Fn(&KeyBuf) -> Arc<KeyBuf> + use<> {
        let copies: ArrayVec<Arc<KeyBuf>, MAX_LIMITS> =
            self.0.iter().map(|key| Arc::new((*key).clone())).collect();
        move |key| {
            let copy = copies.iter().find(|copy| ***copy == *key);
            Arc::clone(copy.expect("every key of the plan was copied"))
        }
    }
}

/// All open reservations.
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    /// Bounds: [`RESERVATIONS_MAX`] of them; those that are not short take at most
    /// [`LONG_BYTES_MAX`] together.
    open: HashMap<ReservationId, OpenReservation>,
    /// The open reservations by deadline.
    by_deadline: BTreeSet<(Micros, ReservationId)>,
    /// Work in flight, by hash of rule and key. Bound: as many for each open one as a decision has
    /// limits.
    in_flight: HashMap<u64, u32>,
    /// The bounds that are found by latency.
    adaptive: AdaptiveBounds,
    /// The open reservations of each caller, by hash. Bound: one more for each open one than a
    /// decision has limits.
    by_caller: HashMap<u64, CallerUsage>,
    long_bytes: usize,
    /// Ids of expired reservations. Bound: [`RESERVATIONS_MAX`].
    expired: HashSet<ReservationId>,
    /// The same ids, oldest first.
    expired_in_order: VecDeque<ReservationId>,
}

/// The open reservations of one caller.
#[derive(Debug, Default)]
struct CallerUsage {
    reservations: usize,
    long_bytes: usize,
}

/// An open reservation.
#[derive(Debug)]
pub(super) struct OpenReservation {
    pub(super) charges: Vec<ReservedCharge>,
    /// Hashes that it counts in flight under until it ends.
    in_flight: Box<[u64]>,
    /// Hashes that it counts in flight under until its measured time ends. Work that is open for longer, such as a
    /// stream, must not fill an adaptive bound: nothing would be measured any more, and the bound would never change.
    measured: Box<[u64]>,
    /// Hashes of its caller.
    callers: Box<[u64]>,
    long_bytes: usize,
    held_at: Micros,
    deadline: Micros,
}

impl OpenReservation {
    /// All hashes that it counts in flight under.
    pub(super) fn bounds(&self) -> impl Iterator<Item = u64> {
        self.in_flight.iter().chain(&self.measured).copied()
    }
}

/// The reason why a reservation is refused.
pub(super) enum ReservationRefusal {
    /// The table is full.
    Full,
    /// This caller has too many reservations or too much work in flight.
    Busy(ConcurrencyRefusal),
}

impl ReservationTable {
    /// The work under a hash that is in progress, and the most that may be now.
    pub(super) fn work_in_progress(&self, rule: &Rule, hash: u64) -> Option<(u32, u32)> {
        let in_flight = self.in_flight.get(&hash).copied().unwrap_or_default();
        Some((in_flight, self.adaptive.bound(rule, hash)?))
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Holds a place for a charge, or returns the reason why there is none.
    pub(super) fn hold(
        &mut self,
        request: &ReservationRequest<'_>,
        deadline: Micros,
        now: Micros,
    ) -> Result<ReservationId, ReservationRefusal> {
        self.expire(now, EXPIRED_PER_CALL);
        if self.refusal(request).is_some() {
            // Close all expired ones first, so that none of them causes the refusal.
            self.expire(now, usize::MAX);
        }
        match self.refusal(request) {
            Some(why) => Err(why),
            None => Ok(self.insert(request, deadline, now)),
        }
    }

    /// The reason why a reservation is refused; `None` if there is room. The caller's own bounds
    /// come first: a caller who is over them gets that reason also if the table is full.
    fn refusal(&self, request: &ReservationRequest<'_>) -> Option<ReservationRefusal> {
        let busy = request.concurrency.iter().find_map(|(binding, bound, hash)| {
            let going_on = self.in_flight.get(hash).copied().unwrap_or(0);
            let (max, waits) = match bound {
                WorkBound::Concurrency(rule) => (self.adaptive.bound(rule, *hash)?, true),
                // Nobody knows when a WebSocket ends, so requests do not wait for it.
                WorkBound::Connections(max) => (*max, false),
            };
            (going_on >= max).then_some(ConcurrencyRefusal {
                bound: Some(*binding),
                bottleneck: waits.then_some(BottleneckId(*hash)),
                max,
            })
        });
        let over = |caller: &u64| {
            self.by_caller.get(caller).is_some_and(|share| {
                let long = request.long_bytes() > 0
                    && share.long_bytes + request.long_bytes() > LONG_BYTES_PER_CALLER_MAX;
                share.reservations >= request.max_reservations || long
            })
        };
        let busy = busy
            .or_else(|| request.callers.iter().any(over).then_some(ConcurrencyRefusal::TABLE_FULL));
        let full = self.open.len() >= RESERVATIONS_MAX
            || request.long_bytes() > 0 && self.long_bytes + request.long_bytes() > LONG_BYTES_MAX;
        busy.map(ReservationRefusal::Busy).or(full.then_some(ReservationRefusal::Full))
    }

    fn insert(
        &mut self,
        request: &ReservationRequest<'_>,
        deadline: Micros,
        now: Micros,
    ) -> ReservationId {
        let id = ReservationSecrets::new_id();
        let hashes = |adaptive: bool| {
            let bounds = request.concurrency.iter();
            bounds.filter(move |(_, bound, _)| bound.is_adaptive() == adaptive).map(|it| it.2)
        };
        let open = OpenReservation {
            charges: Vec::new(),
            in_flight: hashes(false).collect(),
            measured: hashes(true).collect(),
            callers: request.callers.iter().copied().collect(),
            long_bytes: request.long_bytes(),
            held_at: now,
            deadline,
        };
        for (_, bound, hash) in &request.concurrency {
            *self.in_flight.entry(*hash).or_default() += 1;
            if let WorkBound::Concurrency(rule) = bound {
                self.adaptive.began(rule, *hash, &self.in_flight, now);
            }
        }
        for caller in &open.callers {
            let share = self.by_caller.entry(*caller).or_default();
            share.reservations += 1;
            share.long_bytes += open.long_bytes;
        }
        self.long_bytes += open.long_bytes;
        self.by_deadline.insert((deadline, id));
        self.open.insert(id, open);
        id
    }

    /// Records the end of an open reservation's measured time, once: it no longer counts under adaptive bounds. `None` is
    /// an end that was not measured apart: the work took as long as the reservation was open. Returns the hashes that it
    /// counted under.
    pub(super) fn measure(
        &mut self,
        id: ReservationId,
        outcome: Option<WorkOutcome>,
        now: Micros,
    ) -> Box<[u64]> {
        let Some(open) = self.open.get_mut(&id) else { return Box::default() };
        let outcome = outcome.unwrap_or(WorkOutcome::Answered(open.held_at.until(now)));
        let measured = std::mem::take(&mut open.measured);
        for hash in &measured {
            let left = self.count_out(*hash);
            self.adaptive.ended(*hash, outcome, left, now);
        }
        measured
    }

    /// Counts one work less in flight, and returns how much is left.
    fn count_out(&mut self, hash: u64) -> u32 {
        match self.in_flight.get_mut(&hash) {
            Some(count) if *count > 1 => {
                *count -= 1;
                *count
            }
            _ => {
                self.in_flight.remove(&hash);
                0
            }
        }
    }

    /// The bounds that are found by latency, by rule.
    pub(super) fn adaptive_bounds(&self, now: Micros) -> Vec<AdaptiveBoundReport> {
        self.adaptive.report(&self.in_flight, now)
    }

    /// Stores the charges of a held reservation. If its deadline has passed meanwhile, it is gone
    /// and the charges stand.
    pub(super) fn store_charges(&mut self, id: ReservationId, charges: Vec<ReservedCharge>) {
        if let Some(open) = self.open.get_mut(&id) {
            open.charges = charges;
        }
    }

    /// Removes and returns a reservation, if it is open and in time.
    pub(super) fn close(
        &mut self,
        id: ReservationId,
        now: Micros,
    ) -> Result<OpenReservation, SettleError> {
        self.expire(now, EXPIRED_PER_CALL);
        let late = self.open.get(&id).is_some_and(|open| open.deadline <= now);
        if late || self.expired.contains(&id) {
            return Err(SettleError::Expired);
        }
        self.remove(id).ok_or(SettleError::Unknown)
    }

    /// The estimates of a reservation that are counted by the bytes of its request. Of these, takes the charges that no
    /// response settles.
    pub(super) fn take_counted(
        &mut self,
        id: ReservationId,
    ) -> (Vec<Arc<CountedEstimate>>, Vec<ReservedCharge>) {
        let Some(open) = self.open.get_mut(&id) else { return Default::default() };
        let estimates = open.charges.iter().filter_map(|charge| charge.counted.clone()).collect();
        let by_request =
            |charge: &mut ReservedCharge| charge.counted.is_some() && charge.actual.is_none();
        (estimates, open.charges.extract_if(.., by_request).collect())
    }

    /// The charges of an open reservation.
    pub(super) fn charges(&self, id: ReservationId) -> Option<&[ReservedCharge]> {
        self.open.get(&id).map(|open| &open.charges[..])
    }

    /// Takes the charges of a reservation, if it is open and in time; it still counts as in flight.
    pub(super) fn take_charges(
        &mut self,
        id: ReservationId,
        now: Micros,
    ) -> Result<Vec<ReservedCharge>, SettleError> {
        match self.open.get_mut(&id) {
            Some(open) if open.deadline > now => Ok(std::mem::take(&mut open.charges)),
            None if !self.expired.contains(&id) => Err(SettleError::Unknown),
            _ => Err(SettleError::Expired),
        }
    }

    pub(super) fn remove(&mut self, id: ReservationId) -> Option<OpenReservation> {
        let open = self.open.remove(&id)?;
        self.by_deadline.remove(&(open.deadline, id));
        for hash in open.bounds() {
            self.count_out(hash);
        }
        for caller in &open.callers {
            match self.by_caller.get_mut(caller) {
                Some(share) if share.reservations > 1 => {
                    share.reservations -= 1;
                    share.long_bytes -= open.long_bytes;
                }
                _ => drop(self.by_caller.remove(caller)),
            }
        }
        self.long_bytes -= open.long_bytes;
        Some(open)
    }

    /// Closes expired reservations, only some at a time, so that no call waits for all.
    fn expire(&mut self, now: Micros, most: usize) {
        for _ in 0..most {
            let Some(&(deadline, id)) = self.by_deadline.first() else { return };
            if deadline > now {
                return;
            }
            self.remove(id);
            if self.expired_in_order.len() >= RESERVATIONS_MAX
                && let Some(oldest) = self.expired_in_order.pop_front()
            {
                self.expired.remove(&oldest);
            }
            self.expired.insert(id);
            self.expired_in_order.push_back(id);
        }
    }
}
