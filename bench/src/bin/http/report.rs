//! The table of measurements.

use tollgate_bench::rounds::{Figure, RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::contestants::{HYPER, HYPER_BODIES, HYPER_FIELDS, HttpContestant};

/// One row for each contestant; medians over the rounds.
pub(crate) fn speed(
    results: &RoundResults,
    contestants: &[HttpContestant],
    style: TableStyle,
) -> BenchTable {
    let columns = [
        "contestant",
        "requests/s",
        "spread",
        "decisions/s",
        "CPU us/request",
        "spread",
        "server busy",
        "p50 us",
        "p99 us",
    ];
    let mut table =
        BenchTable::new("Medians over the rounds, and half of min to max", style, &columns);
    for ((name, samples), contestant) in results.0.iter().zip(contestants) {
        let column = |of: fn(&ServerSample) -> f64| Figure::from_values(samples.iter().map(of));
        let columns = (column(|it| it.requests_per_s), column(|it| it.server_us));
        let (Some(rate), Some(cost)) = columns else { continue };
        let middle = |of| column(of).map_or("-".into(), |it: Figure| figures(it.median));
        let percent = |of| column(of).map_or("-".into(), |it| format!("{:.0} %", it.median));
        table.row([
            name.clone(),
            thousands(rate.median as u64),
            rate.spread(),
            decisions(contestant, rate),
            figures(cost.median),
            cost.spread(),
            // Microseconds in a second, in percent.
            percent(|it| it.requests_per_s * it.server_us / 10_000.0),
            middle(|it| it.p50_us),
            middle(|it| it.p99_us),
        ]);
    }
    table
}

/// Decisions per second; none for bare hyper, which decides nothing.
fn decisions(contestant: &HttpContestant, rate: Figure) -> String {
    match contestant.name {
        HYPER | HYPER_FIELDS | HYPER_BODIES => "-".into(),
        _ => thousands((rate.median * contestant.requests.decisions as f64) as u64),
    }
}
