//! One look at a server: its status, rules, heaviest callers and traffic, as the admin API tells them.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cli::Report;
use crate::cli::client::ClientRequest;
use crate::cli::client::listener::ListenerClient;
use crate::cli::keys::top::TopReply;

/// Most callers in each order: as many as the server lists.
const CALLERS_MAX: usize = 100;

/// One look at a server.
#[derive(Debug, Default)]
pub(super) struct ServerSnapshot {
    pub(super) status: StatusReply,
    pub(super) rules: Vec<RankedRuleReply>,
    /// Callers with the most requests. Bound: [`CALLERS_MAX`].
    pub(super) by_requests: TopReply,
    /// Callers with the most refusals. Bound: [`CALLERS_MAX`].
    pub(super) by_refusals: TopReply,
    pub(super) traffic: TrafficReply,
}

/// The response of `/api/status`, as far as it is shown.
#[derive(Debug, Default, Deserialize)]
pub(super) struct StatusReply {
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) ready: bool,
    pub(super) rules: RulesStatusReply,
    pub(super) store: StoreReply,
    #[serde(default)]
    pub(super) upstreams: UpstreamsReply,
    #[serde(default)]
    pub(super) waiting: u64,
    #[serde(default)]
    pub(super) connections: BTreeMap<String, u64>,
}

/// The upstreams' servers that are not available.
#[derive(Debug, Default, Deserialize)]
pub(super) struct UpstreamsReply {
    /// Upstreams without an available server.
    #[serde(default)]
    pub(super) without_server: u64,
    #[serde(default)]
    pub(super) problems: Vec<UpstreamProblemReply>,
}

/// One server that is not available.
#[derive(Debug, Default, Deserialize)]
pub(super) struct UpstreamProblemReply {
    pub(super) upstream: String,
    pub(super) server: String,
    pub(super) state: String,
    pub(super) reason: Option<String>,
}

/// The rules in force.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RulesStatusReply {
    pub(super) version: u64,
    pub(super) count: u64,
    /// The last reload that failed, if the rules in force are older.
    pub(super) failed: Option<serde_json::Value>,
}

/// The state of the store.
#[derive(Debug, Default, Deserialize)]
pub(super) struct StoreReply {
    pub(super) kind: String,
    pub(super) up: bool,
    pub(super) keys: u64,
    #[serde(default)]
    pub(super) slots: u64,
    #[serde(default)]
    pub(super) evicted: u64,
    #[serde(default)]
    pub(super) blocked: u64,
    pub(super) instances: Option<u64>,
    pub(super) degraded: Option<DegradedReply>,
    #[serde(default)]
    pub(super) stores: Vec<SharedStoreReply>,
}

/// Decisions that were made without the shared store.
#[derive(Debug, Default, Deserialize)]
pub(super) struct DegradedReply {
    pub(super) local: u64,
    pub(super) open: u64,
    pub(super) closed: u64,
}

/// One shared store.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SharedStoreReply {
    pub(super) name: Option<String>,
    pub(super) url: String,
    pub(super) up: bool,
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) breaker_open: bool,
}

/// One rule of `/api/rules`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RankedRuleReply {
    pub(super) name: String,
    pub(super) mode: String,
    /// True if the rule only warns, whatever its mode.
    #[serde(default)]
    pub(super) soft: bool,
    #[serde(default)]
    pub(super) limits: Vec<String>,
    pub(super) tally: RuleTallyReply,
}

impl RankedRuleReply {
    /// The effect of the rule in a word: its mode, or `soft` where the mode would enforce it.
    pub(super) fn effect(&self) -> &str {
        if self.soft && self.mode.starts_with("enforce") { "soft" } else { &self.mode }
    }
}

/// The verdicts of a rule so far.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RuleTallyReply {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) shadow: u64,
    pub(super) soft: u64,
    /// 0 where the server has no such count.
    #[serde(default)]
    pub(super) store_unavailable: u64,
    /// The same.
    #[serde(default)]
    pub(super) refused_by_other: u64,
}

impl RuleTallyReply {
    /// Number of requests that the rule applied to.
    pub(super) fn requests(&self) -> u64 {
        let counts = [
            self.allowed,
            self.refused,
            self.shadow,
            self.soft,
            self.store_unavailable,
            self.refused_by_other,
        ];
        counts.into_iter().fold(0, u64::saturating_add)
    }
}

/// The response of `/api/history`; `None` stands for a step without data.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TrafficReply {
    step_s: u64,
    last_step_s: u64,
    pub(super) allowed: Vec<Option<u64>>,
    pub(super) refused: Vec<Option<u64>>,
    shadow: Vec<Option<u64>>,
    soft: Vec<Option<u64>>,
    delayed: Vec<Option<u64>>,
    unavailable: Vec<Option<u64>>,
    p50_us: Vec<Option<f64>>,
    p99_us: Vec<Option<f64>>,
}

/// The traffic of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TrafficRates {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) shadow: u64,
    pub(super) soft: u64,
    pub(super) delayed: u64,
    pub(super) unavailable: u64,
    /// Median and 99th percentile of the time of a decision, in microseconds.
    pub(super) latency_us: Option<(f64, f64)>,
}

impl TrafficReply {
    /// Number of complete steps.
    pub(super) fn complete_steps(&self) -> usize {
        let is_partial = self.last_step_s < self.step_s;
        self.allowed.len().saturating_sub(usize::from(is_partial))
    }

    /// The last complete second.
    pub(super) fn last_rates(&self) -> TrafficRates {
        let Some(index) = self.complete_steps().checked_sub(1) else {
            return TrafficRates::default();
        };
        let count = |series: &[Option<u64>]| series.get(index).copied().flatten().unwrap_or(0);
        let latency = |series: &[Option<f64>]| series.get(index).copied().flatten();
        TrafficRates {
            allowed: count(&self.allowed),
            refused: count(&self.refused),
            shadow: count(&self.shadow),
            soft: count(&self.soft),
            delayed: count(&self.delayed),
            unavailable: count(&self.unavailable),
            latency_us: latency(&self.p50_us).zip(latency(&self.p99_us)),
        }
    }
}

impl ServerSnapshot {
    /// Asks the server.
    pub(super) fn fetch(listener: &ListenerClient<'_>) -> Result<ServerSnapshot, Report> {
        #[derive(Deserialize)]
        struct RulesReply {
            rules: Vec<RankedRuleReply>,
        }
        let callers = |by: &str| get(listener, &format!("/api/top?by={by}&n={CALLERS_MAX}"));
        Ok(ServerSnapshot {
            status: get(listener, "/api/status")?,
            rules: get::<RulesReply>(listener, "/api/rules?sort=requests&n=100")?.rules,
            by_requests: callers("requests")?,
            by_refusals: callers("refusals")?,
            traffic: get(listener, "/api/history?range=5m")?,
        })
    }
}

fn get<T: DeserializeOwned>(listener: &ListenerClient<'_>, path: &str) -> Result<T, Report> {
    let request = ClientRequest { method: Method::GET, path: path.into(), body: None };
    let response = listener.ask(&request)?;
    if response.status != 200 {
        return Err(listener.refused(&response));
    }
    serde_json::from_str(&response.body).map_err(|error| listener.not_tollgate(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_complete_second() {
        let text = r#"{"step_s":1,"last_step_s":0,"from_s":0,"allowed":[null,7,9],"refused":[null,2,1],
            "shadow":[null,1,0],"soft":[null,0,0],"delayed":[null,3,0],"unavailable":[null,4,0],
            "p50_us":[null,1.5,null],"p99_us":[null,20,null]}"#;
        let traffic: TrafficReply = serde_json::from_str(text).unwrap();
        assert_eq!(traffic.complete_steps(), 2);
        let want = TrafficRates {
            allowed: 7,
            refused: 2,
            shadow: 1,
            soft: 0,
            delayed: 3,
            unavailable: 4,
            latency_us: Some((1.5, 20.0)),
        };
        assert_eq!(traffic.last_rates(), want);
        assert_eq!(TrafficReply::default().last_rates(), TrafficRates::default());
    }
}
