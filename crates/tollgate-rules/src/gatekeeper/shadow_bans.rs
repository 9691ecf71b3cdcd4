//! Bans of rules in shadow: they count refusals that were not given, and say whom they would have blocked. They change no
//! decision, so no request waits for them.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::store::{DetachedCheck, OwnedCheck};
use tollgate::{Check, Clock, Decision, KeyBuf, Now, Outcome, Refusal, Wait};

use super::bans::{
    ban_terms, bans_of, counts_towards_bans, is_one_too_many, notify_of_ban, refusal_check,
};
use super::{Gatekeeper, GatekeeperCounters, InfallibleStore};
use crate::answer::PlanDecision;
use crate::observer::{BanNotice, BanOutcome, RulesObserver};
use crate::plan::{Enforcement, PlannedLimit, RequestPlan};
use crate::rule::{Ban, Rule};
use crate::rule_set::RuleSet;

/// The scope of refusals that a rule in shadow would have given: rules that are enforced later begin at zero.
pub(crate) const SHADOW_REFUSALS: &str = "shadow_refusals";

/// The scope of the state that counts a ban in shadow once.
pub(crate) const SHADOW_BLOCK: &str = "shadow_block";

/// A caller whom a rule in shadow would have refused, for work that goes on without its request.
struct ShadowRefusal {
    rules: Arc<RuleSet>,
    rule: u32,
    key: KeyBuf,
    counts: Arc<GatekeeperCounters>,
    observer: Option<Arc<dyn RulesObserver>>,
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Counts the refusals that rules in shadow would have given towards their bans, for a decision that is final. A
    /// caller who is blocked is not asked about.
    #[inline]
    pub(super) fn count_shadow_refusals(
        &self,
        plan: &RequestPlan<'_>,
        decided: &PlanDecision,
        now: Now<'_>,
    ) {
        if plan.rules().has_shadow_bans() && decided.decision.refusal() != Some(Refusal::Blocked) {
            for (_, planned) in bans_of_shadow(plan, decided.entries.outcomes()) {
                self.count_shadow_refusal(plan, planned, now);
            }
        }
    }

    #[cold]
    fn count_shadow_refusal(
        &self,
        plan: &RequestPlan<'_>,
        planned: &PlannedLimit<'_>,
        now: Now<'_>,
    ) {
        let (rules, counts) = (self.rules.load_full(), Arc::clone(&self.counts));
        // A request that was decided by rules that were replaced meanwhile counts for none.
        let is_counted = ptr::eq(&*rules, plan.rules()) && {
            let (key, observer) = (plan.caller(planned).clone(), self.observer.clone());
            let rule = planned.limit_ref.rule;
            let refusal = ShadowRefusal { rules, rule, key, counts, observer };
            refusal.check().is_some_and(|check| self.store.decide_detached(check, now))
        };
        if !is_counted {
            self.counts.shadow_refusals_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl ShadowRefusal {
    fn rule(&self) -> Option<(&Rule, &Ban)> {
        let rule = self.rules.rule_at(self.rule);
        rule.ban.as_ref().map(|ban| (rule, ban))
    }

    /// The check that counts the refusal. The ban follows if it was one too many.
    fn check(self) -> Option<DetachedCheck> {
        let (rule, ban) = self.rule()?;
        let counted_under = rule.scoped(SHADOW_REFUSALS, &self.key);
        let check = OwnedCheck::of(&refusal_check(rule, ban, &counted_under));
        Some(DetachedCheck::new(
            check,
            |counted| {
                if is_one_too_many(&counted) { self.ban() } else { None }
            },
        ))
    }

    /// The check that counts the ban, once in the time of its block.
    fn ban(self) -> Option<DetachedCheck> {
        let (rule, ban) = self.rule()?;
        let blocked_under = rule.scoped(SHADOW_BLOCK, &self.key);
        let check = Check::new(&ban.shadow_block, &blocked_under).terms(ban_terms(rule));
        Some(DetachedCheck::new(OwnedCheck::of(&check), move |blocked| {
            self.tell(&blocked);
            None
        }))
    }

    fn tell(&self, blocked: &Decision) {
        let Some((rule, ban)) = self.rule() else { return };
        if blocked.allowed() && counts_towards_bans(blocked.decided_by()) {
            self.counts.shadow_bans.fetch_add(1, Ordering::Relaxed);
            let (at, outcome) = (blocked.at(), BanOutcome::Shadow);
            let until = at.after(Wait::at_least(ban.block));
            let notice = BanNotice { rule, key: &self.key, at, until, outcome };
            notify_of_ban(&self.rules, self.rule, self.observer.as_deref(), &notice);
        }
    }
}

/// The bans that a request counts towards because rules in shadow would have refused it.
fn bans_of_shadow<'p>(
    plan: &'p RequestPlan<'_>,
    outcomes: &[Outcome],
) -> impl Iterator<Item = (&'p Ban, &'p PlannedLimit<'p>)> {
    bans_of(plan, outcomes, |_, planned, outcome| {
        planned.enforcement == Enforcement::Shadow && !outcome.allowed
    })
}
