//! From descriptors to checks.

use tollgate::decision::MAX_LIMITS;
use tollgate::{Algorithm, KeyBuf, Limit, Micros};

use super::{ACT, Descriptor, DescriptorAsk, DescriptorError, Hits, StatedLimit, StatedLimitTable};
use crate::facts::Facts;
use crate::gatekeeper::RulesVersion;
use crate::import::tree::{WILDCARD_BYTES_MAX, WildcardBytesExceeded};
use crate::import::{ImportDetails, ImportedAllowance};
use crate::key_template::add_entry;
use crate::limit_spec::RuleLimit;
use crate::plan::{DirectLimit, DirectRule, Enforcement, RequestPlan};
use crate::rule::Mode;
use crate::rule_set::{DomainIndex, RuleSet, STATED_BY_OWN_RULES};

/// The plans of one request of descriptors.
pub(super) struct DescriptorPlans<'a> {
    /// Charges and peeks, made as one decision.
    pub(super) takes: RequestPlan<'a>,
    /// Refunds, made after the decision, if any descriptor asks for one.
    pub(super) refunds: Option<Box<RequestPlan<'a>>>,
    /// Forced charges, made after the refunds, if any descriptor asks for one.
    pub(super) forces: Option<Box<RequestPlan<'a>>>,
    /// Each descriptor, in order.
    pub(super) descriptors: Vec<PlannedDescriptor>,
    /// True if an imported file defines the domain.
    pub(super) is_imported: bool,
    /// The table of stated limits in use, of all requests.
    stated: &'a StatedLimitTable,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedDescriptor {
    pub(super) operation: DescriptorOperation,
    /// Units that the request states; `None` if it states none.
    pub(super) units: Option<u64>,
    /// True if a file says that there is no limit for it.
    pub(super) unlimited: bool,
}

/// The operation of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorOperation {
    Take,
    Refund,
    Force,
}

impl PlannedDescriptor {
    fn of(descriptor: &Descriptor<'_>) -> PlannedDescriptor {
        let forced = descriptor.entries.iter().any(|entry| entry.name == ACT);
        let (deed, units) = match descriptor.hits {
            Some(Hits::Refund(units)) => (DescriptorOperation::Refund, units),
            Some(Hits::Force(units)) => (DescriptorOperation::Force, Some(units)),
            Some(Hits::Take(units)) if forced => (DescriptorOperation::Force, Some(units)),
            None if forced => (DescriptorOperation::Force, None),
            Some(Hits::Take(units)) => (DescriptorOperation::Take, Some(units)),
            None => (DescriptorOperation::Take, None),
        };
        PlannedDescriptor { operation: deed, units, unlimited: false }
    }

    /// Returns true if the descriptor takes 0 units, and so only peeks.
    pub(super) fn peeks_only(&self) -> bool {
        (self.operation, self.units) == (DescriptorOperation::Take, Some(0))
    }
}

impl<'a> DescriptorPlans<'a> {
    pub(super) fn new(
        (rules, stated): (&'a RulesVersion, &'a StatedLimitTable),
        ask: &DescriptorAsk<'_>,
        now: Micros,
    ) -> Result<DescriptorPlans<'a>, DescriptorError> {
        let rules: &'a RuleSet = rules;
        let domain = rules.domain(ask.domain);
        // Envoy cannot delay a request.
        let mut asked = DescriptorPlans {
            takes: RequestPlan::empty(rules, true),
            refunds: None,
            forces: None,
            descriptors: ask.descriptors.iter().map(PlannedDescriptor::of).collect(),
            is_imported: domain.is_some(),
            stated,
        };
        match domain {
            Some(domain) => asked.add_imported(rules, domain, ask, now)?,
            None if rules.has_own_rules() => asked.add_own_rules(ask, now)?,
            // Files alone: a domain that none of them defines has no limits, not even stated ones.
            None => {}
        }
        asked.takes.peek_only = asked
            .descriptors
            .iter()
            .all(|one| one.operation != DescriptorOperation::Take || one.peeks_only());
        let too_many = |plan: &RequestPlan<'_>| {
            plan.too_many_limits || plan.limits.len() + plan.zero_limits.len() > MAX_LIMITS
        };
        let too_many = asked.each().any(too_many);
        match too_many {
            true => Err(DescriptorError::TooManyLimits),
            false => Ok(asked),
        }
    }

    fn plan(&mut self, of: u8) -> &mut RequestPlan<'a> {
        let rules = self.takes.rules();
        let empty = || Box::new(RequestPlan::empty(rules, true));
        match self.descriptors[usize::from(of)].operation {
            DescriptorOperation::Take => &mut self.takes,
            DescriptorOperation::Refund => self.refunds.get_or_insert_with(empty),
            DescriptorOperation::Force => self.forces.get_or_insert_with(empty),
        }
    }

    /// Returns true if a descriptor asks for a refund or a forced charge.
    pub(super) fn settles(&self) -> bool {
        self.refunds.is_some() || self.forces.is_some()
    }

    /// The plans, in the order in which the store is asked.
    pub(super) fn each(&self) -> impl Iterator<Item = &RequestPlan<'a>> {
        let rest = [&self.refunds, &self.forces].into_iter().flatten();
        std::iter::once(&self.takes).chain(rest.map(|plan| &**plan))
    }

    /// Adds our own rules, with the entries as facts.
    fn add_own_rules(
        &mut self,
        ask: &DescriptorAsk<'_>,
        now: Micros,
    ) -> Result<(), DescriptorError> {
        for (descriptor, of) in ask.descriptors.iter().zip(0..) {
            if let Some(limit) = descriptor.limit {
                let counted = (STATED_BY_OWN_RULES, Algorithm::FixedWindow);
                self.add_stated((ask.domain, descriptor), limit, counted, of, now)?;
                continue;
            }
            let facts = Facts::of_descriptor(ask.domain, descriptor.entries);
            let units = self.descriptors[usize::from(of)].units;
            self.plan(of).add_facts(&facts, (of, units), now);
        }
        Ok(())
    }

    /// Adds the rules of the file that defines the domain.
    fn add_imported(
        &mut self,
        rules: &'a RuleSet,
        domain: &DomainIndex,
        ask: &DescriptorAsk<'_>,
        now: Micros,
    ) -> Result<(), DescriptorError> {
        let mut left = WILDCARD_BYTES_MAX;
        let find = |one: &Descriptor<'_>| match one.limit {
            Some(_) => Ok(None),
            None => domain.tree.find(one.facts(), &mut left),
        };
        let found: Result<Vec<Option<(u32, KeyBuf)>>, WildcardBytesExceeded> =
            ask.descriptors.iter().map(find).collect();
        let found = found.map_err(|WildcardBytesExceeded| DescriptorError::TooMuchToMatch)?;
        let imported =
            |rule: u32| -> Option<&'a ImportDetails> { rules.rule_at(rule).imported.as_deref() };
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
                ImportedAllowance::Everything if rules.override_of(rule, &key, now).is_none() => {
                    self.descriptors[usize::from(of)].unlimited = true;
                    continue;
                }
                _ if one.name.as_deref().is_some_and(|name| replaced.contains(&name)) => continue,
                ImportedAllowance::Nothing(unit) => DirectLimit::Zero(unit),
                ImportedAllowance::Limited | ImportedAllowance::Everything => {
                    DirectLimit::RuleLimits
                }
            };
            let standing = match rules.rule_at(rule).mode {
                Mode::Enforce if !one.quota => Enforcement::Enforced,
                _ => Enforcement::Shadow,
            };
            let cost = self.descriptors[usize::from(of)].units.unwrap_or(1);
            let direct = DirectRule {
                rule,
                limit,
                cost,
                enforcement: standing,
                descriptor: of,
                quota: one.quota,
            };
            self.plan(of).add_direct(direct, key, now);
        }
        Ok(())
    }

    /// Adds the limit stated in the request, which counts these entries whatever is configured.
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
            // A bucket rescales its state to the numbers of each request, so alternating numbers
            // would refill it. Windows keep their count whatever the numbers are.
            key.add("units", &units.to_string());
        }
        let limit = match units {
            0 => DirectLimit::Zero(unit),
            _ => {
                let name = &*self.takes.rules().rule_at(rule).name;
                let limit = Limit::per(units.into(), unit.period()).algorithm(algorithm).name(name);
                let limit = limit.build().map_err(|_| DescriptorError::BadLimit)?;
                self.stated.record_use((stated, algorithm), &limit, now)?;
                DirectLimit::Stated(Box::new(RuleLimit::new(limit)))
            }
        };
        let cost = self.descriptors[usize::from(of)].units.unwrap_or(1);
        let standing = Enforcement::Enforced;
        let direct =
            DirectRule { rule, limit, cost, enforcement: standing, descriptor: of, quota: false };
        self.plan(of).add_direct(direct, key, now);
        Ok(())
    }
}
