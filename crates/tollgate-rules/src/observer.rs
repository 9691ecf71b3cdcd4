//! `Observer`: whoever wants to be told what the gatekeeper decided, such as logs and live views.

use arrayvec::ArrayVec;
use tollgate::decision::MAX_LIMITS;
use tollgate::{DecidedBy, KeyBuf, Micros, Outcome, Refusal, Wait};

use crate::MissingFacts;
use crate::answer::{Binding, Entries, Told};
use crate::plan::{Closed, Plan, Planned, Standing};
use crate::rule::Rule;
use crate::rule_set::RuleSet;
use crate::tally::Verdict;

/// Told of every request that was decided, reservations and forced charges among them; not of
/// questions that charge nothing, nor of what is given back. Called on the thread that decides: it has to be quick and must not block.
pub trait Observer: Send + Sync {
    /// A request was decided.
    fn decided(&self, decided: &Decided<'_>);

    /// Rules were skipped for want of a fact, and no other could refuse.
    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        let _ = (missing, now);
    }
}

/// A request that was decided.
pub struct Decided<'a> {
    plan: &'a Plan<'a>,
    told: &'a Told,
    by_rule: ArrayVec<ByRule<'a>, MAX_LIMITS>,
}

impl std::fmt::Debug for Decided<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decided").field("told", self.told).finish_non_exhaustive()
    }
}

/// What one rule said of a request.
#[derive(Clone, Copy, Debug)]
pub struct ByRule<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whose use it counts.
    pub key: &'a KeyBuf,
    /// What it said.
    pub verdict: Verdict,
    /// The limit that is named as the reason, as people read it: of those that refuse the one with
    /// the longest wait, else the one with the least left.
    pub limit: &'a str,
    /// The wait that this limit asks for.
    pub retry_after: Wait,
    /// What the request cost, or would have.
    pub cost: u64,
    number: u32,
}

impl<'a> Decided<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>, told: &'a Told, entries: &'a Entries) -> Decided<'a> {
        // Where nothing was refused, what refuses everything was not asked to take anything.
        let refuses = |one: &&Closed| told.refusal.is_some() || one.standing != Standing::Enforced;
        let closed = plan.closed.iter().filter(refuses).map(|closed| by_closed(plan, closed));
        let by_rule = each_rule(plan, told, entries).chain(closed).take(MAX_LIMITS).collect();
        Decided { plan, told, by_rule }
    }

    /// When.
    pub fn at(&self) -> Micros {
        self.told.at
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<Refusal> {
        self.told.refusal
    }

    /// Who decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.told.decided_by
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &'a RuleSet {
        self.plan.rules()
    }

    /// What each rule said that applied, in order.
    pub fn by_rule(&self) -> impl ExactSizeIterator<Item = &ByRule<'a>> {
        self.by_rule.iter()
    }

    /// Counts what the rules said.
    pub(crate) fn tally(&self) {
        for one in self.by_rule() {
            self.rules().tally_of(one.number).add(one.verdict);
        }
    }
}

impl ByRule<'_> {
    /// The limits would have let it pass, but too much of the key's work is going on.
    fn too_busy(self, told: &Told) -> Self {
        let limit = self.rule.concurrency.as_ref().map_or(self.limit, |one| &one.text);
        let (verdict, retry_after) = (Verdict::Refused, told.outcome.retry_after);
        ByRule { verdict, limit, retry_after, ..self }
    }
}

/// What each rule said that applied, in order.
fn each_rule<'a>(
    plan: &'a Plan<'a>,
    told: &'a Told,
    outcomes: &'a Entries,
) -> impl Iterator<Item = ByRule<'a>> {
    // A refusal without a limit's word, such as one for too many at once, has no outcomes.
    let mut rest: &[Planned] = &plan.limits[..outcomes.len().min(plan.limits.len())];
    let mut done = 0;
    std::iter::from_fn(move || {
        let (number, of) = rest.first().map(|first| (first.place.rule, first.of))?;
        let same = |planned: &&Planned| (planned.place.rule, planned.of) == (number, of);
        let limits = rest.iter().take_while(same).count();
        let (of_rule, others) = rest.split_at(limits);
        let found = by_rule(plan, of_rule, outcomes.outcomes().skip(done));
        rest = others;
        done += limits;
        let busy = told.binding == Some(Binding::Concurrency(number));
        Some(if busy { found.too_busy(told) } else { found })
    })
}

/// What a limit of nothing says.
fn by_closed<'a>(plan: &'a Plan<'a>, closed: &Closed) -> ByRule<'a> {
    let verdict = match closed.standing {
        Standing::Enforced => Verdict::Refused,
        Standing::Shadow => Verdict::Shadow,
        Standing::Soft => Verdict::Soft,
    };
    ByRule {
        rule: plan.rules().at(closed.rule),
        key: plan.key_of_closed(closed),
        verdict,
        limit: closed.unit.of_nothing(),
        retry_after: Wait::NEVER,
        cost: closed.cost,
        number: closed.rule,
    }
}

/// What the limits of one rule said together.
fn by_rule<'a, 'o>(
    plan: &'a Plan<'a>,
    limits: &'a [Planned],
    outcomes: impl Iterator<Item = &'o Outcome>,
) -> ByRule<'a> {
    let reason = |(_, outcome): &(&Planned, &Outcome)| {
        let wait = (!outcome.allowed).then_some(outcome.retry_after);
        (wait, std::cmp::Reverse(outcome.remaining))
    };
    // The first of equals, as everywhere.
    let (planned, outcome) = limits
        .iter()
        .zip(outcomes)
        .reduce(|best, next| if reason(&next) > reason(&best) { next } else { best })
        .expect("a rule that applies has limits");
    let verdict = match planned.standing {
        _ if outcome.allowed => Verdict::Allowed,
        _ if !outcome.is_known() => Verdict::Unavailable,
        Standing::Enforced => Verdict::Refused,
        Standing::Shadow => Verdict::Shadow,
        Standing::Soft => Verdict::Soft,
    };
    ByRule {
        rule: plan.rule(planned),
        key: plan.caller(planned),
        verdict,
        limit: plan.limit_text(planned),
        retry_after: outcome.retry_after,
        cost: planned.cost,
        number: planned.place.rule,
    }
}
