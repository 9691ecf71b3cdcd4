//! Descriptors, the requests of Envoy. A request has a domain and a list of descriptors, each a
//! list of named entries, and gets one status for each of them.
//!
//! A domain that an imported file defines is decided by that file alone; every other domain by the
//! rules, for which entries are facts. Either way all takes of a request are one decision. Forced
//! charges and refunds follow, whatever was decided: they are for work that has already happened,
//! and never refuse.

mod deciding;
mod plans;
mod stated_limits;
mod status;
mod unit;

use std::fmt;

use tollgate::{Clock, Micros, Now, Refusal};

use crate::answer::PlanDecision;
use crate::gatekeeper::{Gatekeeper, InfallibleStore, RulesVersion, expect_ready};
use crate::plan::RequestPlan;
use crate::rule_set::RuleSet;
use deciding::SettledOutcomes;
use plans::DescriptorPlans;
use status::DecidedDescriptors;
use tollgate::store::join::join_both;

pub use crate::import::tree::WILDCARD_BYTES_MAX;
pub use stated_limits::STATED_LIMITS_MAX;
pub(crate) use stated_limits::StatedLimitTable;
pub use status::{CurrentLimit, DescriptorAnswer, Status};
pub use unit::Unit;

/// The most descriptors of one request.
pub const DESCRIPTORS_MAX: usize = 64;

/// The most entries of one descriptor.
pub const ENTRIES_MAX: usize = 64;

/// The entry that says what to do with a descriptor's hits: it is an instruction, not a fact. With the
/// value [`FORCE`] they are charged whatever is left.
pub const ACT: &str = "tollgate.act";

/// The one value of [`ACT`]: the hits are of work that has happened, and may make debt.
pub const FORCE: &str = "force";

/// A named value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescriptorEntry<'a> {
    /// The name.
    pub name: &'a str,
    /// May be empty.
    pub value: &'a str,
}

/// The units of a descriptor, and what to do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hits {
    /// Takes so many units, or refuses. 0 only peeks.
    Take(u64),
    /// Refunds so many; `None` refunds the cost of a take.
    Refund(Option<u64>),
    /// Charges so many whatever is left, because they were used already.
    Force(u64),
}

/// A limit stated in the request, in place of the configured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatedLimit {
    /// Units per period; 0 refuses everything.
    pub units: u32,
    /// The period.
    pub unit: Unit,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The entries in order, with the entry [`ACT`] if it was sent.
    pub entries: &'a [DescriptorEntry<'a>],
    /// `None` means the rule's own cost, and 1 in imported files.
    pub hits: Option<Hits>,
    /// The limit stated in the request.
    pub limit: Option<StatedLimit>,
}

/// A whole request.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorAsk<'a> {
    /// The domain of the descriptors.
    pub domain: &'a str,
    /// Each gets a status.
    pub descriptors: &'a [Descriptor<'a>],
}

/// The reason why a request of descriptors has no answer. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The domain is empty.
    NoDomain,
    /// There are no descriptors.
    NoDescriptors,
    /// A descriptor has no entries.
    NoEntries,
    /// An entry has no name.
    NoName,
    /// More descriptors than [`DESCRIPTORS_MAX`].
    TooManyDescriptors,
    /// More entries than [`ENTRIES_MAX`].
    TooManyEntries,
    /// More limits apply than one decision holds.
    TooManyLimits,
    /// The value of [`ACT`] is not one of ours.
    UnknownAct,
    /// A stated limit cannot be counted.
    BadLimit,
    /// More different stated limits than the [`STATED_LIMITS_MAX`] that can be in use.
    TooManyStated,
    /// Its values are too long for the patterns that they are compared with: see
    /// [`WILDCARD_BYTES_MAX`].
    TooMuchToMatch,
    /// The message is too long; reported by a listener.
    TooLong,
}

impl DescriptorError {
    /// Returns true if the request is refused rather than wrong. Clients control how much there is
    /// to do, and by default Envoy lets a request pass on an error.
    pub fn is_refusal(self) -> bool {
        use DescriptorError::{TooLong, TooManyLimits, TooManyStated, TooMuchToMatch};
        matches!(self, TooManyLimits | TooManyStated | TooMuchToMatch | TooLong)
    }
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DescriptorError::NoDomain => "the domain is empty: send the domain of your rules",
            DescriptorError::NoDescriptors => "there are no descriptors: send at least one",
            DescriptorError::NoEntries => "a descriptor has no entries: send at least one",
            DescriptorError::NoName => "an entry has an empty key: send its name",
            DescriptorError::TooManyDescriptors => "more than 64 descriptors: send fewer",
            DescriptorError::TooManyEntries => "a descriptor has more than 64 entries: send fewer",
            DescriptorError::TooManyLimits => {
                "more than 16 limits apply to this request: send fewer descriptors, or configure \
                 fewer limits for one descriptor"
            }
            DescriptorError::UnknownAct => {
                "the entry tollgate.act has an unknown value: send force, or leave it out"
            }
            DescriptorError::BadLimit => "the limit that a descriptor states is out of range",
            DescriptorError::TooManyStated => {
                "more than 1024 different limits stated in descriptors are in use: state the same few \
                 numbers for many callers, not different numbers for each"
            }
            DescriptorError::TooMuchToMatch => {
                "its values are too long for the number of configured values with text between two \
                 `*`: send shorter values, or configure fewer such values"
            }
            DescriptorError::TooLong => {
                "the message is too long: send fewer or shorter entries"
            }
        })
    }
}

impl std::error::Error for DescriptorError {}

impl DescriptorAsk<'_> {
    /// Checks all that does not depend on rules.
    fn check(&self) -> Result<(), DescriptorError> {
        if self.domain.is_empty() {
            return Err(DescriptorError::NoDomain);
        }
        match self.descriptors.len() {
            0 => return Err(DescriptorError::NoDescriptors),
            many if many > DESCRIPTORS_MAX => return Err(DescriptorError::TooManyDescriptors),
            _ => {}
        }
        self.descriptors.iter().try_for_each(Descriptor::check)
    }
}

impl<'a> Descriptor<'a> {
    /// The entries that are facts.
    pub fn facts(&self) -> impl Iterator<Item = DescriptorEntry<'a>> + use<'a> {
        self.entries.iter().copied().filter(|entry| entry.name != ACT)
    }

    fn check(&self) -> Result<(), DescriptorError> {
        if self.entries.len() > ENTRIES_MAX {
            return Err(DescriptorError::TooManyEntries);
        }
        if self.facts().next().is_none() {
            return Err(DescriptorError::NoEntries);
        }
        if self.entries.iter().any(|entry| entry.name.is_empty()) {
            return Err(DescriptorError::NoName);
        }
        let acts = || self.entries.iter().filter(|entry| entry.name == ACT);
        match acts().all(|entry| entry.value == FORCE) {
            true => Ok(()),
            false => Err(DescriptorError::UnknownAct),
        }
    }
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Decides a request of descriptors without waiting: one status for each, in order. `Err` gives the
    /// rules back if the store has to be waited for: nothing is charged, and
    /// [`decide_descriptors_by`](Gatekeeper::decide_descriptors_by) decides.
    pub fn decide_descriptors_at_once<'n>(
        &self,
        rules: RulesVersion,
        ask: &DescriptorAsk<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<Result<DescriptorAnswer, DescriptorError>, RulesVersion> {
        if !self.answers_at_once() {
            return Err(rules);
        }
        let now = now.into();
        let decided = self.plan_descriptors(&rules, ask, now).map(|mut plans| {
            let decided = self.take_at_once(&mut plans.takes, &plans.descriptors, now);
            let settled = match plans.settles() {
                true => expect_ready(self.settle_planned((&plans.refunds, &plans.forces), now)),
                false => SettledOutcomes::default(),
            };
            DecidedDescriptors::new(&mut plans, decided, &settled, now.instant())
        });
        Ok(decided.map(|decided| decided.into_answer(rules)))
    }

    /// Decides a request of descriptors under this version of the rules: one status for each, in order.
    pub async fn decide_descriptors_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &DescriptorAsk<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<DescriptorAnswer, DescriptorError> {
        let now = now.into();
        match self.decide_descriptors_at_once(rules, ask, now) {
            Ok(decided) => decided,
            Err(rules) => Box::pin(self.decide_descriptors_and_wait(rules, ask, now)).await,
        }
    }

    async fn decide_descriptors_and_wait(
        &self,
        rules: RulesVersion,
        ask: &DescriptorAsk<'_>,
        now: Now<'_>,
    ) -> Result<DescriptorAnswer, DescriptorError> {
        let mut plans = Box::new(self.plan_descriptors(&rules, ask, now)?);
        let settles = plans.settles();
        let DescriptorPlans { takes, refunds, forces, descriptors, .. } = &mut *plans;
        let take = self.take_and_wait(takes, descriptors, now);
        let (decided, settled) = match settles {
            // The store gets the calls in this order, and all are awaited together: each wait can be
            // as long as the deadline.
            true => join_both(take, self.settle_planned((refunds, forces), now)).await,
            false => (take.await, SettledOutcomes::default()),
        };
        let decided = DecidedDescriptors::new(&mut plans, decided, &settled, now.instant());
        drop(plans);
        Ok(decided.into_answer(rules))
    }

    /// The plans of a request.
    fn plan_descriptors<'r>(
        &'r self,
        rules: &'r RulesVersion,
        ask: &DescriptorAsk<'_>,
        now: Now<'_>,
    ) -> Result<DescriptorPlans<'r>, DescriptorError> {
        ask.check()?;
        let now = now.instant();
        let plans = DescriptorPlans::new((rules, &self.stated), ask, now)
            .inspect_err(|error| self.notify_undecided(rules, *error, now))?;
        plans.each().for_each(|plan| self.count_skipped(plan, now));
        Ok(plans)
    }

    /// Notifies the observer of a request that is refused without asking any limit. Listeners call
    /// this for messages that they do not read.
    #[cold]
    pub fn notify_undecided(&self, rules: &RuleSet, error: DescriptorError, now: Micros) {
        if error.is_refusal() {
            let decided = PlanDecision::refused(Refusal::TooManyLimits, now);
            self.notify(&RequestPlan::empty(rules, true), &decided);
        }
    }
}
