//! Decides checks of the http and grpc listeners: turns them into requests to the gatekeeper. Every endpoint calls it, and
//! it calls no endpoint.

use std::sync::Arc;

use tollgate::Micros;
use tollgate_rules::{Answer, Ask, Facts, Identity, RulesVersion};

use super::facts::{identify_caller, rules_for_identity, stated_facts};
use super::json::CheckBody;
use crate::metrics::DecisionTiming;
use crate::settings::OnMissingFacts;
use crate::store::ServerGatekeeper;
use crate::warnings::Warnings;

/// Everything that an endpoint needs to decide.
pub(crate) struct CheckService {
    pub(crate) gatekeeper: Arc<ServerGatekeeper>,
    pub(crate) timing: Arc<DecisionTiming>,
    pub(crate) warnings: Warnings,
    /// Treatment of checks that lack the facts every rule needs.
    pub(crate) missing_facts: OnMissingFacts,
}

impl CheckService {
    /// Decides a request by the rules version that its facts were read with.
    pub(super) async fn decide(&self, rules: RulesVersion, ask: &Ask<'_>, now: Micros) -> Answer {
        let (gatekeeper, timing) = (&self.gatekeeper, &self.timing);
        let at = gatekeeper.clock_instant(now);
        match timing.measure_at_once(|| gatekeeper.decide_at_once(rules, ask, at)) {
            Ok(answer) => answer,
            Err(rules) => timing.measure(gatekeeper.decide_by(rules, ask, at)).await,
        }
    }

    /// Decides a JSON check.
    pub(super) async fn decide_body(
        &self,
        rules: RulesVersion,
        check: &CheckBody<'_>,
        now: Micros,
    ) -> Answer {
        let (stated, identifying) = (stated_facts(check), rules_for_identity(&rules, check));
        let identity = identify_caller(identifying.as_deref(), &stated, now);
        let ask = self.ask(identity.complete(stated), check.cost);
        self.decide(rules, &ask, now).await
    }

    /// Decides several JSON checks in order, and calls `each` with every answer in order.
    pub(super) async fn decide_bodies(
        &self,
        rules: &RulesVersion,
        checks: &[CheckBody<'_>],
        now: Micros,
        mut each: impl FnMut(&Answer),
    ) {
        let (gatekeeper, timing) = (&self.gatekeeper, &self.timing);
        let identities: Vec<Identity<'_>> = checks
            .iter()
            .map(|check| {
                let rules = (!check.headers.is_empty()).then_some(&***rules);
                identify_caller(rules, &stated_facts(check), now)
            })
            .collect();
        let asks: Vec<Ask<'_>> = checks
            .iter()
            .zip(&identities)
            .map(|(check, who)| self.ask(who.complete(stated_facts(check)), check.cost))
            .collect();
        let rules = RulesVersion::from_inner(Arc::clone(rules));
        let at = gatekeeper.clock_instant(now);
        let decided = timing.measure_many_at_once(asks.len(), || {
            gatekeeper.decide_requests_at_once(rules, &asks, at, &mut each)
        });
        if let Err(rules) = decided {
            let deciding = gatekeeper.decide_requests_by(rules, &asks, at, each);
            timing.measure_many(asks.len(), deciding).await;
        }
    }

    /// The request to the gatekeeper for a client that can handle an error about missing facts.
    pub(super) fn ask<'a>(&self, facts: Facts<'a>, cost: Option<u64>) -> Ask<'a> {
        let needs_facts = self.missing_facts == OnMissingFacts::Refuse;
        Ask { facts, cost, needs_facts, ..Ask::default() }
    }
}
