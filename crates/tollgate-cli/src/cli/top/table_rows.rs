//! The tables of the views: filtered, sorted, and safe for a terminal.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::key_action::NamedCaller;
use super::snapshot::{RankedRuleReply, ServerSnapshot};
use crate::cli::human_output::printable;
use crate::cli::keys::top::TopReplyCaller;

/// Order of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RowOrder {
    #[default]
    Requests,
    Refused,
    Name,
}

impl RowOrder {
    /// The next order.
    pub(super) fn next(self) -> RowOrder {
        match self {
            RowOrder::Requests => RowOrder::Refused,
            RowOrder::Refused => RowOrder::Name,
            RowOrder::Name => RowOrder::Requests,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            RowOrder::Requests => "requests",
            RowOrder::Refused => "refused",
            RowOrder::Name => "name",
        }
    }
}

/// A caller in the table of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallerRow {
    pub(super) caller: NamedCaller,
    /// Requests; `None` if only the refusals are known.
    pub(super) requests: Option<u64>,
    pub(super) refused: u64,
}

/// A rule in the table of rules.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleRow {
    pub(super) name: String,
    pub(super) mode: String,
    pub(super) limits: String,
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) shadow: u64,
    /// Requests and refusals per second since the last look; `None` at the first.
    pub(super) rates: Option<(f64, f64)>,
}

/// Returns true if one of the texts contains the filter, in any case.
fn matches(filter: &str, texts: [&str; 2]) -> bool {
    let filter = filter.to_lowercase();
    texts.iter().any(|text| text.to_lowercase().contains(&filter))
}

/// The callers in this order: those with the most requests, or those with the most refusals.
pub(super) fn caller_rows(
    snapshot: &ServerSnapshot,
    order: RowOrder,
    filter: &str,
) -> Vec<CallerRow> {
    let requests: HashMap<(&str, &str), u64> =
        snapshot.by_requests.top.iter().map(|one| ((&*one.rule, &*one.key), one.count)).collect();
    let row = |one: &TopReplyCaller| CallerRow {
        caller: NamedCaller { rule: one.rule.clone(), key: one.key.clone() },
        requests: requests.get(&(&*one.rule, &*one.key)).copied(),
        refused: one.refused.unwrap_or(0),
    };
    let listed = match order {
        RowOrder::Requests | RowOrder::Name => &snapshot.by_requests.top,
        RowOrder::Refused => &snapshot.by_refusals.top,
    };
    let listed = listed.iter().filter(|one| matches(filter, [&one.rule, &one.key]));
    let mut rows: Vec<CallerRow> = listed.map(row).collect();
    match order {
        RowOrder::Requests => rows.sort_by_key(|row| Reverse(row.requests)),
        RowOrder::Refused => rows.sort_by_key(|row| Reverse(row.refused)),
        RowOrder::Name => rows
            .sort_by(|a, b| (&a.caller.key, &a.caller.rule).cmp(&(&b.caller.key, &b.caller.rule))),
    }
    rows
}

/// The rules in this order; rates need the look before and the seconds since then.
pub(super) fn rule_rows(
    rules: &[RankedRuleReply],
    before: Option<(&[RankedRuleReply], f64)>,
    order: RowOrder,
    filter: &str,
) -> Vec<RuleRow> {
    let before: Option<(HashMap<&str, &RankedRuleReply>, f64)> = before.map(|(rules, seconds)| {
        (rules.iter().map(|rule| (&*rule.name, rule)).collect(), seconds.max(0.001))
    });
    let listed = rules.iter().filter(|rule| matches(filter, [&rule.name, rule.effect()]));
    let mut rows: Vec<RuleRow> = listed
        .map(|rule| RuleRow {
            name: printable(&rule.name),
            mode: printable(rule.effect()),
            limits: printable(&rule.limits.join(", ")),
            allowed: rule.tally.allowed,
            refused: rule.tally.refused,
            shadow: rule.tally.shadow + rule.tally.soft,
            rates: before.as_ref().and_then(|(before, seconds)| {
                let before = before.get(&*rule.name)?;
                let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
                let refused = per_s(rule.tally.refused, before.tally.refused);
                Some((per_s(rule.tally.requests(), before.tally.requests()), refused))
            }),
        })
        .collect();
    match order {
        RowOrder::Requests => rows.sort_by_key(|row| Reverse(row.allowed + row.refused)),
        RowOrder::Refused => rows.sort_by_key(|row| Reverse(row.refused)),
        RowOrder::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    rows
}

/// The lines of the view of the store.
pub(super) fn store_lines(snapshot: &ServerSnapshot) -> Vec<String> {
    let status = &snapshot.status;
    let store = &status.store;
    let state = if store.up { "up" } else { "DOWN" };
    let mut lines = vec![
        format!("kind         {}, {state}", printable(&store.kind)),
        format!(
            "keys         {} in memory, of {} slots; {} evicted",
            store.keys, store.slots, store.evicted
        ),
        format!("blocked      {} callers", store.blocked),
        format!("waiting      {} requests", status.waiting),
    ];
    if let Some(instances) = store.instances {
        lines.push(format!("instances    {instances}"));
    }
    if let Some(degraded) = &store.degraded {
        let (local, open, closed) = (degraded.local, degraded.open, degraded.closed);
        lines.push(format!(
            "without it   {local} decided locally, {open} let pass, {closed} refused"
        ));
    }
    for one in &store.stores {
        let state = if one.up { "up" } else { "DOWN" };
        let breaker = if one.breaker_open { ", breaker open" } else { "" };
        let name = one.name.as_deref().map(printable).unwrap_or_default();
        let error = one.error.as_deref().map(|error| format!(": {}", printable(error)));
        let (url, error) = (printable(&one.url), error.unwrap_or_default());
        lines.push(format!("store        {name} {url} {state}{breaker}{error}"));
    }
    let connections = status.connections.iter();
    let connections = connections.map(|(name, open)| format!("{} {open}", printable(name)));
    lines.push(format!("connections  {}", connections.collect::<Vec<_>>().join(", ")));
    if status.rules.failed.is_some() {
        lines.push("rules        the last reload failed; older rules are in force".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> ServerSnapshot {
        let by = |text: &str| serde_json::from_str(text).unwrap();
        ServerSnapshot {
            by_requests: by(r#"{"top":[{"rule":"api","key":"user=b","count":9,"refused":1},
                    {"rule":"login","key":"user=a","count":5,"refused":4}]}"#),
            by_refusals: by(r#"{"top":[{"rule":"login","key":"user=a","count":4,"refused":4},
                    {"rule":"api","key":"ip=1","count":2,"refused":2}]}"#),
            ..ServerSnapshot::default()
        }
    }

    #[test]
    fn callers_are_sorted_and_filtered() {
        type ExpectedRow = (&'static str, Option<u64>, u64);
        let rows: [(RowOrder, &str, &[ExpectedRow]); 5] = [
            (RowOrder::Requests, "", &[("user=b", Some(9), 1), ("user=a", Some(5), 4)]),
            (RowOrder::Refused, "", &[("user=a", Some(5), 4), ("ip=1", None, 2)]),
            (RowOrder::Name, "", &[("user=a", Some(5), 4), ("user=b", Some(9), 1)]),
            (RowOrder::Requests, "LOGIN", &[("user=a", Some(5), 4)]),
            (RowOrder::Requests, "nobody", &[]),
        ];
        for (order, filter, want) in rows {
            let found = caller_rows(&snapshot(), order, filter);
            let found: Vec<_> =
                found.iter().map(|row| (&*row.caller.key, row.requests, row.refused)).collect();
            assert_eq!(found, want, "{order:?} {filter}");
        }
    }

    #[test]
    fn a_soft_rule_is_not_called_enforced() {
        let rows = [("enforce", false, "enforce"), ("enforce", true, "soft"), ("off", true, "off")];
        for (mode, soft, want) in rows {
            let rule = RankedRuleReply { mode: mode.into(), soft, ..RankedRuleReply::default() };
            let rows = rule_rows(std::slice::from_ref(&rule), None, RowOrder::Name, "");
            assert_eq!(rows[0].mode, want, "{mode} {soft}");
            assert_eq!(rule_rows(&[rule], None, RowOrder::Name, want).len(), 1);
        }
    }

    #[test]
    fn rules_have_rates_since_the_last_look() {
        let rules = |allowed: u64, refused: u64| -> Vec<RankedRuleReply> {
            let text = format!(
                r#"[{{"name":"b\u001b","mode":"enforce","limits":["1/s","2/s"],"tally":
                    {{"allowed":{allowed},"refused":{refused},"shadow":1,"soft":2}}}}]"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let (before, now) = (rules(10, 1), rules(30, 5));
        let rows = rule_rows(&now, Some((&before, 2.0)), RowOrder::Name, "");
        let row = &rows[0];
        assert_eq!((&*row.name, &*row.limits, row.shadow), ("b\\u{1b}", "1/s, 2/s", 3));
        assert_eq!(row.rates, Some((12.0, 2.0)));
        // After a restart the counts begin again.
        let rows = rule_rows(&before, Some((&now, 1.0)), RowOrder::Name, "");
        assert_eq!(rows[0].rates, Some((0.0, 0.0)));
        assert_eq!(rule_rows(&now, None, RowOrder::Requests, "")[0].rates, None);
    }
}
