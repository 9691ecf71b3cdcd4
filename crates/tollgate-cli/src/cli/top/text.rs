//! One look at a server as plain text, for `--once`; the lines at the top of the screen are the same.

use super::snapshot::{ServerSnapshot, TrafficRates};
use super::table_rows::{RowOrder, caller_rows, rule_rows, store_lines};
use crate::cli::human_output::{printable, table};

/// Most callers and rules in each table.
const ROWS_MAX: usize = 10;

/// Most servers of upstreams in the line about them.
const PROBLEMS_MAX: usize = 3;

/// The state of the server in one line.
pub(super) fn status_line(snapshot: &ServerSnapshot) -> String {
    let status = &snapshot.status;
    let ready = if status.ready { "ready" } else { "NOT READY" };
    let store = if status.store.up { "up" } else { "DOWN" };
    format!(
        "{ready}, up {}, version {}; {} rule{} (version {}); store {} {store}, {} keys",
        uptime(status.uptime_s),
        printable(&status.version),
        status.rules.count,
        if status.rules.count == 1 { "" } else { "s" },
        status.rules.version,
        printable(&status.store.kind),
        status.store.keys,
    )
}

/// The servers of upstreams that are not available, in one line; `None` if all are.
pub(super) fn upstreams_line(snapshot: &ServerSnapshot) -> Option<String> {
    let upstreams = &snapshot.status.upstreams;
    let (shown, more) = upstreams.problems.split_at(upstreams.problems.len().min(PROBLEMS_MAX));
    let problems = shown.iter().map(|problem| {
        let reason = problem.reason.as_deref().map(|reason| format!(" ({})", printable(reason)));
        let words =
            [&problem.upstream, &problem.server, &problem.state].map(|text| printable(text));
        format!("{}{}", words.join(" "), reason.unwrap_or_default())
    });
    let mut line = problems.collect::<Vec<_>>().join("; ");
    if !more.is_empty() {
        line += &format!("; {} more", more.len());
    }
    match upstreams.without_server {
        _ if shown.is_empty() => None,
        0 => Some(format!("UPSTREAMS: {line}")),
        1 => Some(format!("1 UPSTREAM WITHOUT A SERVER: {line}")),
        count => Some(format!("{count} UPSTREAMS WITHOUT A SERVER: {line}")),
    }
}

/// The traffic of the last second in one line.
pub(super) fn rates_line(rates: &TrafficRates) -> String {
    let mut line = format!("allowed {}/s  refused {}/s", rates.allowed, rates.refused);
    let more = [
        ("shadow", rates.shadow),
        ("soft", rates.soft),
        ("delayed", rates.delayed),
        ("unavailable", rates.unavailable),
    ];
    for (name, count) in more {
        line += &format!("  {name} {count}/s");
    }
    if let Some((p50, p99)) = rates.latency_us {
        line += &format!("  decision p50 {} p99 {}", micros(p50), micros(p99));
    }
    line
}

fn micros(us: f64) -> String {
    match us {
        0.0..1_000.0 => format!("{us:.1} µs"),
        _ => format!("{:.1} ms", us / 1_000.0),
    }
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// The whole look.
pub(super) fn snapshot_text(snapshot: &ServerSnapshot) -> String {
    let mut text = format!("{}\n", status_line(snapshot));
    text.extend(upstreams_line(snapshot).map(|line| format!("{line}\n")));
    text += &format!("{}\n", rates_line(&snapshot.traffic.last_rates()));
    for (title, order) in [("requests", RowOrder::Requests), ("refusals", RowOrder::Refused)] {
        let rows: Vec<[String; 4]> = caller_rows(snapshot, order, "")
            .iter()
            .take(ROWS_MAX)
            .map(|row| {
                [
                    printable(&row.caller.key),
                    printable(&row.caller.rule),
                    row.requests.map(|count| count.to_string()).unwrap_or_default(),
                    row.refused.to_string(),
                ]
            })
            .collect();
        text += &match rows.is_empty() {
            true => format!("\nCallers with the most {title}: none\n"),
            false => {
                let head = ["key", "rule", "requests", "refused"];
                format!("\nCallers with the most {title}\n\n{}", table(head, &rows))
            }
        };
    }
    let rows: Vec<[String; 6]> = rule_rows(&snapshot.rules, None, RowOrder::Requests, "")
        .into_iter()
        .take(ROWS_MAX)
        .map(|row| {
            let [allowed, refused, shadow] =
                [row.allowed, row.refused, row.shadow].map(|count| count.to_string());
            [row.name, row.mode, allowed, refused, shadow, row.limits]
        })
        .collect();
    let head = ["rule", "mode", "allowed", "refused", "would refuse", "limits"];
    text += &format!("\nRules\n\n{}", table(head, &rows));
    text += "\nStore\n\n";
    for line in store_lines(snapshot) {
        text += &format!("  {line}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rows = [(5, "5s"), (65, "1m 5s"), (7_260, "2h 1m"), (200_000, "2d 7h")];
        for (seconds, want) in rows {
            assert_eq!(uptime(seconds), want);
        }
        let rates =
            TrafficRates { allowed: 7, latency_us: Some((1.25, 2_500.0)), ..Default::default() };
        assert_eq!(
            rates_line(&rates),
            "allowed 7/s  refused 0/s  shadow 0/s  soft 0/s  delayed 0/s  unavailable 0/s  \
             decision p50 1.2 µs p99 2.5 ms"
        );
    }

    #[test]
    fn a_look_at_a_server_without_traffic_has_no_gaps() {
        let text = snapshot_text(&ServerSnapshot::default());
        assert!(text.contains("Callers with the most refusals: none"), "{text}");
    }
}
