//! Stand-in for `tollgate-rules` until it is there: one limit per caller.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tollgate::headers::{Dialect, Policy, PolicyName, Reply};
use tollgate::{Decision, KeyBuf, Limit, Limiter, Micros, Outcome, Wait};
pub(crate) use tollgate_rules::{Facts, Headers};

pub(crate) struct Gatekeeper {
    limiter: Limiter,
    limit: Limit,
    name: PolicyName,
    text: String,
    reserved: Mutex<HashMap<String, (String, u64, Micros)>>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) facts: Facts<'a>,
    pub(crate) cost: Option<u64>,
}

pub(crate) struct Answer<'a> {
    decision: Decision,
    keeper: &'a Gatekeeper,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Enforced,
    #[expect(dead_code, reason = "stand-in")]
    Shadow,
    #[expect(dead_code, reason = "stand-in")]
    Soft,
}

pub(crate) struct Judged<'a> {
    pub(crate) rule: &'a str,
    pub(crate) limit: &'a str,
    pub(crate) outcome: Outcome,
    pub(crate) standing: Standing,
}

pub(crate) struct TableFull;
pub(crate) enum SettleError {
    Unknown,
    Expired,
}
pub(crate) struct Reserved<'a> {
    pub(crate) answer: Answer<'a>,
    pub(crate) id: Option<String>,
}

fn key(facts: &Facts<'_>) -> String {
    facts
        .user
        .map(String::from)
        .or(facts.ip.map(|ip: IpAddr| ip.to_string()))
        .unwrap_or_else(|| "nobody".into())
}

impl Gatekeeper {
    pub(crate) fn new(limit: Limit, limiter: Limiter) -> Gatekeeper {
        let name = PolicyName::new("default").unwrap();
        Gatekeeper { text: limit.to_string(), limit, limiter, name, reserved: Mutex::default() }
    }
    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }
    pub(crate) fn decide(&self, ask: &Ask<'_>) -> Answer<'_> {
        self.decide_at(ask, tollgate::Clock::now(self.limiter.clock()))
    }
    pub(crate) fn decide_at(&self, ask: &Ask<'_>, now: Micros) -> Answer<'_> {
        let key = key(&ask.facts);
        let decision = self.limiter.at(now).take(&self.limit, &*key, ask.cost.unwrap_or(1));
        Answer { decision, keeper: self }
    }
    pub(crate) fn reserve(&self, ask: &Ask<'_>, expires_in: Duration) -> Result<Reserved<'_>, TableFull> {
        let mut reserved = self.reserved.lock().unwrap();
        if reserved.len() > 1000 {
            return Err(TableFull);
        }
        let answer = self.decide(ask);
        let id = answer.decision.allowed().then(|| format!("r{}", reserved.len()));
        if let Some(id) = &id {
            let until = answer.decision.at().after(Wait::at_least(expires_in));
            reserved.insert(id.clone(), (key(&ask.facts), ask.cost.unwrap_or(1), until));
        }
        Ok(Reserved { answer, id })
    }
    pub(crate) fn commit(&self, id: &str, cost: u64) -> Result<(), SettleError> {
        let (key, estimate, until) =
            self.reserved.lock().unwrap().remove(id).ok_or(SettleError::Unknown)?;
        let now = self.limiter.now();
        if tollgate::Clock::now(self.limiter.clock()) >= until {
            return Err(SettleError::Expired);
        }
        if cost < estimate {
            now.grant(&self.limit, &*key, estimate - cost);
        } else {
            let _ = now.force(&self.limit, &*key, cost - estimate);
        }
        Ok(())
    }
    pub(crate) fn cancel(&self, id: &str) -> Result<(), SettleError> {
        self.commit(id, 0)
    }
    pub(crate) fn refund(&self, ask: &Ask<'_>) -> Answer<'_> {
        let key = KeyBuf::from(&*key(&ask.facts));
        let now = self.limiter.now();
        now.grant(&self.limit, &key, ask.cost.unwrap_or(1));
        Answer { decision: now.peek(&self.limit, &key, 0), keeper: self }
    }
}

impl<'k> Answer<'k> {
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }
    pub(crate) fn binding(&self) -> Option<Judged<'_>> {
        self.limits().next()
    }
    pub(crate) fn limits(&self) -> impl Iterator<Item = Judged<'_>> {
        std::iter::once(Judged {
            rule: "default",
            limit: &self.keeper.text,
            outcome: *outcome_of(&self.decision),
            standing: Standing::Enforced,
        })
    }
    pub(crate) fn reply<'a>(&'a self, policies: &'a mut Vec<Policy<'a>>) -> Reply<'a> {
        policies.push(Policy::alone(&self.keeper.name, &self.keeper.limit, &self.decision));
        Reply::new(&self.decision, policies)
    }
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    pub(crate) fn dialects(&self) -> &[Dialect] {
        &Dialect::DEFAULT
    }
    pub(crate) fn decided_by(&self) -> &'static str {
        self.decision.decided_by().name()
    }
}

fn outcome_of(decision: &Decision) -> Box<Outcome> {
    Box::new(Outcome {
        allowed: decision.allowed(),
        remaining: decision.remaining(),
        retry_after: decision.retry_after(),
        reset_after: decision.reset_after(),
        ..Outcome::default()
    })
}
