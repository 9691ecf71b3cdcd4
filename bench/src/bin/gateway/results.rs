//! The tables of measurements.

use tollgate_bench::rounds::{Figure, RoundResults, ServerSample};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::measure::{AddedLatency, IDLE_CONNECTIONS};

/// Everything measured.
#[derive(Debug, Default)]
pub(crate) struct GatewayResults {
    /// Results at full speed by the number of connections. Bound: two.
    pub(crate) full_speed: Vec<(usize, RoundResults)>,
    /// Latency at half load by contestant.
    pub(crate) added: Vec<(&'static str, AddedLatency)>,
    /// Bytes per idle connection by contestant.
    pub(crate) idle_bytes: Vec<(&'static str, f64)>,
}

impl GatewayResults {
    pub(crate) fn tables(&self, style: TableStyle) -> Vec<BenchTable> {
        let full_speed =
            self.full_speed.iter().map(|(connections, it)| speed(*connections, it, style));
        full_speed.chain([self.latency(style), self.memory(style)]).collect()
    }

    fn latency(&self, style: TableStyle) -> BenchTable {
        let title = "Latency added at half load (open load, counted from the schedule)";
        let columns = ["contestant", "requests/s", "p50 us", "p99 us", "p99 min to max"];
        let mut table = BenchTable::new(title, style, &columns);
        for (name, added) in &self.added {
            let median = |it: Option<Figure>| it.map_or("too busy".into(), |it| signed(it.median));
            let range = |it: Figure| format!("{} to {}", signed(it.min), signed(it.max));
            table.row([
                (*name).to_owned(),
                thousands(added.requests_per_s as u64),
                median(added.p50_us),
                median(added.p99_us),
                added.p99_us.map_or("-".into(), range),
            ]);
        }
        table
    }

    fn memory(&self, style: TableStyle) -> BenchTable {
        let title =
            format!("Memory of {IDLE_CONNECTIONS} idle connections, after one request each");
        let mut table = BenchTable::new(title, style, &["contestant", "KiB/connection"]);
        for (name, bytes) in &self.idle_bytes {
            table.row([(*name).to_owned(), figures(bytes / 1_024.0)]);
        }
        table
    }
}

/// One row for each contestant; medians over the rounds.
fn speed(connections: usize, results: &RoundResults, style: TableStyle) -> BenchTable {
    let columns = [
        "contestant",
        "requests/s",
        "requests/s per core",
        "CPU us/request",
        "spread",
        "proxy busy",
        "p50 us",
        "p99 us",
    ];
    let title = format!("{connections} connections: medians over the rounds");
    let mut table = BenchTable::new(title, style, &columns);
    for (name, samples) in &results.0 {
        let column = |of: fn(&ServerSample) -> f64| Figure::from_values(samples.iter().map(of));
        let median = |of| column(of).map_or(0.0, |it| it.median);
        let Some(cost) = column(|it| it.server_us) else { continue };
        table.row([
            name.clone(),
            thousands(median(|it| it.requests_per_s) as u64),
            thousands((1_000_000.0 / cost.median) as u64),
            figures(cost.median),
            cost.spread(),
            // Microseconds in a second, in percent.
            format!("{:.0} %", median(|it| it.requests_per_s * it.server_us / 10_000.0)),
            figures(median(|it| it.p50_us)),
            figures(median(|it| it.p99_us)),
        ]);
    }
    table
}

/// Formats a number that may be negative: noise can make a difference look like a gain.
pub(crate) fn signed(value: f64) -> String {
    if value < 0.0 { format!("-{}", figures(-value)) } else { figures(value) }
}
