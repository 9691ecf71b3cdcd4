//! The table of the measurements of one part.

use tollgate_bench::rounds::{RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::goals::times;
use crate::part::{ListenerPart, name};

/// One row for each case; medians over the rounds.
pub(crate) fn speed(part: &ListenerPart, results: &RoundResults, style: TableStyle) -> BenchTable {
    let by_cpu = format!("times {} by CPU", part.floor);
    let columns = [
        "contestant",
        "asked by",
        "requests/s",
        "spread",
        "CPU us/request",
        "spread",
        "server busy",
        "p50 us",
        "p99 us",
        &by_cpu,
    ];
    let title = format!("{}: medians over the rounds, and half of min to max", part.title);
    let mut table = BenchTable::new(title, style, &columns);
    for case in &part.cases {
        let (own, floor) = (name(case.who, case.shape), name(part.floor, case.shape));
        let column = |of: fn(&ServerSample) -> f64| results.figure(&own, of);
        let columns = (column(|it| it.requests_per_s), column(|it| it.server_us));
        let (Some(rate), Some(cost)) = columns else { continue };
        let middle = |of| column(of).map_or("-".into(), |it| figures(it.median));
        let percent = |of| column(of).map_or("-".into(), |it| format!("{:.0} %", it.median));
        let ratio = results.compare(&own, &floor, |own, floor| floor.server_us / own.server_us);
        table.row([
            case.who.to_owned(),
            case.shape.to_string(),
            thousands(rate.median as u64),
            rate.spread(),
            figures(cost.median),
            cost.spread(),
            // Microseconds in a second, in percent.
            percent(|it| it.requests_per_s * it.server_us / 10_000.0),
            middle(|it| it.p50_us),
            middle(|it| it.p99_us),
            ratio.map_or("-".into(), times),
        ]);
    }
    table
}
