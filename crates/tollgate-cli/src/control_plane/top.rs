//! `/api/top`: the callers with the most requests, or the most refusals.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::ControlPlane;
use crate::listeners::response_body::ResponseBody;
use crate::reply;
use crate::top::{TopEntry, TopOrder, WINDOW_US};

/// Default number of callers.
const CALLERS_DEFAULT: usize = 20;

/// Largest number of callers.
const CALLERS_MAX: usize = 100;

impl ControlPlane {
    pub(super) fn top(&self, query: Option<&str>) -> Response<ResponseBody> {
        let (by, most) = match read_query(query.unwrap_or_default()) {
            Ok(read) => read,
            Err(problem) => return reply::error(StatusCode::BAD_REQUEST, &problem),
        };
        let hottest = self.metrics.observer.hottest(most, by, self.gatekeeper.now());
        let document = json!({
            "by": order_name(by),
            "window_s": 2 * WINDOW_US / 1_000_000,
            "top": hottest.iter().map(|entry| entry_json(entry, by)).collect::<Vec<_>>(),
        });
        reply::json(StatusCode::OK, document.to_string())
    }
}

fn order_name(by: TopOrder) -> &'static str {
    match by {
        TopOrder::Requests => "requests",
        TopOrder::Refusals => "refusals",
    }
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

/// Reads the order and the number of callers.
fn read_query(query: &str) -> Result<(TopOrder, usize), String> {
    let (mut by, mut most) = (TopOrder::Requests, CALLERS_DEFAULT);
    for field in query.split('&').filter(|field| !field.is_empty()) {
        match field.split_once('=') {
            Some(("by", "requests")) => by = TopOrder::Requests,
            Some(("by", "refusals")) => by = TopOrder::Refusals,
            Some(("n", number)) => {
                let number =
                    number.parse().ok().filter(|number| (1..=CALLERS_MAX).contains(number));
                most = number.ok_or_else(|| format!("n is a number from 1 to {CALLERS_MAX}."))?;
            }
            _ => return Err("Write ?by=requests or ?by=refusals, and &n=20.".into()),
        }
    }
    Ok((by, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_say_by_what_and_how_many() {
        for (query, want) in [
            ("", Ok((TopOrder::Requests, CALLERS_DEFAULT))),
            ("by=refusals", Ok((TopOrder::Refusals, CALLERS_DEFAULT))),
            ("n=3&by=requests", Ok((TopOrder::Requests, 3))),
            ("n=0", Err("from 1")),
            ("n=101", Err("from 1")),
            ("n=x", Err("from 1")),
            ("by=luck", Err("?by=requests")),
            ("x", Err("?by=requests")),
        ] {
            match (read_query(query), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{query}"),
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
                (got, want) => panic!("{query}: {got:?}, not {want:?}"),
            }
        }
    }
}
