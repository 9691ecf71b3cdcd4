//! `BodyNeed`: the look at a request whose cost is estimated by its body, before the body is read.
//!
//! A request that is refused whatever its body says is refused unread, so that a caller who has used up a limit cannot
//! make the server keep bodies. Its refusal counts as any other. Limits that need the body are asked for the least that
//! the request can cost.

use tollgate::{Act, Clock, Now, Refusal};

use super::waiting_request::Obstacle;
use crate::answer::Answer;
use crate::facts::Facts;
use crate::gatekeeper::{Ask, Gatekeeper, InfallibleStore, RulesVersion};
use crate::plan::{Enforcement, RequestPlan};
use crate::request_json::{RequestJson, RequestJsonReader};

/// The part that the body of a request plays in its decision.
#[derive(Debug)]
pub enum BodyNeed {
    /// The body does not matter.
    None,
    /// The body has to be read before the request is decided.
    Read(RequestJsonReader),
    /// The request is refused whatever its body says, and that is counted.
    Refused(Box<Answer>),
}

impl<S: InfallibleStore, C: Clock> Gatekeeper<S, C> {
    /// Finds out if the body of a request has to be read before it is decided. A request that may wait in a fair queue is
    /// not refused for a limit or a `concurrency` that it can wait for.
    pub async fn find_body_need<'n>(
        &self,
        rules: RulesVersion,
        ask: &Ask<'_>,
        now: impl Into<Now<'n>>,
    ) -> BodyNeed {
        if !rules.reads_request_json() || ask.cost.is_some() {
            return BodyNeed::None;
        }
        let now = now.into();
        self.call_store(self.look_before_body(rules, ask, now)).await
    }

    async fn look_before_body(&self, rules: RulesVersion, ask: &Ask<'_>, now: Now<'_>) -> BodyNeed {
        let unread = RequestJson::unread();
        let ask = Ask { facts: Facts { request_json: Some(&unread), ..ask.facts }, ..*ask };
        let mut plan = Box::new(RequestPlan::new(&rules, &ask, now.instant()));
        let Some(reader) = reader(&plan) else { return BodyNeed::None };
        plan.is_attempt = true;
        let Some(obstacle) = self.obstacle_whatever_the_body(&plan, now).await else {
            return BodyNeed::Read(reader);
        };
        let refused = self.refuse_plan(&mut plan, (&obstacle, None), now).await;
        let skipped = plan.skipped;
        drop(plan);
        BodyNeed::Refused(Box::new(Answer::new(rules, refused, skipped)))
    }

    /// The reason why a request is refused whatever its body says.
    async fn obstacle_whatever_the_body(
        &self,
        plan: &RequestPlan<'_>,
        now: Now<'_>,
    ) -> Option<Obstacle> {
        let can_wait = !plan.cannot_wait && plan.fair().is_some();
        if !can_wait && let Some(busy) = self.reservations.reached_bound(plan) {
            return Some(Obstacle::busy(busy));
        }
        let decided = self.ask(plan, Act::Peek, now).await;
        let refusal = decided.decision.refusal()?;
        let is_final = !can_wait || refusal != Refusal::OverLimit;
        is_final.then(|| self.obstacle_of(plan, &decided.decision, refusal))
    }
}

/// A reader for the body, if a limit of the plan needs it.
fn reader(plan: &RequestPlan<'_>) -> Option<RequestJsonReader> {
    let rules = || plan.limits.iter().map(|planned| (planned.enforcement, plan.rule(planned)));
    let reader = RequestJsonReader::for_paths(rules().flat_map(|(_, rule)| rule.request_paths()))?;
    let refuses = rules().any(|(enforcement, rule)| {
        enforcement == Enforcement::Enforced && rule.refuses_unreadable()
    });
    Some(reader.refusing_unreadable(refuses))
}
