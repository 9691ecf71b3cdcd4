//! The limiter on its table against a map of pure states.
//!
//! While there is room, every answer is equal to the map's. Under pressure a state may have been evicted, and a
//! fresh one answers then; but only if it was not limited, and enough others had used as large a share of their
//! capacity to fill all slots of a key.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use tollgate::algorithm::{self, State};
use tollgate::{
    Act, Algorithm, Align, Check, DecidedBy, Decision, Limit, LimitBuilder, Limiter, Micros,
    OnChange, Outcome, Receipt, Refusal, Wait,
};

use super::source::FuzzSource;

/// Runs the table with room or under pressure, as the first byte says.
pub fn table(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first % 2 {
        0 => table_with_room(rest),
        _ => table_under_pressure(rest),
    }
}

const SECOND_US: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND_US + 123_456;

/// Each limit with two versions of its numbers.
fn limits() -> Vec<[Limit; 2]> {
    let make: [fn(u64) -> LimitBuilder; 8] = [
        |units| Limit::per_second(units).burst(units + 2),
        |units| Limit::per_second(3).burst(units).algorithm(Algorithm::LeakyBucket),
        |units| Limit::per_second(2).burst(units).algorithm(Algorithm::LeakyBucket).queue(),
        |units| Limit::per_second(units).algorithm(Algorithm::FixedWindow),
        |units| Limit::per_minute(units).algorithm(Algorithm::FixedWindow).align(Align::FirstHit),
        |units| Limit::per_second(units).algorithm(Algorithm::SlidingWindowLog),
        |units| Limit::per_second(units).algorithm(Algorithm::SlidingWindowCounter),
        |units| Limit::per_minute(units).buckets(5),
    ];
    let built = |(name, make): (usize, &fn(u64) -> LimitBuilder)| {
        let few = make(4).name(name.to_string()).build();
        let many = make(30).name(name.to_string()).on_change(OnChange::Scale).build();
        [few, many].map(|limit| limit.expect("numbers in range"))
    };
    make.iter().enumerate().map(built).collect()
}

/// The parts of an answer that are compared.
type ComparedAnswer = (bool, u64, [Wait; 4], u64);

fn answer(outcome: &Outcome, granted: u64) -> ComparedAnswer {
    let Outcome { allowed, remaining, retry_after, reset_after, more_after, delay, .. } = *outcome;
    (allowed, remaining, [retry_after, reset_after, more_after, delay], granted)
}

fn answer_of(decision: &Decision) -> ComparedAnswer {
    let waits =
        [decision.retry_after(), decision.reset_after(), decision.more_after(), decision.delay()];
    (decision.allowed(), decision.remaining(), waits, decision.granted())
}

/// Applies one act to one state as the documentation says. Returns the outcome, the granted units, and true
/// if the state was written.
fn act(
    limit: &Limit,
    state: &mut State,
    act: Act,
    cost: u64,
    now: Micros,
) -> (ComparedAnswer, bool) {
    let cost = match act {
        Act::UpTo => {
            let left = algorithm::judge(limit, state, 0, now).remaining;
            cost.min(left).max(cost.min(1))
        }
        _ => cost,
    };
    let judged = algorithm::judge(limit, state, cost, now);
    match act {
        Act::Force => {
            if cost > 0 || judged.jumped {
                algorithm::charge(limit, state, cost, now);
            }
            let after = algorithm::judge(limit, state, 0, now);
            (answer(&after, cost), cost > 0 || judged.jumped)
        }
        Act::Peek => {
            let present = algorithm::judge(limit, state, 0, now);
            if judged.jumped {
                algorithm::charge(limit, state, 0, now);
            }
            let outcome = match judged.allowed {
                true => Outcome { delay: judged.delay, ..present },
                false => judged,
            };
            (answer(&outcome, 0), judged.jumped)
        }
        Act::Take | Act::UpTo => {
            let granted = if judged.allowed { cost } else { 0 };
            if granted > 0 || judged.jumped {
                algorithm::charge(limit, state, granted, now);
            }
            (answer(&judged, granted), granted > 0 || judged.jumped)
        }
    }
}

fn is_paced(limit: &Limit) -> bool {
    limit.algorithm().is_bucket() && limit.on_change() != OnChange::Reset
}

/// The model: a map with the states that an unbounded table would hold.
#[derive(Default)]
struct MapModel {
    states: HashMap<(usize, usize), (Limit, State)>,
    blocks: HashMap<usize, u64>,
}

impl MapModel {
    fn act(
        &mut self,
        place: (usize, usize),
        limit: &Limit,
        (what, cost): (Act, u64),
        now: Micros,
    ) -> ComparedAnswer {
        // A take carries a bucket over to the new numbers, whether it is granted or refused; other states are
        // carried over by a grant. A peek writes nothing, and a forced charge is applied under the numbers that
        // wrote the state: what other numbers granted is usage beyond them.
        if what == Act::Peek || cost == 0 {
            let mut state = self.state_under(place, limit, now);
            return act(limit, &mut state, what, cost, now).0;
        }
        if what == Act::Force {
            // A fresh state is equal to no state.
            self.states.retain(|at, (numbers, state)| {
                *at != place || !algorithm::fresh_after(numbers, state, now).is_zero()
            });
            let fresh = || (limit.clone(), State::fresh(limit, now));
            let (numbers, state) = self.states.entry(place).or_insert_with(fresh);
            match numbers == limit {
                true => algorithm::charge(numbers, state, cost, now),
                false => algorithm::charge_from_other_numbers(numbers, state, cost, now),
            }
            let after = self.state_under(place, limit, now);
            return answer(&algorithm::judge(limit, &after, 0, now), cost);
        }
        let mut state = self.state_under(place, limit, now);
        let (answer, wrote) = act(limit, &mut state, what, cost, now);
        if wrote || is_paced(limit) {
            self.states.insert(place, (limit.clone(), state));
        }
        answer
    }

    /// Carries a bucket over to the numbers that judged a take.
    fn carry_over(&mut self, place: (usize, usize), limit: &Limit, now: Micros) {
        if is_paced(limit) {
            let state = self.state_under(place, limit, now);
            self.states.insert(place, (limit.clone(), state));
        }
    }

    /// The state of a key under these numbers; the stored state does not change.
    fn state_under(&self, place: (usize, usize), limit: &Limit, now: Micros) -> State {
        let Some((old, state)) = self.states.get(&place) else { return State::fresh(limit, now) };
        let mut state = state.clone();
        if old != limit {
            algorithm::renumber(&mut state, old, limit, now);
        }
        state
    }

    /// Refunds under the numbers that wrote the state.
    fn refund(&mut self, place: (usize, usize), (units, at): (u64, Option<Micros>), now: Micros) {
        let Some((numbers, state)) = self.states.get_mut(&place) else { return };
        let fresh = algorithm::fresh_after(numbers, state, now).is_zero();
        if units > 0 && !fresh {
            algorithm::refund(numbers, state, units, at, now);
        }
    }

    /// The rest of a key's block; an expired block is removed.
    fn blocked(&mut self, key: usize, now: Micros) -> Option<Wait> {
        let left = self.blocks.get(&key)?.saturating_sub(now.as_u64());
        if left == 0 {
            self.blocks.remove(&key);
            return None;
        }
        Some(Wait::from_micros(left))
    }
}

/// Calls every operation on few keys; every answer must be equal to the map's.
pub fn table_with_room(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let mut run = RoomyTableRun {
        limiter: Limiter::with_capacity(400),
        limits: limits(),
        model: MapModel::default(),
        receipts: Vec::new(),
        now: Micros::new(START),
    };
    while !source.is_empty() {
        run.step(&mut source);
    }
    let stats = run.limiter.store().stats();
    assert_eq!((stats.evicted, stats.overflowed), (0, 0), "there was room");
    assert!(stats.keys <= KEYS * run.limits.len(), "{stats:?}");
    let every = |key| run.limits.iter().map(move |[limit, _]| (key, limit));
    forget_all(&run.limiter, (0..KEYS).flat_map(every), run.now);
}

struct RoomyTableRun {
    limiter: Limiter,
    limits: Vec<[Limit; 2]>,
    model: MapModel,
    receipts: Vec<(usize, usize, Receipt)>,
    now: Micros,
}

const KEYS: usize = 12;

fn name(key: usize) -> String {
    format!("key {key}")
}

impl RoomyTableRun {
    fn step(&mut self, source: &mut FuzzSource<'_>) {
        self.move_clock(source);
        let (key, which) = (source.below(KEYS), source.below(self.limits.len()));
        let limit = self.limits[which][usize::from(source.byte() > 230)].clone();
        let cost = u64::from(source.byte() % 8);
        match source.below(16) {
            0..=5 => self.act(key, which, &limit, (Act::Take, cost)),
            6 => self.act(key, which, &limit, (Act::Peek, cost)),
            7 => self.act(key, which, &limit, (Act::Force, cost)),
            8 => self.act(key, which, &limit, (Act::UpTo, cost)),
            9 | 10 => self.refund(source, cost),
            11 => {
                self.limiter.at(self.now).grant(&limit, &name(key), cost);
                self.model.refund((key, which), (cost, None), self.now);
            }
            12 => {
                let had = self.limiter.at(self.now).reset(&limit, &name(key));
                let state = self.model.state_under((key, which), &limit, self.now);
                self.model.states.remove(&(key, which));
                // A fresh state may be there or not.
                let fresh = algorithm::judge(&limit, &state, 0, self.now).reset_after.is_zero();
                assert!(had || fresh, "{limit}: a state was not there to be forgotten");
            }
            13 => self.block(key, source.number() % (4 * SECOND_US)),
            14 => self.several(source, cost),
            _ => self.batch(source, cost),
        }
    }

    /// Moves the clock, only forward: a state that has become fresh may be evicted, and an earlier request would
    /// notice. The target `algorithms` tests clocks that go back.
    fn move_clock(&mut self, source: &mut FuzzSource<'_>) {
        let now = self.now.as_u64();
        self.now = Micros::new(match source.below(8) {
            0..=3 => now,
            4 => now + u64::from(source.byte()),
            5 => now + u64::from(source.byte()) * 10_000,
            6 => now + u64::from(source.byte()) * SECOND_US / 4,
            _ => now + source.number() % (2 * SECOND_US),
        });
    }

    fn check<'a>(&self, limit: &'a Limit, name: &'a str, cost: u64) -> Check<'a> {
        Check::new(limit, name).cost(cost)
    }

    fn compare(&mut self, place: (usize, usize), limit: &Limit, ask: (Act, u64), got: &Decision) {
        if let Some(wait) = self.model.blocked(place.0, self.now)
            && ask.0 != Act::Force
        {
            let blocked = (Some(Refusal::Blocked), wait, DecidedBy::Block);
            assert_eq!((got.refusal(), got.retry_after(), got.decided_by()), blocked);
            return;
        }
        assert_eq!(got.decided_by(), DecidedBy::Memory);
        let want = self.model.act(place, limit, ask, self.now);
        assert_eq!(answer_of(got), want, "{limit} asked {ask:?} at {:?}", self.now);
    }

    fn act(&mut self, key: usize, which: usize, limit: &Limit, (what, cost): (Act, u64)) {
        let name = name(key);
        let check = self.check(limit, &name, cost).act(what);
        let got = self.limiter.at(self.now).decide(&[check]);
        self.compare((key, which), limit, (what, cost), &got);
        if got.granted() > 0 {
            self.receipts.push((key, which, got.receipt()));
        }
    }

    fn refund(&mut self, source: &mut FuzzSource<'_>, units: u64) {
        if self.receipts.is_empty() {
            return;
        }
        let index = source.below(self.receipts.len());
        let (key, which, receipt) = self.receipts.swap_remove(index);
        let limit = self.limits[which][0].clone();
        let back = (units.min(receipt.granted()), Some(receipt.charged_at()));
        self.limiter.at(self.now).refund(&limit, &name(key), receipt, units);
        self.model.refund((key, which), back, self.now);
    }

    fn block(&mut self, key: usize, micros: u64) {
        if micros.is_multiple_of(3) {
            let lifted = self.limiter.at(self.now).unblock(&name(key));
            let modelled = self.model.blocks.remove(&key).is_some();
            assert!(modelled || !lifted, "a block nobody made");
            return;
        }
        let until = Micros::new(self.now.as_u64() + micros);
        assert!(self.limiter.at(self.now).block(&name(key), until));
        let longest = self.model.blocks.entry(key).or_default();
        *longest = until.as_u64().max(*longest);
    }

    /// Decides several limits as one request: all are charged or none.
    fn several(&mut self, source: &mut FuzzSource<'_>, cost: u64) {
        let many = 2 + source.below(4);
        let mut asked: Vec<(usize, usize)> = Vec::new();
        for _ in 0..many {
            let place = (source.below(KEYS), source.below(self.limits.len()));
            if !asked.contains(&place) {
                asked.push(place);
            }
        }
        let names: Vec<String> = asked.iter().map(|(key, _)| name(*key)).collect();
        let limits: Vec<Limit> = asked.iter().map(|(_, l)| self.limits[*l][0].clone()).collect();
        let pairs = limits.iter().zip(&names);
        let checks: Vec<Check<'_>> =
            pairs.map(|(limit, name)| self.check(limit, name, cost)).collect();
        let mut outcomes = vec![Outcome::default(); checks.len()];
        let got = self.limiter.at(self.now).decide_each(&checks, &mut outcomes);
        let now = self.now;
        let blocked = asked.iter().filter_map(|(key, _)| self.model.blocked(*key, now)).max();
        if let Some(wait) = blocked {
            assert_eq!((got.refusal(), got.retry_after()), (Some(Refusal::Blocked), wait));
            return;
        }
        self.compare_several(&asked, &limits, cost, &got, &outcomes);
    }

    fn compare_several(
        &mut self,
        asked: &[(usize, usize)],
        limits: &[Limit],
        cost: u64,
        got: &Decision,
        outcomes: &[Outcome],
    ) {
        let now = self.now;
        let judge = |model: &MapModel, judged: u64| -> Vec<Outcome> {
            let each = asked.iter().zip(limits);
            each.map(|(place, limit)| {
                algorithm::judge(limit, &model.state_under(*place, limit, now), judged, now)
            })
            .collect()
        };
        let judged = judge(&self.model, cost);
        let allowed = judged.iter().all(|outcome| outcome.allowed);
        assert_eq!(got.allowed(), allowed, "{limits:?} cost {cost}");
        for (place, limit) in asked.iter().zip(limits).filter(|_| cost > 0) {
            match allowed {
                true => _ = self.model.act(*place, limit, (Act::Take, cost), now),
                false => self.model.carry_over(*place, limit, now),
            }
        }
        let refused = judged.iter().filter(|outcome| !outcome.allowed);
        let retry = refused.map(|outcome| outcome.retry_after).max().unwrap_or(Wait::ZERO);
        assert_eq!(got.retry_after(), retry, "{limits:?} cost {cost}");
        let present = judge(&self.model, 0);
        for (index, (got, want)) in outcomes.iter().zip(&present).enumerate() {
            assert_eq!(got.remaining, want.remaining, "{} cost {cost}", limits[index]);
            assert_eq!(got.reset_after, want.reset_after, "{} cost {cost}", limits[index]);
            assert_eq!(got.allowed, judged[index].allowed, "{} cost {cost}", limits[index]);
        }
    }

    /// Decides many requests as if in order.
    fn batch(&mut self, source: &mut FuzzSource<'_>, cost: u64) {
        let many = 1 + source.below(20);
        let asked: Vec<(usize, usize)> =
            (0..many).map(|_| (source.below(KEYS), source.below(self.limits.len()))).collect();
        let names: Vec<String> = asked.iter().map(|(key, _)| name(*key)).collect();
        let limits = self.limits.clone();
        let checks: Vec<Check<'_>> = asked
            .iter()
            .zip(&names)
            .map(|((_, which), name)| self.check(&limits[*which][0], name, cost))
            .collect();
        let mut decisions = Vec::new();
        self.limiter.at(self.now).decide_batch(&checks, &mut decisions);
        assert_eq!(decisions.len(), checks.len());
        for (place, got) in asked.into_iter().zip(&decisions) {
            self.compare(place, &limits[place.1][0], (Act::Take, cost), got);
        }
    }
}

/// Minimum number of slots for a key: the 16 slots of one bucket, if both of its buckets are the same.
const SLOTS_PER_KEY_MIN: usize = 16;

/// Uses more keys than slots. Each answer comes from the expected state, or from a fresh one if the state may have
/// been evicted; a limited state is never evicted.
pub fn table_under_pressure(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let limiter = Limiter::with_capacity(source.below(3) * 20);
    let limits: Vec<Limit> = limits().into_iter().map(|[few, _]| few).collect();
    let keys = 3 * limiter.store().stats().slots;
    let now = Micros::new(START);
    let (known, asked) = (HashMap::new(), HashSet::new());
    let mut run = FullTableRun { limiter, limits, known, asked, evicted: 0, now };
    while !source.is_empty() {
        let key = usize::from(source.byte()) * 7 % keys;
        run.step(key, &mut source);
    }
    run.forget_everything();
}

struct FullTableRun {
    limiter: Limiter,
    limits: Vec<Limit>,
    /// The possible states of each key; a key without an entry is fresh.
    known: HashMap<(usize, usize), PossibleState>,
    /// Every key with the limits under which it was used.
    asked: HashSet<(usize, usize)>,
    /// Number of evicted states so far.
    evicted: usize,
    now: Micros,
}

/// The possible states of a key.
#[derive(Default)]
struct PossibleState {
    /// The possible states if it was not evicted; at least one.
    either: Vec<State>,
    /// True if it may have been evicted.
    may_be_gone: bool,
}

/// The order of eviction: states that are not limited, by the share of the capacity that they have used, then by
/// the instant at which they are fresh.
#[derive(Clone, Copy)]
struct EvictionRank {
    limited: bool,
    used: u64,
    capacity: u64,
    reset_after: Wait,
}

impl EvictionRank {
    fn of(limit: &Limit, state: &State, now: Micros) -> EvictionRank {
        let present = algorithm::judge(limit, state, 0, now);
        let (limited, capacity) = (present.remaining == 0, limit.capacity());
        let (used, reset_after) = (capacity - present.remaining, present.reset_after);
        EvictionRank { limited, used, capacity, reset_after }
    }

    fn compare(&self, other: &EvictionRank) -> Ordering {
        let used = |one: &EvictionRank, other: &EvictionRank| {
            u128::from(one.used) * u128::from(other.capacity)
        };
        let open = used(self, other)
            .cmp(&used(other, self))
            .then(self.reset_after.cmp(&other.reset_after));
        match self.limited || other.limited {
            true => self.limited.cmp(&other.limited),
            false => open,
        }
    }
}

impl FullTableRun {
    fn step(&mut self, key: usize, source: &mut FuzzSource<'_>) {
        let step = match source.below(16) {
            0..=12 => 0,
            13 => u64::from(source.byte()),
            14 => u64::from(source.byte()) * 1_000,
            _ => u64::from(source.byte()) * SECOND_US / 16,
        };
        self.now = Micros::new(self.now.as_u64() + step);
        let which = source.below(self.limits.len());
        let ask = match source.below(8) {
            0 => (Act::Peek, 1),
            1 => (Act::Force, u64::from(source.byte() % 6)),
            2 => (Act::UpTo, 3),
            3 => (Act::Take, 4),
            _ => (Act::Take, 1),
        };
        self.asked.insert((key, which));
        let (limit, name) = (&self.limits[which], name(key));
        let check = Check::new(limit, &name).cost(ask.1).act(ask.0);
        let got = self.limiter.at(self.now).decide(&[check]);
        let stats = self.limiter.store().stats();
        assert!(stats.keys <= stats.slots, "{stats:?}");
        assert!(got.remaining() <= limit.capacity());
        if stats.evicted > self.evicted {
            self.evicted = stats.evicted;
            self.mark_possible_victims((key, which));
        }
        self.learn((key, which), ask, &got);
    }

    /// Marks the states that may have been evicted for `newcomer`. All slots of the newcomer were taken, and none of
    /// the states there ranked below the evicted one.
    fn mark_possible_victims(&mut self, newcomer: (usize, usize)) {
        let (limits, now) = (&self.limits, self.now);
        let mut ranks = Vec::with_capacity(self.known.len());
        self.known.retain(|place, known| {
            let limit = &limits[place.1];
            let each = known.either.iter().map(|state| EvictionRank::of(limit, state, now));
            let highest = each.max_by(EvictionRank::compare).expect("one at least");
            let fresh = highest.reset_after.is_zero();
            if !fresh && *place != newcomer {
                ranks.push(highest);
            }
            !fresh
        });
        // The evicted state is among them.
        assert!(ranks.len() >= SLOTS_PER_KEY_MIN, "a state left although there was room");
        let (_, least, _) =
            ranks.select_nth_unstable_by(SLOTS_PER_KEY_MIN - 1, |one, other| other.compare(one));
        let may_be_victim = |limit: &Limit, state: &State| {
            let rank = EvictionRank::of(limit, state, now);
            !rank.limited && rank.compare(least).is_le()
        };
        for (place, known) in self.known.iter_mut().filter(|(place, _)| **place != newcomer) {
            let limit = &limits[place.1];
            known.may_be_gone |= known.either.iter().any(|state| may_be_victim(limit, state));
        }
    }

    /// Learns from an answer; fails if no possible state gives it.
    fn learn(&mut self, place: (usize, usize), (what, cost): (Act, u64), got: &Decision) {
        let (limit, now) = (&self.limits[place.1], self.now);
        let PossibleState { either, may_be_gone } = self.known.remove(&place).unwrap_or_default();
        let is_fresh = |state: &State| algorithm::judge(limit, state, 0, now).reset_after.is_zero();
        let may_be_gone = may_be_gone || either.iter().all(is_fresh);
        if got.decided_by() == DecidedBy::Overflow {
            assert!(may_be_gone, "{limit}: a state made room that ranks above others");
            return;
        }
        let fresh = may_be_gone.then(|| State::fresh(limit, now));
        let mut left: Vec<State> = Vec::new();
        for mut state in either.into_iter().chain(fresh) {
            let (answer, _) = act(limit, &mut state, what, cost, now);
            if answer == answer_of(got) && !left.contains(&state) {
                left.push(state);
            }
        }
        assert!(!left.is_empty(), "{limit}: nothing answers {what:?} {cost} with {got:?}");
        // A peek writes no state.
        let wrote = got.granted() > 0;
        self.known
            .insert(place, PossibleState { either: left, may_be_gone: may_be_gone && !wrote });
    }

    /// Resets every key that was used. (Overflow states cannot be reset.)
    fn forget_everything(&self) {
        if self.limiter.store().stats().overflowed == 0 {
            let asked = self.asked.iter().map(|(key, which)| (*key, &self.limits[*which]));
            forget_all(&self.limiter, asked, self.now);
        }
    }
}

/// Resets every state: once no key has one, logs take no memory.
fn forget_all<'a>(
    limiter: &Limiter,
    states: impl Iterator<Item = (usize, &'a Limit)>,
    now: Micros,
) {
    for (key, limit) in states {
        limiter.at(now).reset(limit, &name(key));
    }
    let stats = limiter.store().stats();
    assert_eq!((stats.keys, stats.log_bytes), (0, 0), "{stats:?}");
}
