//! From descriptors to checks: what is decided, and what is done after that.

use tollgate::decision::MAX_LIMITS;
use tollgate::{Algorithm, KeyBuf, Limit, Micros};

use super::{ACT, Descriptor, DescriptorAsk, DescriptorError, Hits, StatedLimit, StatedSets};
use crate::facts::Facts;
use crate::gatekeeper::Version;
use crate::import::tree::{TooMuch, WILDCARD_BYTES_MAX};
use crate::import::{Allows, Imported};
use crate::key_template::add_entry;
use crate::limit_spec::RuleLimit;
use crate::plan::{Direct, DirectLimit, Plan, Standing};
use crate::rule::Mode;
use crate::rule_set::{DomainOf, RuleSet, STATED_OF_OURS};

/// What a request of descriptors asks.
pub(super) struct Asked<'a> {
    /// What is taken, or only asked about: one decision.
    pub(super) first: Plan<'a>,
    /// What is given back, after it,
    pub(super) refunds: Plan<'a>,
    /// and what is forced, after that.
    pub(super) forces: Plan<'a>,
    /// Each descriptor, in order.
    pub(super) each: Vec<One>,
    /// Limits that askers state, of all requests.
    stated: &'a StatedSets,
}

/// What one descriptor asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct One {
    pub(super) deed: Deed,
    /// What is asked for, if somebody said.
    pub(super) units: Option<u64>,
    /// A file says that there is no limit for it.
    pub(super) unlimited: bool,
}

/// What is done with what a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Take,
    Refund,
    Force,
}

impl One {
    fn of(descriptor: &Descriptor<'_>) -> One {
        let forced = descriptor.entries.iter().any(|entry| entry.name == ACT);
        let (deed, units) = match descriptor.hits {
            Some(Hits::Refund(units)) => (Deed::Refund, units),
            Some(Hits::Force(units)) => (Deed::Force, Some(units)),
            Some(Hits::Take(units)) if forced => (Deed::Force, Some(units)),
            None if forced => (Deed::Force, None),
            Some(Hits::Take(units)) => (Deed::Take, Some(units)),
            None => (Deed::Take, None),
        };
        One { deed, units, unlimited: false }
    }

    /// Whether it only wants to know.
    pub(super) fn only_asks(&self) -> bool {
        (self.deed, self.units) == (Deed::Take, Some(0))
    }
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        (rules, stated): (&'a Version, &'a StatedSets),
        ask: &DescriptorAsk<'_>,
        now: Micros,
    ) -> Result<Asked<'a>, DescriptorError> {
        let rules: &'a RuleSet = rules;
        // Whoever asks this way cannot hold a request back.
        let mut asked = Asked {
            first: Plan::empty(rules, true),
            refunds: Plan::empty(rules, true),
            forces: Plan::empty(rules, true),
            each: ask.descriptors.iter().map(One::of).collect(),
            stated,
        };
        match rules.domain(ask.domain) {
            Some(domain) => asked.add_imported(rules, domain, ask, now)?,
            None if rules.has_own() => asked.add_ours(ask, now)?,
            // Files alone: a domain that none of them defines has no limits, not even stated ones.
            None => {}
        }
        asked.first.only_asks =
            asked.each.iter().all(|one| one.deed != Deed::Take || one.only_asks());
        let too_many =
            |plan: &Plan<'_>| plan.too_many || plan.limits.len() + plan.closed.len() > MAX_LIMITS;
        let too_many = [&asked.first, &asked.refunds, &asked.forces].into_iter().any(too_many);
        match too_many {
            true => Err(DescriptorError::TooManyLimits),
            false => Ok(asked),
        }
    }

    fn plan(&mut self, of: u8) -> &mut Plan<'a> {
        match self.each[usize::from(of)].deed {
            Deed::Take => &mut self.first,
            Deed::Refund => &mut self.refunds,
            Deed::Force => &mut self.forces,
        }
    }

    /// Asks the rules, for which entries are facts.
    fn add_ours(&mut self, ask: &DescriptorAsk<'_>, now: Micros) -> Result<(), DescriptorError> {
        for (descriptor, of) in ask.descriptors.iter().zip(0..) {
            if let Some(limit) = descriptor.limit {
                let counted = (STATED_OF_OURS, Algorithm::FixedWindow);
                self.add_stated((ask.domain, descriptor), limit, counted, of, now)?;
                continue;
            }
            let facts = Facts::of_descriptor(ask.domain, descriptor.entries);
            let units = self.each[usize::from(of)].units;
            self.plan(of).add_facts(&facts, (of, units), now);
        }
        Ok(())
    }

    /// Asks the file that defines the domain.
    fn add_imported(
        &mut self,
        rules: &'a RuleSet,
        domain: &DomainOf,
        ask: &DescriptorAsk<'_>,
        now: Micros,
    ) -> Result<(), DescriptorError> {
        let mut left = WILDCARD_BYTES_MAX;
        let find = |one: &Descriptor<'_>| match one.limit {
            Some(_) => Ok(None),
            None => domain.tree.find(one.facts(), &mut left),
        };
        let found: Result<Vec<Option<(u32, KeyBuf)>>, TooMuch> =
            ask.descriptors.iter().map(find).collect();
        let found = found.map_err(|TooMuch| DescriptorError::TooMuchToMatch)?;
        let imported = |rule: u32| -> Option<&'a Imported> { rules.at(rule).imported.as_deref() };
        let applying = found.iter().flatten().filter_map(|(rule, _)| imported(*rule));
        let replaced: Vec<&str> =
            applying.flat_map(|one| &one.replaces).map(|name| &**name).collect();
        for ((descriptor, found), of) in ask.descriptors.iter().zip(found).zip(0..) {
            if let Some(limit) = descriptor.limit {
                let counted = (domain.stated, domain.algorithm);
                self.add_stated((ask.domain, descriptor), limit, counted, of, now)?;
                continue;
            }
            let Some((rule, key)) = found else { continue };
            let Some(one) = imported(rule) else { continue };
            let limit = match one.allows {
                Allows::Everything if rules.override_of(rule, &key, now).is_none() => {
                    self.each[usize::from(of)].unlimited = true;
                    continue;
                }
                _ if one.name.as_deref().is_some_and(|name| replaced.contains(&name)) => continue,
                Allows::Nothing(unit) => DirectLimit::Closed(unit),
                Allows::Limited | Allows::Everything => DirectLimit::OfRule,
            };
            let standing = match rules.at(rule).mode {
                Mode::Enforce if !one.quota => Standing::Enforced,
                _ => Standing::Shadow,
            };
            let cost = self.each[usize::from(of)].units.unwrap_or(1);
            let direct = Direct { rule, limit, cost, standing, of, quota: one.quota };
            self.plan(of).add_direct(direct, key, now);
        }
        Ok(())
    }

    /// Asks the limit that whoever asks has stated: it counts these entries, whatever is configured.
    fn add_stated(
        &mut self,
        (domain, descriptor): (&str, &Descriptor<'_>),
        stated: StatedLimit,
        (rule, algorithm): (u32, Algorithm),
        of: u8,
        now: Micros,
    ) -> Result<(), DescriptorError> {
        let mut key = KeyBuf::new().with("stated", domain);
        descriptor.facts().for_each(|entry| add_entry(&mut key, entry.name, entry.value));
        let StatedLimit { units, unit } = stated;
        if algorithm.is_bucket() {
            // A bucket fits what is used to the numbers that it is asked with: whoever states now these and
            // now those would fill it at each turn. Windows keep their count whatever the numbers are.
            key.add("units", &units.to_string());
        }
        let limit = match units {
            0 => DirectLimit::Closed(unit),
            _ => {
                let name = &*self.first.rules().at(rule).name;
                let limit = Limit::per(units.into(), unit.period()).algorithm(algorithm).name(name);
                let limit = limit.build().map_err(|_| DescriptorError::BadLimit)?;
                self.stated.using((stated, algorithm), &limit, now)?;
                DirectLimit::Stated(Box::new(RuleLimit::new(limit)))
            }
        };
        let cost = self.each[usize::from(of)].units.unwrap_or(1);
        let standing = Standing::Enforced;
        let direct = Direct { rule, limit, cost, standing, of, quota: false };
        self.plan(of).add_direct(direct, key, now);
        Ok(())
    }
}
