//! `/api/top`: the callers with the most requests, or the most refusals.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use crate::listeners::response_body::ResponseBody;
use crate::reply;
use crate::top::{TopEntry, TopOrder, WINDOW_US};

/// Default number of callers.
const CALLERS_DEFAULT: usize = 20;

/// Largest number of callers.
const CALLERS_MAX: usize = 100;

/// The orders of the list by their names.
const ORDERS: [(&str, TopOrder); 2] =
    [("requests", TopOrder::Requests), ("refusals", TopOrder::Refusals)];

impl ControlPlane {
    pub(super) fn top(&self, query: Option<&str>) -> Result<Response<ResponseBody>, QueryError> {
        let query = QueryFields::parse(query, &["by", "n"])?;
        let by = query.choice("by", &ORDERS)?;
        let most = query.number("n", 1..=CALLERS_MAX, CALLERS_DEFAULT)?;
        let (rules, now) = (self.gatekeeper.rules(), self.gatekeeper.now());
        let identify = &rules.settings().identify;
        let hottest = self.metrics.observer.hottest(most, by, identify, now);
        let document = json!({
            "by": order_name(by),
            "window_s": 2 * WINDOW_US / 1_000_000,
            "top": hottest.iter().map(|entry| entry_json(entry, by)).collect::<Vec<_>>(),
        });
        Ok(reply::json(StatusCode::OK, document.to_string()))
    }
}

fn order_name(by: TopOrder) -> &'static str {
    ORDERS.iter().find(|(_, order)| *order == by).map_or("", |(name, _)| name)
}

fn entry_json(entry: &TopEntry, by: TopOrder) -> Value {
    let counted = match by {
        TopOrder::Requests => &entry.requests,
        TopOrder::Refusals => &entry.refusals,
    };
    json!({
        "rule": &*entry.rule,
        "key": entry.key,
        "hash": entry.hash,
        "count": counted.count,
        "error": counted.error,
        "refused": entry.refusals.count,
        "refused_error": entry.refusals.error,
    })
}
