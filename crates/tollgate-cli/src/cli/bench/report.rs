//! The result of a load, for people and as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::record::{LoadRecord, LoadSlot, SLOTS};
use super::target::LoadTarget;
use crate::cli::human_output::{printable, table};

/// Percentiles that are shown: the name in JSON, the name for people, and the part of all answers.
const PERCENTILES: [(&str, &str, f64); 7] = [
    ("p50", "50 %", 0.5),
    ("p75", "75 %", 0.75),
    ("p90", "90 %", 0.9),
    ("p95", "95 %", 0.95),
    ("p99", "99 %", 0.99),
    ("p99_9", "99.9 %", 0.999),
    ("p99_99", "99.99 %", 0.9999),
];

/// The generator was late if one request in a hundred left this much after it could have.
const LATE_P99_MAX_US: u64 = 2_000;

/// The generator had no time left if one of its threads ran for this part of the time.
const BUSY_PERCENT_MAX: u64 = 95;

/// Everything that a report says.
#[derive(Debug)]
pub(super) struct LoadReport<'a> {
    pub(super) target: &'a LoadTarget,
    pub(super) rate_per_s: u64,
    pub(super) duration: Duration,
    pub(super) connections: u16,
    /// Number of different callers.
    pub(super) keys: u64,
    pub(super) record: &'a LoadRecord,
}

impl LoadReport<'_> {
    /// The most frequent error.
    pub(super) fn main_error(&self) -> String {
        let most = self.record.errors.iter().max_by_key(|(_, count)| **count);
        match most {
            Some((error, _)) => printable(error),
            None if self.record.timed_out > 0 => "no answer in time".into(),
            None => "nothing was sent".into(),
        }
    }

    /// Answers per second, from the first intended time to the last answer.
    fn answers_per_s(&self) -> f64 {
        let seconds = self.record.last_answer.max(self.duration).as_secs_f64();
        self.record.answered() as f64 / seconds
    }

    /// The reason why the figures may be those of the generator and not of the server, if there is one.
    fn generator_problem(&self) -> Option<String> {
        let late_us = self.record.lateness.value_at_quantile(0.99);
        let busy = self.record.busy_percent;
        if busy >= BUSY_PERCENT_MAX {
            return Some(format!(
                "The generator could not keep up: a thread of it ran {busy} % of the time. Latencies \
                 include its own delay; lower --rate, or run it on a machine of its own."
            ));
        }
        (late_us > LATE_P99_MAX_US).then(|| {
            format!(
                "The generator could not keep up: one request in a hundred left {} or more after its \
                 time although a connection was free. Latencies include this delay; lower --rate, or \
                 run it on a machine of its own.",
                millis(late_us)
            )
        })
    }

    pub(super) fn human_text(&self) -> String {
        let record = self.record;
        let mut text = format!(
            "{} requests per second to {} for {}, {} connections, {} key{}\n\n",
            self.rate_per_s,
            self.target,
            seconds(self.duration),
            self.connections,
            self.keys,
            if self.keys == 1 { "" } else { "s" },
        );
        text += &table(
            ["answers", "per second", "allowed", "refused", "errors", "timed out", "not sent"],
            &[[
                record.answered().to_string(),
                format!("{:.1}", self.answers_per_s()),
                record.allowed.to_string(),
                record.refused.to_string(),
                record.failed.to_string(),
                record.timed_out.to_string(),
                record.not_sent.to_string(),
            ]],
        );
        for (error, count) in &record.errors {
            text += &format!("  error, {count} times: {}\n", printable(error));
        }
        text += "\nLatency from the time of the schedule, and from the moment of sending:\n\n";
        text += &self.latency_table();
        if let Some(problem) = self.generator_problem() {
            text += &format!("\n{problem}\n");
        }
        text
    }

    fn latency_table(&self) -> String {
        let (corrected, service) = (&self.record.corrected, &self.record.service);
        let mut rows: Vec<[String; 3]> = PERCENTILES
            .iter()
            .map(|(_, name, part)| {
                let at = |histogram: &Histogram<u64>| millis(histogram.value_at_quantile(*part));
                [(*name).into(), at(corrected), at(service)]
            })
            .collect();
        rows.push(["longest".into(), millis(corrected.max()), millis(service.max())]);
        let mean = |histogram: &Histogram<u64>| millis(histogram.mean() as u64);
        rows.push(["mean".into(), mean(corrected), mean(service)]);
        table(["", "schedule", "sending"], &rows)
    }

    pub(super) fn json_text(&self) -> String {
        let record = self.record;
        let slot_ms = self.duration.as_secs_f64() * 1_000.0 / SLOTS as f64;
        let column =
            |field: fn(&LoadSlot) -> u64| record.slots.iter().map(field).collect::<Vec<u64>>();
        let errors = record.errors.iter();
        let errors = errors.map(|(error, count)| json!({ "error": error, "count": count }));
        let document = json!({
            "target": self.target.to_string(),
            "protocol": self.target.protocol.name(),
            "rate_per_s": self.rate_per_s,
            "duration_s": self.duration.as_secs_f64(),
            "connections": self.connections,
            "keys": self.keys,
            "answered": record.answered(),
            "answered_per_s": self.answers_per_s(),
            "allowed": record.allowed,
            "refused": record.refused,
            "failed": record.failed,
            "timed_out": record.timed_out,
            "not_sent": record.not_sent,
            "errors": errors.collect::<Vec<Value>>(),
            "corrected_us": percentiles_json(&record.corrected),
            "service_us": percentiles_json(&record.service),
            "generator": {
                "kept_up": self.generator_problem().is_none(),
                "late_p99_us": record.lateness.value_at_quantile(0.99),
                "late_max_us": record.lateness.max(),
                "busy_percent": record.busy_percent,
            },
            "over_time": {
                "step_ms": slot_ms,
                "allowed": column(|slot| slot.allowed),
                "refused": column(|slot| slot.refused),
                "errors": column(|slot| slot.errors),
                "not_sent": column(|slot| slot.not_sent),
                "max_us": column(|slot| slot.max_us),
            },
        });
        format!("{document}\n")
    }
}

fn percentiles_json(histogram: &Histogram<u64>) -> Value {
    let mut values: Map<String, Value> = PERCENTILES
        .iter()
        .map(|(name, _, part)| ((*name).into(), histogram.value_at_quantile(*part).into()))
        .collect();
    values.insert("max".into(), histogram.max().into());
    values.insert("mean".into(), histogram.mean().into());
    Value::Object(values)
}

/// Microseconds as milliseconds with as many digits as matter.
fn millis(us: u64) -> String {
    match us {
        0..10_000 => format!("{:.3} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::record::{LoadOutcome, RequestTimes};
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn report<'a>(target: &'a LoadTarget, record: &'a LoadRecord) -> LoadReport<'a> {
        let duration = Duration::from_secs(1);
        LoadReport { target, rate_per_s: 100, duration, connections: 2, keys: 1, record }
    }

    #[test]
    fn both_latencies_stand_beside_each_other() {
        let target = "http://127.0.0.1:8080".parse().unwrap();
        let mut record = LoadRecord::new(Duration::from_secs(1));
        for number in 0..100 {
            let sent = ms(number * 10);
            let intended = if number == 50 { ms(0) } else { sent };
            let times = RequestTimes { intended, ready: sent, sent, answered: sent + ms(2) };
            record.add(&times, LoadOutcome::Allowed);
        }
        let failed = RequestTimes { intended: ms(0), ready: ms(0), sent: ms(0), answered: ms(0) };
        record.add(&failed, LoadOutcome::Failed("status 500: \u{1b}[2J".into()));
        let text = report(&target, &record).human_text();
        assert_eq!(
            text,
            "100 requests per second to http://127.0.0.1:8080 for 1 s, 2 connections, 1 key\n\n\
             \x20 answers  per second  allowed  refused  errors  timed out  not sent\n\
             \x20 100      100.0       100      0        1       0          0\n\
             \x20 error, 1 times: status 500: \\u{1b}[2J\n\n\
             Latency from the time of the schedule, and from the moment of sending:\n\n\
             \x20          schedule  sending\n\
             \x20 50 %     2.000 ms  2.000 ms\n\
             \x20 75 %     2.000 ms  2.000 ms\n\
             \x20 90 %     2.000 ms  2.000 ms\n\
             \x20 95 %     2.000 ms  2.000 ms\n\
             \x20 99 %     2.000 ms  2.000 ms\n\
             \x20 99.9 %   502.0 ms  2.000 ms\n\
             \x20 99.99 %  502.0 ms  2.000 ms\n\
             \x20 longest  502.0 ms  2.000 ms\n\
             \x20 mean     6.998 ms  2.000 ms\n"
        );
        let json: Value = serde_json::from_str(&report(&target, &record).json_text()).unwrap();
        assert_eq!((&json["answered"], &json["failed"]), (&json!(100), &json!(1)));
        assert_eq!(json["generator"]["kept_up"], true);
        assert_eq!(json["over_time"]["allowed"].as_array().unwrap().len(), SLOTS);
    }

    #[test]
    fn a_generator_that_is_late_says_so() {
        let target = "http://127.0.0.1:8080".parse().unwrap();
        let mut record = LoadRecord::new(ms(1_000));
        let times = RequestTimes { intended: ms(0), ready: ms(0), sent: ms(5), answered: ms(6) };
        record.add(&times, LoadOutcome::Refused);
        let text = report(&target, &record).human_text();
        assert!(text.contains("The generator could not keep up: one request"), "{text}");
        let mut record = LoadRecord::new(ms(1_000));
        assert!(report(&target, &record).generator_problem().is_none());
        record.busy_percent = 99;
        let text = report(&target, &record).human_text();
        assert!(text.contains("a thread of it ran 99 % of the time"), "{text}");
    }
}
