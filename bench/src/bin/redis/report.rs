//! The tables of measurements.

use tollgate_bench::rounds::Figure;
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::load::{RedisLoad, RedisSample};
use crate::measure::RedisCaseSamples;

/// One row for each case: medians over the rounds, and the ratio to its peer.
pub(crate) fn table(title: &str, measured: &[RedisCaseSamples], style: TableStyle) -> BenchTable {
    let columns = [
        "who",
        "asked by",
        "decisions/s",
        "spread",
        "best",
        "times naive",
        "by Redis CPU",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "redis us",
        "in script",
        "client us",
        "calls",
        "allowed",
        "failed",
    ];
    let mut table = BenchTable::new(title, style, &columns);
    for one in measured {
        let Some(rate) = one.figure(|it| it.per_s) else { continue };
        let peer = measured.iter().find(|it| it.name == one.peer && it.load == one.load);
        let times = peer.and_then(|peer| one.compare(peer, |a, b| a.per_s / b.per_s));
        let by_cpu = peer.and_then(|peer| one.compare(peer, |a, b| b.redis_us / a.redis_us));
        // The ratio is infinite if Redis had nothing to do.
        let shown = |it: Option<Figure>| {
            it.filter(|it| it.max.is_finite()).map_or("-".into(), |it| {
                format!("{} ({}–{})", figures(it.median), figures(it.min), figures(it.max))
            })
        };
        let middle = |of: fn(&RedisSample) -> f64| one.figure(of).map_or(0.0, |it| it.median);
        table.row([
            one.name.clone(),
            asked_by(one.load),
            thousands(rate.median as u64),
            rate.spread(),
            thousands(rate.max as u64),
            shown(times),
            shown(by_cpu),
            figures(middle(|it| it.p50_us)),
            figures(middle(|it| it.p99_us)),
            figures(middle(|it| it.p999_us)),
            figures(middle(|it| it.redis_us)),
            figures(middle(|it| it.script_us)),
            figures(middle(|it| it.client_us)),
            format!("{:.4}", middle(|it| it.calls)),
            format!("{:.0} %", middle(|it| it.allowed) * 100.0),
            format!("{:.2} %", middle(|it| it.failed) * 100.0),
        ]);
    }
    table
}

/// Formats a load as `64 callers` or `60,000/s`.
pub(crate) fn asked_by(load: RedisLoad) -> String {
    match load {
        RedisLoad::Closed { callers } => format!("{callers} callers"),
        RedisLoad::Open { per_s } => format!("{}/s", thousands(per_s as u64)),
    }
}
