//! Descriptors: what Envoy asks. A request has a domain and a list of descriptors, each a list of
//! named entries, and gets one status for each of them.
//!
//! A domain that an imported file defines is decided by that file alone; every other domain by the
//! rules, for which entries are facts. Either way all that a request asks to take is one decision.
//! What it forces or gives back is done after that, whatever was decided: it is about work that has
//! already happened, and never refuses.

mod deciding;
mod plans;
mod stated_limits;
mod status;
mod unit;

use std::fmt;

use tollgate::{Clock, Micros, Now};

use crate::answer::Answer;
use crate::gatekeeper::{Gatekeeper, InfallibleStore, RulesVersion};
use crate::join::join_both;
use crate::plan::RequestPlan;
use crate::rule_set::RuleSet;
use plans::DescriptorPlans;

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
    /// What it is.
    pub name: &'a str,
    /// May be empty.
    pub value: &'a str,
}

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hits {
    /// So many units, or a refusal. 0 only asks.
    Take(u64),
    /// To give back so many. `None`: nobody said, so that it is what a take would have cost.
    Refund(Option<u64>),
    /// So many, whatever is left: they were used already.
    Force(u64),
}

/// A limit that the asker states, in place of those that are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatedLimit {
    /// How much; 0 refuses everything.
    pub units: u32,
    /// In which time.
    pub unit: Unit,
}

/// One of the questions of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// In order, the entry [`ACT`] among them if it was sent.
    pub entries: &'a [DescriptorEntry<'a>],
    /// `None`: nobody said, so that a rule's own cost counts, and 1 in imported files.
    pub hits: Option<Hits>,
    /// The limit that the asker states.
    pub limit: Option<StatedLimit>,
}

/// A whole request.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorAsk<'a> {
    /// Whose descriptors these are.
    pub domain: &'a str,
    /// Each gets a status.
    pub descriptors: &'a [Descriptor<'a>],
}

/// Why a request of descriptors is not answered. Nothing was charged.
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
    /// It is one more different limit than the [`STATED_LIMITS_MAX`] that can be in use.
    TooManyStated,
    /// Its values are too long for the patterns that they are compared with: see
    /// [`WILDCARD_BYTES_MAX`].
    TooMuchToMatch,
    /// Its message is too long to be read: a listener says so.
    TooLong,
}

impl DescriptorError {
    /// Whether the request is refused rather than wrong: what clients send decides how much there is to
    /// do, and an error would be taken for yes.
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
                "more than 16 limits apply to this request: send fewer descriptors, or write fewer \
                 limits that meet in one"
            }
            DescriptorError::UnknownAct => {
                "the entry tollgate.act has a value that is not known: send force, or leave it out"
            }
            DescriptorError::BadLimit => "the limit that a descriptor states is out of range",
            DescriptorError::TooManyStated => {
                "more than 1024 different limits that descriptors state are in use: state the same \
                 few numbers for many callers, not numbers of each"
            }
            DescriptorError::TooMuchToMatch => {
                "its values are too long to be compared with so many values that have a part between \
                 two `*`: send shorter values, or write fewer such parts"
            }
            DescriptorError::TooLong => {
                "its message is too long to be read: send fewer or shorter entries"
            }
        })
    }
}

impl std::error::Error for DescriptorError {}

impl DescriptorAsk<'_> {
    /// What can be told without rules.
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
    /// Decides a request of descriptors under this version of the rules: one status for each, in order.
    pub async fn decide_descriptors_by<'n>(
        &self,
        rules: RulesVersion,
        ask: &DescriptorAsk<'_>,
        now: impl Into<Now<'n>>,
    ) -> Result<DescriptorAnswer, DescriptorError> {
        let asked_at = now.into();
        let now = asked_at.instant();
        ask.check()?;
        let of_file = rules.domain(ask.domain).is_some();
        let mut asked = DescriptorPlans::new((&rules, &self.stated), ask, now)
            .inspect_err(|error| self.notify_undecided(&rules, *error, now))?;
        self.count_skipped(&asked.takes, now);
        self.count_skipped(&asked.refunds, now);
        self.count_skipped(&asked.forces, now);
        let DescriptorPlans { takes: first, refunds, forces, descriptors: each, .. } = &mut asked;
        // A store is asked in this order, and waited for once: each wait is as long as its deadline.
        let take = self.take_planned(first, each, asked_at);
        let after = join_both(self.give_back(refunds, asked_at), self.force(forces, asked_at));
        let ((told, entries), (given_back, forced)) = join_both(take, after).await;
        let statuses = asked.statuses(&entries, (&given_back, &forced), now);
        let stated = std::mem::take(&mut asked.takes.stated);
        drop(asked);
        let answer = Answer::new(rules, (told, entries)).with_stated_limits(stated);
        Ok(DescriptorAnswer::new(answer, statuses, of_file))
    }

    /// Tells observers of a request that is refused without asking any limit; also for listeners that do not
    /// even read it.
    #[cold]
    pub fn notify_undecided(&self, rules: &RuleSet, error: DescriptorError, now: Micros) {
        if error.is_refusal() {
            let (told, entries) = self.refuse_too_many_limits(now);
            self.notify(&RequestPlan::empty(rules, true), &told, &entries);
        }
    }
}
