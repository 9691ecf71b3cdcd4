//! Overload: three times the requests that the gateway can serve, then half of them.
//!
//! Goodput is the number of responses 200 in a second. The peak is the goodput of a closed load just before.

use std::cell::RefCell;
use std::time::Duration;

use tollgate_bench::generator::http::{ResponseProgress, progress};
use tollgate_bench::generator::paced::{PacedClient, measure_paced};
use tollgate_bench::generator::requests::RequestCursor;
use tollgate_bench::generator::{ClientContext, LoadClient, LoadSpec};
use tollgate_bench::rounds::{SampleTiming, ServerSample};
use tollgate_bench::stopwatch::median;
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::contestants::GatewayContestant;
use crate::measure::GatewayLoad;

/// Connections of the overload. A client sends one request at a time, so it takes many to offer three times the peak.
const OVERLOAD_CONNECTIONS: usize = 1_024;
/// Least part of its core that the proxy must use at its peak.
const PEAK_BUSY_LEAST: f64 = 0.8;
/// Connections of the loads before and after.
const USUAL_CONNECTIONS: usize = 64;
/// Offered requests as a multiple of the peak.
const OVERLOAD_FACTOR: f64 = 3.0;
/// Duration of the load after the overload.
const RECOVERY_WATCHED: Duration = Duration::from_secs(10);
/// Least goodput as a part of the peak, for the median second of the overload.
const GOODPUT_LEAST: f64 = 0.9;
/// Most seconds until everything is served again.
const RECOVERY_S_MAX: usize = 5;
/// Part of the offered requests that must be served in a second for it to count as recovered.
const RECOVERED_PART: f64 = 0.95;

/// Responses in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SecondCounts {
    /// Responses 200.
    good: u64,
    /// Responses 503.
    shed: u64,
}

/// Counts of an open load by second. Bound: one entry for each second of the load.
type CountsBySecond = RefCell<Vec<SecondCounts>>;

/// A client that accepts 200 and 503.
struct OverloadClient<'a> {
    requests: RequestCursor<'a>,
    counts: &'a CountsBySecond,
    asked_at: Duration,
    is_idle: bool,
}

impl LoadClient for OverloadClient<'_> {
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String> {
        turn.out.extend_from_slice(self.requests.next_request());
        self.asked_at = turn.now;
        self.is_idle = false;
        Ok(())
    }

    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String> {
        let ResponseProgress::Complete { status, .. } = progress(received)? else { return Ok(0) };
        let mut counts = self.counts.borrow_mut();
        let second = turn.now.as_secs() as usize;
        if counts.len() <= second {
            counts.resize(second + 1, SecondCounts::default());
        }
        match status {
            200 => counts[second].good += 1,
            503 => counts[second].shed += 1,
            other => return Err(format!("the status is {other}")),
        }
        turn.count_answers(1, self.asked_at);
        self.is_idle = true;
        Ok(received.len())
    }
}

impl PacedClient for OverloadClient<'_> {
    fn is_idle(&self) -> bool {
        self.is_idle
    }
}

/// Measures one contestant and prints the table. Returns true if goodput and recovery reach their goals.
pub(crate) fn run(
    load: &GatewayLoad<'_>,
    contestant: &GatewayContestant,
    (duration, style): (Duration, TableStyle),
) -> Result<bool, String> {
    let peak = peak_of(load, contestant)?;
    let overloaded =
        open_load(load, contestant, (OVERLOAD_CONNECTIONS, peak * OVERLOAD_FACTOR, duration))?;
    let half = peak / 2.0;
    let after = open_load(load, contestant, (USUAL_CONNECTIONS, half, RECOVERY_WATCHED))?;
    let recovery_s = recovered_after(&after, half);
    // The first and the last second are not whole.
    let whole = overloaded.get(1..overloaded.len().saturating_sub(1)).unwrap_or_default();
    let goods: Vec<f64> = whole.iter().map(|it| it.good as f64).collect();
    let part = median(&goods) / peak;
    println!("{}", table(contestant.name, (peak, whole), style));
    println!(
        "goodput, median of the seconds: {} of the peak (goal: {GOODPUT_LEAST})",
        figures(part)
    );
    match recovery_s {
        Some(seconds) => println!("recovered within {seconds} s (goal: {RECOVERY_S_MAX} s)"),
        None => println!("not recovered within {} s", RECOVERY_WATCHED.as_secs()),
    }
    Ok(part >= GOODPUT_LEAST && recovery_s.is_some_and(|it| it <= RECOVERY_S_MAX))
}

/// Requests per second of a closed load. An error if the proxy had only a part of its core: the rate of a busy machine is
/// not the peak, and every goodput would look good beside it.
fn peak_of(load: &GatewayLoad<'_>, contestant: &GatewayContestant) -> Result<f64, String> {
    let results = load.full_speed(std::slice::from_ref(contestant), USUAL_CONNECTIONS)?;
    let figure = |of: fn(&ServerSample) -> f64| results.figure(contestant.name, of);
    let (rate, busy) =
        (figure(|it| it.requests_per_s), figure(|it| it.requests_per_s * it.server_us / 1e6));
    let (rate, busy) = (rate.ok_or("no sample")?.median, busy.ok_or("no sample")?.median);
    if busy < PEAK_BUSY_LEAST {
        let percent = busy * 100.0;
        return Err(format!(
            "the proxy had {percent:.0} % of its core at its peak: this needs a quiet machine"
        ));
    }
    Ok(rate)
}

/// Sends `requests_per_s` for a time and returns the responses of each second.
fn open_load(
    load: &GatewayLoad<'_>,
    contestant: &GatewayContestant,
    (connections, requests_per_s, duration): (usize, f64, Duration),
) -> Result<Vec<SecondCounts>, String> {
    let counts = CountsBySecond::default();
    let spec = LoadSpec {
        address: contestant.address.into(),
        server: contestant.process.id(),
        connections,
        span: SampleTiming { warm_up: Duration::ZERO, duration },
    };
    let client = |index| OverloadClient {
        requests: RequestCursor::new(load.requests, index),
        counts: &counts,
        asked_at: Duration::ZERO,
        is_idle: true,
    };
    measure_paced(&spec, requests_per_s, client, || load.upstream.borrow_mut().serve())?;
    Ok(counts.into_inner())
}

/// Seconds until a whole second served what was offered and shed nothing.
fn recovered_after(seconds: &[SecondCounts], offered: f64) -> Option<usize> {
    let is_recovered =
        |it: &SecondCounts| it.shed == 0 && it.good as f64 >= offered * RECOVERED_PART;
    seconds.iter().position(is_recovered).map(|index| index + 1)
}

fn table(name: &str, (peak, seconds): (f64, &[SecondCounts]), style: TableStyle) -> BenchTable {
    let title = format!(
        "{name}: {} requests/s offered, the peak is {}",
        thousands((peak * OVERLOAD_FACTOR) as u64),
        thousands(peak as u64)
    );
    let mut table = BenchTable::new(title, style, &["second", "200", "503"]);
    for (second, counts) in seconds.iter().enumerate() {
        table.row([(second + 1).to_string(), thousands(counts.good), thousands(counts.shed)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_recovered_when_all_is_served_and_nothing_shed() {
        let counts = |good, shed| SecondCounts { good, shed };
        let rows = [
            (vec![counts(95, 0)], Some(1)),
            (vec![counts(94, 0), counts(100, 1), counts(100, 0)], Some(3)),
            (vec![counts(94, 0)], None),
        ];
        for (seconds, expected) in rows {
            assert_eq!(recovered_after(&seconds, 100.0), expected, "{seconds:?}");
        }
    }
}
