//! `GET /api/history`: decisions and latency over the last minutes, hour or day.

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use crate::history::{HistoryRange, HistorySeries, OUTCOME_NAMES};
use crate::listeners::response_body::ResponseBody;
use crate::reply;

impl ControlPlane {
    pub(super) fn history(
        &self,
        query: Option<&str>,
    ) -> Result<Response<ResponseBody>, QueryError> {
        let query = QueryFields::parse(query, &["range", "rule"])?;
        let range = query.choice("range", &HistoryRange::ALL)?;
        let rule = query.text("rule");
        if let Some(rule) = rule
            && self.gatekeeper.rules().rule(rule).is_none()
            && !self.traffic.history.knows(range, rule)
        {
            let message = "There is no such rule, and in this range there was none.";
            return Ok(reply::error(StatusCode::NOT_FOUND, message));
        }
        let series = self.traffic.history.series(range, rule, self.gatekeeper.now());
        Ok(reply::json(StatusCode::OK, series_json(&series, rule).to_string()))
    }
}

fn series_json(series: &HistorySeries, rule: Option<&str>) -> Value {
    let mut document = Map::new();
    for (place, name) in OUTCOME_NAMES.into_iter().enumerate() {
        document.insert(name.into(), series.outcome(place).collect::<Value>());
    }
    for (name, part) in [("p50_us", 0.5), ("p99_us", 0.99)] {
        let latency = series.latency.iter();
        let values = latency.map(|counts| counts.and_then(|counts| counts.percentile_us(part)));
        document.insert(name.into(), values.collect::<Value>());
    }
    document.insert("step_s".into(), series.step_s.into());
    document.insert("from_s".into(), series.from_s.into());
    document.insert("last_step_s".into(), series.last_step_s.into());
    document.insert("rule".into(), json!(rule));
    Value::Object(document)
}
