//! `Rule`: its condition, key, limits and mode.

use std::sync::Arc;
use std::time::Duration;

use tollgate::headers::PolicyName;
use tollgate::{Algorithm, Align, KeyBuf, Limit, LimitError, Terms};

use crate::cost_source::{ActualCost, CostEstimate, OnUnreadable};
use crate::fair::Fair;
use crate::import::ImportDetails;
use crate::json_path::JsonPath;
use crate::key_template::KeyTemplate;
use crate::limit_spec::RuleLimit;
use crate::matcher::Condition;
use crate::normalized_facts::NormalizedFacts;
use crate::own_refusal::OwnRefusal;
use crate::path::{SpellingSet, spelling_numbers};
use crate::pattern::EndpointMap;
use crate::websocket_limits::WebSocketLimits;

/// One rule, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique in a rule set; letters, digits, `_` and `-`, at most 64.
    pub name: Arc<str>,
    /// The condition; `None` applies always.
    pub condition: Option<Condition>,
    /// True if the rule applies only where no other enforced rule with a condition does.
    pub fallback: bool,
    /// The key that is counted.
    pub key: KeyTemplate,
    /// The limits; all of them must allow.
    pub limits: TierLimits,
    /// The cost of a request, unless the caller states one.
    pub cost: Cost,
    /// The mode: enforced, shadow, off, or enforced for a share of keys.
    pub mode: Mode,
    /// True if the rule warns instead of refusing.
    pub soft: bool,
    /// True if refused requests are charged too.
    pub count_denied: bool,
    /// The block that follows repeated refusals.
    pub ban: Option<Ban>,
    /// The terms for a shared store: consistency, behaviour on failure, and the number of the
    /// store.
    pub terms: Terms,
    /// The name of the shared store, if it is not the one of all others.
    pub store: Option<Box<str>>,
    /// At most so many reservations of one key at once.
    pub concurrency: Option<Concurrency>,
    /// The queue in which requests wait their turn, instead of being refused.
    pub fair: Option<Fair>,
    /// The limits of WebSocket connections.
    pub websocket: Option<Arc<WebSocketLimits>>,
    /// The response to refused clients, instead of a problem document.
    pub refusal: Option<Arc<OwnRefusal>>,
    /// Details of a rule from a file of envoyproxy/ratelimit. Only descriptors of its domain are
    /// matched against such a rule.
    pub imported: Option<Box<ImportDetails>>,
}

impl Rule {
    /// Returns true if it looks at the host.
    pub(crate) fn reads_host(&self) -> bool {
        let is_host = |one: &Condition| matches!(one, Condition::Host(_) | Condition::HostText(_));
        self.key.has_host() || self.condition.as_ref().is_some_and(|when| when.has(&is_host))
    }

    /// Returns true if the condition names this method, in capitals.
    pub(crate) fn names_method(&self, method: &str) -> bool {
        let names = |one: &Condition| match one {
            Condition::Method(methods) => methods.iter().any(|named| **named == *method),
            _ => false,
        };
        self.condition.as_ref().is_some_and(|condition| condition.has(&names))
    }

    /// A rule that applies to everything and is enforced; the rest is as a file without the fields
    /// means it.
    pub fn new(name: &str, key: KeyTemplate, limits: TierLimits) -> Rule {
        Rule {
            name: name.into(),
            condition: None,
            fallback: false,
            key,
            limits,
            cost: Cost::Fixed(1),
            mode: Mode::Enforce,
            soft: false,
            count_denied: false,
            ban: None,
            terms: Terms::default(),
            store: None,
            concurrency: None,
            fair: None,
            websocket: None,
            refusal: None,
            imported: None,
        }
    }

    /// The cost of a request under this rule, unless the caller states one; `spellings` are those
    /// of the path that the rule applies to.
    pub(crate) fn cost_of(&self, seen: &NormalizedFacts<'_>, spellings: SpellingSet) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            // The bytes are charged as they pass.
            Cost::Bytes => 1,
            Cost::Reserve { reserve, .. } => reserve.of(seen.facts),
            Cost::PerEndpoint { default, endpoints } => {
                let cost = |number| {
                    let path = seen.spelling(number)?.text();
                    endpoints.find(seen.method(), path).copied()
                };
                // The highest cost of all spellings, because servers disagree about which one is
                // meant.
                let costs =
                    spelling_numbers(spellings).map(|number| cost(number).unwrap_or(*default));
                costs.max().unwrap_or(*default)
            }
        }
    }

    /// Returns true if requests may wait under this rule: in a fair queue, or because a limit with
    /// `queue: true` delays them.
    pub fn can_wait(&self) -> bool {
        let delays = |limits: &[RuleLimit]| limits.iter().any(|one| one.limit.is_queue());
        self.fair.is_some() || self.limits.all().any(delays)
    }

    /// The place in the response that has the true cost.
    pub(crate) fn actual_cost(&self) -> Option<&Arc<ActualCost>> {
        match &self.cost {
            Cost::Reserve { actual, .. } => actual.as_ref(),
            _ => None,
        }
    }

    /// Returns true if the cost is estimated by the request.
    pub(crate) fn has_estimate(&self) -> bool {
        self.reserve().is_some_and(|reserve| !reserve.is_fixed())
    }

    /// The paths in the body of a request that its cost is estimated by.
    pub(crate) fn request_paths(&self) -> impl Iterator<Item = &JsonPath> {
        self.reserve().into_iter().flat_map(CostEstimate::json_paths)
    }

    /// Returns true if the rule refuses requests whose body its estimate needs and cannot be read.
    pub(crate) fn refuses_unreadable(&self) -> bool {
        matches!(self.cost, Cost::Reserve { unreadable: OnUnreadable::Refuse, .. })
    }

    /// Returns true if the length of a request's body is part of the estimate of its cost.
    pub(crate) fn estimates_by_bytes(&self) -> bool {
        self.reserve().is_some_and(CostEstimate::counts_bytes)
    }

    /// The estimate that is reserved.
    pub(crate) fn reserve(&self) -> Option<&CostEstimate> {
        match &self.cost {
            Cost::Reserve { reserve, .. } => Some(reserve),
            _ => None,
        }
    }

    /// A hash of the name, the same in every version of the rules.
    pub(crate) fn name_hash(&self) -> u64 {
        stable_hash(self.name.as_bytes(), b"")
    }

    /// The key under which something of this rule alone is kept: blocks, refusals that count towards
    /// one, work in flight. Other rules of the same caller go on.
    pub(crate) fn scoped(&self, scope: &str, key: &KeyBuf) -> KeyBuf {
        let mut scoped = KeyBuf::new().with(scope, &self.name);
        scoped.append(key);
        scoped
    }
}

/// A rule's limits, for callers without a tier and for each tier that has numbers of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// The limits of callers without a tier, and of tiers that have none of their own.
    plain: Box<[RuleLimit]>,
    /// One for each tier of the rule set, in order; none if no tier has limits of its own. A tier's own
    /// limits count apart from all others, also where the numbers happen to be equal.
    own: Box<[Option<Box<[RuleLimit]>>]>,
}

impl TierLimits {
    /// Creates limits that are the same for all tiers.
    pub fn untiered(limits: Vec<RuleLimit>) -> TierLimits {
        TierLimits { plain: limits.into(), own: [].into() }
    }

    /// Creates limits from those of callers without a tier and the own limits of each tier, in the
    /// order of the rule set; `None`: such a tier is counted with callers without one.
    pub fn tiered(without: Vec<RuleLimit>, tiers: Vec<Option<Vec<RuleLimit>>>) -> TierLimits {
        let own = match tiers.iter().any(Option::is_some) {
            true => tiers.into_iter().map(|limits| limits.map(Into::into)).collect(),
            false => [].into(),
        };
        TierLimits { plain: without.into(), own }
    }

    /// The limits of a tier, by its place in the rule set, and whether they are its own.
    pub(crate) fn of(&self, tier: Option<usize>) -> (&[RuleLimit], bool) {
        match tier.and_then(|tier| self.own.get(tier)?.as_deref()) {
            Some(own) => (own, true),
            None => (&self.plain, false),
        }
    }

    /// Those of callers without a tier.
    pub fn plain(&self) -> &[RuleLimit] {
        &self.plain
    }

    /// Those of each tier in the order of the rule set; nothing if no tier has limits of its own.
    pub fn by_tier(&self) -> impl ExactSizeIterator<Item = &[RuleLimit]> {
        self.own.iter().map(|own| own.as_deref().unwrap_or(&self.plain))
    }

    /// Returns true if the numbers depend on the tier.
    pub fn depend_on_tier(&self) -> bool {
        !self.own.is_empty()
    }

    /// All different lists, each with the index of its tier.
    pub(crate) fn lists_mut(&mut self) -> impl Iterator<Item = (Option<usize>, &mut [RuleLimit])> {
        let own = self.own.iter_mut().enumerate();
        let own = own.filter_map(|(tier, list)| Some((Some(tier), &mut **list.as_mut()?)));
        std::iter::once((None, &mut *self.plain)).chain(own)
    }

    /// All different lists: without a tier, then those that tiers have of their own.
    pub fn all(&self) -> impl Iterator<Item = &[RuleLimit]> {
        std::iter::once(&*self.plain).chain(self.own.iter().flatten().map(|own| &**own))
    }
}

/// The cost of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The same for every request.
    Fixed(u64),
    /// The bytes of the bodies of request and response, as they pass.
    Bytes,
    /// A cost by endpoint; the most specific wins.
    PerEndpoint {
        /// The cost of all other endpoints.
        default: u64,
        /// The costs by endpoint.
        endpoints: EndpointMap<u64>,
    },
    /// A cost that is known only afterwards.
    Reserve {
        /// The units taken first.
        reserve: CostEstimate,
        /// The place in the response that has the true cost.
        actual: Option<Arc<ActualCost>>,
        /// The treatment of requests whose body the estimate needs and cannot be read.
        unreadable: OnUnreadable,
    },
}

/// The mode of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuses.
    #[default]
    Enforce,
    /// Only counts what it would refuse.
    Shadow,
    /// The rule is ignored.
    Off,
    /// Enforced for this share of keys, in ten-thousandths, always the same ones; shadow for the
    /// others.
    Share(u16),
}

impl Mode {
    /// Returns true if the rule is enforced for a key.
    pub(crate) fn enforces(self, rule: &str, key: &KeyBuf) -> bool {
        match self {
            Mode::Enforce => true,
            Mode::Shadow | Mode::Off => false,
            Mode::Share(share) => {
                stable_hash(rule.as_bytes(), key.as_bytes()) % 10_000 < share.into()
            }
        }
    }
}

/// The same in every process and version, so that a caller is in the same share everywhere: FNV-1a
/// over the rule's name and the key, finished with a mixer because its low bits alone are weak.
fn stable_hash(rule: &[u8], key: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = rule.iter().chain(&[0xff]).chain(key).fold(0xcbf2_9ce4_8422_2325, mix);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ hash >> 33
}

/// A block that follows repeated refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The number of refusals within a period that leads to a block.
    pub refusals: Limit,
    /// The duration of the block, under this rule.
    pub block: Duration,
    /// One in the duration of the block: counts a ban in shadow, which blocks nobody, once.
    pub shadow_block: Limit,
}

impl Ban {
    /// A block of `block` after so many refusals within a period; an error if one of the numbers is
    /// impossible.
    pub fn new(
        rule: &str,
        (after, within): (u64, Duration),
        block: Duration,
    ) -> Result<Ban, LimitError> {
        // A log, so that exactly the last counted refusal leads to the block.
        let refusals = Limit::per(after, within).algorithm(Algorithm::SlidingWindowLog);
        let shadow_block =
            Limit::per(1, block).algorithm(Algorithm::FixedWindow).align(Align::FirstHit);
        Ok(Ban {
            refusals: refusals.name(rule).build()?,
            block,
            shadow_block: shadow_block.name(rule).build()?,
        })
    }
}

/// A bound on the work of one key that goes on at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// The most open reservations; the highest bound of an adaptive one.
    pub max: u32,
    /// The lowest bound, if the bound is found by measured latency; `None` for a fixed one.
    pub adaptive_min: Option<u32>,
    /// The bound in readable form.
    pub text: Box<str>,
    /// The name in headers and problem documents.
    pub policy: PolicyName,
}

impl Concurrency {
    /// Creates the bound of the rule of this name.
    pub fn new(rule: &str, max: u32) -> Concurrency {
        let policy = PolicyName::new(&format!("{rule}-in-flight")).expect("rule names are plain");
        Concurrency { max, adaptive_min: None, text: format!("{max} in flight").into(), policy }
    }

    /// Creates the bound on open WebSocket connections of the rule of this name.
    pub fn connections(rule: &str, max: u32) -> Concurrency {
        let policy = PolicyName::new(&format!("{rule}-connections")).expect("rule names are plain");
        Concurrency { max, adaptive_min: None, text: format!("{max} connections").into(), policy }
    }

    /// Creates a bound between `min` and `max` that is found by measured latency.
    pub fn adaptive(rule: &str, min: u32, max: u32) -> Concurrency {
        let text = format!("adaptive, {min} to {max} in flight").into();
        Concurrency { adaptive_min: Some(min), text, ..Concurrency::new(rule, max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_stable_and_of_their_size() {
        let key = |user: u32| KeyBuf::new().with("user", &user.to_string());
        let enforced = |share: u16| {
            (0..20_000).filter(|user| Mode::Share(share).enforces("api", &key(*user))).count()
        };
        assert_eq!((enforced(0), enforced(10_000)), (0, 20_000));
        let quarter = enforced(2_500);
        assert!((4_800..5_200).contains(&quarter), "{quarter} of 20,000 for 25 %");
        // A key in a small share is in every larger one: raising the share never takes a key out.
        for user in 0..1_000 {
            let within = |share| Mode::Share(share).enforces("api", &key(user));
            assert!(!within(1_000) || within(2_000));
        }
        // Fixed for good: other processes and versions must agree.
        assert_eq!(stable_hash(b"api", b"42"), 18_058_802_607_270_086_112);
    }
}
