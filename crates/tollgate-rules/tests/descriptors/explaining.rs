//! Refusals of descriptors, as observers can explain them.

use std::sync::{Arc, Mutex};

use tollgate_rules::explain::{RefusalExplanation, RuleResult};
use tollgate_rules::{DecidedRequest, RulesObserver};

use super::gate::{DescriptorGate, descriptor};

#[derive(Default)]
struct ExplainingObserver(Mutex<Vec<RefusalExplanation>>);

impl RulesObserver for ExplainingObserver {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        self.0.lock().unwrap().extend(decided.explain_refusal());
    }
}

#[test]
fn limits_of_zero_refuse_as_far_as_they_are_enforced() {
    let mut gate = DescriptorGate::new(&["
domain: files
descriptors:
  - { key: block, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: quiet, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: authorization, rate_limit: { unit: hour, requests_per_unit: 10 } }
"]);
    let observer = Arc::new(ExplainingObserver::default());
    gate.gatekeeper = gate.gatekeeper.observed_by(observer.clone());
    let asked = ["block", "quiet", "authorization"].map(|name| descriptor(&[(name, "t0p")]));
    gate.say("files", &asked);
    let explained = observer.0.lock().unwrap();
    let [one] = &explained[..] else { panic!("{explained:?}") };
    assert_eq!(one.summary, "Refused by files--block (0/second): the cost is above 0.");
    let result = |name: &str| {
        let rule = one.rules.iter().find(|rule| *rule.name == *name).expect(name);
        let key = rule.key.as_ref().and_then(|key| key.text.as_deref()).unwrap_or_default();
        (rule.result, rule.why.as_str(), key)
    };
    let has_no_room = (RuleResult::Refused, "0/second has no room.", "entry.block=t0p");
    assert_eq!(result("files--block"), has_no_room);
    assert_eq!(result("files--quiet").0, RuleResult::Shadow);
    let (result, _, key) = result("files--authorization");
    assert_eq!((result, key), (RuleResult::Allowed, "entry.authorization=(not shown)"));
}
