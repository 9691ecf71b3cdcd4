//! The behaviours that every store has in common, as a list that any store can run.
//!
//! Programs, listeners and rules only know [`Store`]. A store that passes this list gives the answers of
//! [`MemoryStore`](super::MemoryStore) in worked cases, to random traffic and to requests at the same
//! time. The list uses fixed instants, so it does not test whether a store reads the clock
//! [again](crate::clock::Now::again). It does not test failures, eviction or bounds on memory either.
//! Only stores that answer at once are called from several threads. Needs the feature `conformance`.
//!
//! A store that answers at once runs the list in one line, without a runtime:
//!
//! ```
//! use tollgate::MemoryStore;
//! use tollgate::store::conformance;
//!
//! conformance::run_at_once(|| MemoryStore::new(10_000));
//! ```
//!
//! One that has to be waited for is made and run by a runtime of your choice:
//!
//! ```
//! use tollgate::MemoryStore;
//! use tollgate::store::conformance::{self, Behaviour};
//!
//! # async fn example() {
//! // In a test, with `#[tokio::test]` for example:
//! conformance::run(async || MemoryStore::new(10_000)).await;
//!
//! // All but one, with the reason for it:
//! let skipped = [(Behaviour::Blocks, "blocks are kept by another service")];
//! conformance::run_except(&skipped, async || MemoryStore::new(10_000)).await;
//!
//! // One alone:
//! Behaviour::SeveralLimits.run(&MemoryStore::new(10_000)).await;
//! # }
//! # drop(example());
//! ```
//!
//! A behaviour that is not as it must be panics with its name. Each uses its own keys, so all of them
//! can share a store that is empty at the start. The store must go by the instants that it is given, and
//! must have room for 2,000 states.
//!
//! # A store of your own
//!
//! A store only has to find states and to write them back, atomically. The functions of
//! [`stored_state`](super::stored_state) decide, as they do for every shared store. This one is a map
//! behind a lock:
//!
//! ```
//! use std::collections::HashMap;
//! use std::convert::Infallible;
//! use std::future::{Future, ready};
//! use std::sync::Mutex;
//!
//! use tollgate::algorithm::State;
//! use tollgate::clock::Now;
//! use tollgate::store::stored_state::{self, StateAssignment, StoredState};
//! use tollgate::{
//!     Act, Check, DecidedBy, Decision, Key, Limit, Micros, Outcome, Receipt, Refusal, Store, Wait,
//! };
//!
//! /// The identity of a limit, a key, and the number of the state among its twins.
//! type StateName = (u64, Vec<u8>, u8);
//!
//! #[derive(Default)]
//! struct MapStore {
//!     /// States with the numbers that wrote them. A real store bounds them.
//!     states: Mutex<HashMap<StateName, (State, Limit)>>,
//!     blocks: Mutex<HashMap<Vec<u8>, Micros>>,
//! }
//!
//! fn name_of(limit: &Limit, key: Key<'_>, twin: u8) -> StateName {
//!     (limit.id(), key.as_bytes().to_vec(), twin)
//! }
//!
//! /// Reads a state for the numbers of `limit`.
//! fn open(stored: Option<&(State, Limit)>, limit: &Limit, now: Micros) -> StoredState {
//!     match stored {
//!         None => StoredState::absent(limit),
//!         Some((state, writer)) if writer.fingerprint() == limit.fingerprint() => {
//!             StoredState::from_own_numbers(state.clone())
//!         }
//!         Some((state, writer)) => {
//!             StoredState::from_other_numbers(state.clone(), writer, limit, now)
//!         }
//!     }
//! }
//!
//! impl MapStore {
//!     fn decide_now(&self, checks: &[Check<'_>], now: Micros, outcomes: &mut [Outcome]) -> Decision {
//!         if let Some(decision) = stored_state::answer_without_store(checks, now) {
//!             return decision;
//!         }
//!         let stoppable = checks.iter().filter(|check| check.requested_act() != Act::Force);
//!         if let Some(wait) = stoppable.filter_map(|check| self.blocked(check.key(), now)).max() {
//!             return Decision::refused(Refusal::Blocked, wait, now);
//!         }
//!         let limits = stored_state::limits_for_keys(checks);
//!         let request = StateAssignment::new(checks, &limits);
//!         let mut states = self.states.lock().unwrap();
//!         let names: Vec<StateName> = request
//!             .first_checks()
//!             .map(|first| name_of(first.limit, first.check.key(), first.twin))
//!             .collect();
//!         let mut opened: Vec<StoredState> = request
//!             .first_checks()
//!             .zip(&names)
//!             .map(|(first, name)| open(states.get(name), first.limit, now))
//!             .collect();
//!         let decision = request.decide(&mut opened, DecidedBy::Memory, now, outcomes);
//!         for ((first, name), state) in request.first_checks().zip(names).zip(opened) {
//!             if let Some((state, writer)) = state.into_pending_write() {
//!                 states.insert(name, (state, writer.unwrap_or_else(|| first.limit.clone())));
//!             }
//!         }
//!         decision
//!     }
//!
//!     fn refund_now(&self, check: &Check<'_>, receipt: Option<Receipt>, now: Micros) {
//!         let twin = receipt.as_ref().map_or(0, Receipt::twin);
//!         let charged_at = receipt.as_ref().map(Receipt::charged_at);
//!         let units = receipt.map_or(check.units(), |receipt| receipt.granted().min(check.units()));
//!         let limit = check.limit().for_key(check.key().as_bytes());
//!         let name = name_of(&limit, check.key(), twin);
//!         let mut states = self.states.lock().unwrap();
//!         let Some(stored) = states.get_mut(&name) else { return };
//!         let mut state = open(Some(stored), &limit, now);
//!         state.refund(&limit, units, charged_at, now);
//!         if let Some((state, writer)) = state.into_pending_write() {
//!             *stored = (state, writer.unwrap_or_else(|| limit.into_owned()));
//!         }
//!     }
//! }
//!
//! impl Store for MapStore {
//!     type Error = Infallible;
//!
//!     fn decide_each(
//!         &self,
//!         checks: &[Check<'_>],
//!         now: Now<'_>,
//!         outcomes: &mut [Outcome],
//!     ) -> impl Future<Output = Result<Decision, Infallible>> + Send {
//!         ready(Ok(self.decide_now(checks, now.instant(), outcomes)))
//!     }
//!
//!     async fn refund(
//!         &self,
//!         check: &Check<'_>,
//!         receipt: Option<Receipt>,
//!         now: Now<'_>,
//!     ) -> Result<(), Infallible> {
//!         Ok(self.refund_now(check, receipt, now.instant()))
//!     }
//!
//!     async fn reset(&self, check: &Check<'_>, _: Micros) -> Result<bool, Infallible> {
//!         let name = name_of(check.limit(), check.key(), 0);
//!         Ok(self.states.lock().unwrap().remove(&name).is_some())
//!     }
//!
//!     async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, Infallible> {
//!         let limit = check.limit().for_key(check.key().as_bytes());
//!         let states = self.states.lock().unwrap();
//!         let stored = states.get(&name_of(&limit, check.key(), 0));
//!         Ok(open(stored, &limit, now).state().balance(&limit, now))
//!     }
//!
//!     async fn block(&self, key: Key<'_>, until: Micros, _: Micros) -> Result<bool, Infallible> {
//!         let mut blocks = self.blocks.lock().unwrap();
//!         let end = blocks.entry(key.as_bytes().to_vec()).or_insert(until);
//!         *end = until.max(*end);
//!         Ok(true)
//!     }
//!
//!     async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, Infallible> {
//!         let end = self.blocks.lock().unwrap().remove(key.as_bytes());
//!         Ok(end.is_some_and(|end| end > now))
//!     }
//!
//!     fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
//!         let end = *self.blocks.lock().unwrap().get(key.as_bytes())?;
//!         (end > now).then(|| now.until(end))
//!     }
//!
//!     fn any_block(&self, _: Micros) -> bool {
//!         !self.blocks.lock().unwrap().is_empty()
//!     }
//!
//!     fn answers_at_once(&self) -> bool {
//!         true
//!     }
//! }
//!
//! tollgate::store::conformance::run_at_once(MapStore::default);
//! ```

mod acts;
mod concurrency;
mod many_requests;
mod probe;
mod random_traffic;
mod several_limits;
mod states;
mod worked_cases;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use super::Store;
use crate::time::Micros;
use probe::Probe;

pub use random_traffic::random_traffic;

/// The instant at which behaviours begin: the start of a window for every period of theirs whose windows
/// are aligned to the epoch.
const START: Micros = Micros::from_secs(788 * 2_160_000);

/// The one table of behaviours.
macro_rules! behaviours {
    ($($variant:ident, $name:literal, $summary:literal => $function:path;)*) => {
        /// A behaviour that every store has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Behaviour {
            $(#[doc = $summary] $variant,)*
        }

        impl Behaviour {
            /// The one list of behaviours, in the order in which they are run.
            pub const ALL: &'static [Behaviour] = &[$(Behaviour::$variant,)*];

            /// The name that a failure shows.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Behaviour::$variant => $name,)*
                }
            }

            /// The behaviour in one sentence.
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Behaviour::$variant => $summary,)*
                }
            }

            /// Runs this behaviour alone.
            ///
            /// # Panics
            ///
            /// If the store behaves differently, or fails.
            pub async fn run<S: Store<Error: fmt::Debug>>(self, store: &S) {
                let probe = Probe { store, behaviour: self };
                match self {
                    $(Behaviour::$variant => $function(&probe).await,)*
                }
            }
        }
    };
}

behaviours! {
    WorkedCases, "worked_cases",
        "Worked cases of every algorithm have the right answers, to the microsecond."
        => states::worked_cases;
    Refusals, "refusals",
        "A refusal charges nothing, and its wait is enough and minimal." => states::refusals;
    NoLimits, "no_limits",
        "A request without limits passes; an empty key and too many limits are refused."
        => several_limits::no_limits;
    Peeks, "peeks", "A peek charges nothing and reports the present state." => acts::peeks;
    Forces, "forces", "A force is charged whatever is left, and makes debt." => acts::forces;
    UpTo, "up_to", "An act of \"up to\" takes as many units as fit." => acts::up_to;
    Refunds, "refunds",
        "A refund with a receipt gives back what was charged, while it still counts."
        => acts::refunds;
    Grants, "grants",
        "A refund without a receipt gives back units as if charged now." => acts::grants;
    Resets, "resets", "A reset makes a key's state fresh." => states::resets;
    Balances, "balances", "A balance is what is left, and negative in debt." => states::balances;
    Blocks, "blocks",
        "A block refuses all requests of a key but forces, until it ends or is lifted."
        => states::blocks;
    CountDenied, "count_denied",
        "A check that counts refusals charges them, up to one capacity of debt."
        => acts::count_denied;
    Shadow, "shadow", "A shadow check is judged and charged, but never refuses."
        => several_limits::shadow;
    Queues, "queues",
        "A queue delays what it admits, and refuses callers that cannot wait." => acts::queues;
    SeveralLimits, "several_limits",
        "Several limits are charged together or not at all." => several_limits::all_or_none;
    SharedStates, "shared_states",
        "Checks of one limit and key share a state; twins with other numbers have their own."
        => several_limits::shared_states;
    OtherNumbers, "other_numbers",
        "Limits of one id share a state, which is converted when units are granted."
        => states::other_numbers;
    SeparateKeys, "separate_keys",
        "Other keys, names, algorithms and periods have states of their own."
        => states::separate_keys;
    SlowClocks, "slow_clocks",
        "A caller whose clock is behind is served as of the last charge." => states::slow_clocks;
    ClockJumps, "clock_jumps",
        "A clock that went back far keeps the level of states, and time goes on from there."
        => states::clock_jumps;
    Batches, "batches", "A batch has the answers of its requests one by one."
        => several_limits::batches;
    ManyRequests, "many_requests",
        "Many requests of several checks have the answers of each by itself, in order."
        => many_requests::in_order;
    Atomic, "atomic",
        "Requests at the same time are charged one after the other: none is lost, none is too many."
        => concurrency::atomic;
    RandomTraffic, "random_traffic",
        "Random requests of one check have the answers of the memory store, at the same instants."
        => random_traffic::single_checks;
    RandomSeveralLimits, "random_several_limits",
        "Random requests of several checks have the answers of the memory store."
        => random_traffic::several_checks;
    RandomBatches, "random_batches",
        "Random batches have the answers of the memory store, one request after the other."
        => random_traffic::batches;
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs all behaviours, each on a store that `make` makes.
///
/// # Panics
///
/// If a behaviour is not as it must be, with its name; or if the store fails.
pub async fn run<S, F>(make: impl FnMut() -> F)
where
    S: Store<Error: fmt::Debug>,
    F: Future<Output = S>,
{
    run_except(&[], make).await;
}

/// Runs all behaviours but those in `skipped`, each with the reason why the store cannot have it.
///
/// # Panics
///
/// If a behaviour is not as it must be, with its name; if the store fails; or if a reason is empty.
pub async fn run_except<S, F>(skipped: &[(Behaviour, &str)], mut make: impl FnMut() -> F)
where
    S: Store<Error: fmt::Debug>,
    F: Future<Output = S>,
{
    for behaviour in Behaviour::ALL {
        match skipped.iter().find(|(skipped, _)| skipped == behaviour) {
            Some((_, reason)) => {
                assert!(!reason.is_empty(), "no reason for skipping `{behaviour}`")
            }
            None => behaviour.run(&make().await).await,
        }
    }
}

/// Runs all behaviours on stores that [answer at once](Store::answers_at_once), without a runtime.
///
/// # Panics
///
/// As [`run`], and if the store has to be waited for.
pub fn run_at_once<S: Store<Error: fmt::Debug>>(mut make: impl FnMut() -> S) {
    for behaviour in Behaviour::ALL {
        let store = make();
        assert!(store.answers_at_once(), "the store does not answer at once: use `run`");
        let mut running = pin!(behaviour.run(&store));
        let mut context = Context::from_waker(Waker::noop());
        // Every call of the store is ready at its first poll, which the probe checks.
        assert!(running.as_mut().poll(&mut context).is_ready(), "`{behaviour}` waits");
    }
}

#[cfg(test)]
mod tests;
