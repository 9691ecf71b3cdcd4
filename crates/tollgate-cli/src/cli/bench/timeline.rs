//! The chart of a load: answers and the longest latency over time, by the intended time of requests.

use std::time::Duration;

use super::record::{LoadRecord, LoadSlot, SLOTS};
use crate::chart::{
    Chart, ChartAxis, ChartPanel, ChartPoint, ChartSeries, ChartStrip, ChartUnit, SeriesData,
    SeriesTone, TerminalChart,
};

/// Width of the chart, in characters: that of a small terminal.
const WIDTH: usize = 78;

/// Draws the chart for standard output.
pub(super) fn timeline(record: &LoadRecord, duration: Duration) -> String {
    TerminalChart::for_stdout(WIDTH).draw(&chart(record, duration))
}

fn chart(record: &LoadRecord, duration: Duration) -> Chart {
    let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let bars = |name: &str, tone, count: fn(&LoadSlot) -> u64| ChartSeries {
        name: name.into(),
        tone,
        data: SeriesData::Bars(record.slots.iter().map(count).collect()),
    };
    let points = record.slots.iter().enumerate().map(|(index, slot)| {
        let middle = u128::from(duration_us) * (2 * index as u128 + 1) / (2 * SLOTS as u128);
        ChartPoint { x: u64::try_from(middle).unwrap_or(u64::MAX), y: slot.max_us }
    });
    let longest = ChartSeries {
        name: "longest latency".into(),
        tone: SeriesTone::Level,
        data: SeriesData::Line(points.collect()),
    };
    let strip = |label: &str, unit, lines, series| ChartStrip {
        label: label.into(),
        top: 0,
        unit,
        guide: None,
        lines,
        series,
    };
    let answers = vec![
        bars("allowed", SeriesTone::Admitted, |slot| slot.allowed),
        bars("refused", SeriesTone::Refused, |slot| slot.refused),
        bars("errors and not sent", SeriesTone::Offered, |slot| slot.errors + slot.not_sent),
    ];
    let strips = vec![
        strip("answers", ChartUnit::Count, 5, answers),
        strip("latency", ChartUnit::Micros, 5, vec![longest]),
    ];
    Chart {
        title: "Answers and latency by the time of the schedule".into(),
        description: String::new(),
        axis: ChartAxis::time(duration_us),
        panels: vec![ChartPanel { title: String::new(), notes: Vec::new(), strips }],
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{LoadOutcome, RequestTimes};
    use super::*;

    #[test]
    fn a_stall_is_seen_where_it_was() {
        let ms = Duration::from_millis;
        let mut record = LoadRecord::new(ms(6_000));
        for number in 0..600 {
            let intended = ms(number * 10);
            let is_stalled = (200..300).contains(&number);
            let answered = if is_stalled { ms(3_001) } else { intended + ms(1) };
            let times = RequestTimes { intended, ready: intended, sent: intended, answered };
            let refused = number >= 300;
            record.add(&times, if refused { LoadOutcome::Refused } else { LoadOutcome::Allowed });
        }
        let text = TerminalChart::new(WIDTH, false).draw(&chart(&record, ms(6_000)));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for part in ["allowed", "refused", "longest latency", "1 s", "6 s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let drawn = chart(&record, ms(6_000));
        let SeriesData::Line(points) = &drawn.panels[0].strips[1].series[0].data else { panic!() };
        assert_eq!(points[20], ChartPoint { x: 2_050_000, y: 1_001_000 });
    }
}
