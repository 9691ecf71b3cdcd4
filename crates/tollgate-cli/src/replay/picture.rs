//! The picture of a comparison: requests over time, and what each rule set refuses of them.

use super::comparison::ReplayComparison;
use super::series::ReplayStep;
use crate::chart::{
    Chart, ChartAxis, ChartPanel, ChartSeries, ChartStrip, ChartUnit, SeriesData, SeriesTone,
};

/// Height of each strip, in lines of a terminal.
const STRIP_LINES: u16 = 5;

impl ReplayComparison {
    /// Draws the requests by their fate: under the rules now, and below it under the candidate.
    pub(crate) fn chart(&self) -> Chart {
        let changed = self.changed();
        let steps = self.series.steps();
        let length_us = (steps.len() as u64).max(1) * self.series.step_s() * 1_000_000;
        let top = steps.iter().map(|step| step.offered).max().unwrap_or(0);
        let panel = |title: &str, requests: u64, refused: u64, of: fn(&ReplayStep) -> u64| {
            let admitted = steps.iter().map(|step| step.offered - of(step)).collect();
            ChartPanel {
                title: title.into(),
                notes: vec![format!("{refused} of {requests} refused")],
                strips: vec![ChartStrip {
                    label: "requests".into(),
                    top,
                    unit: ChartUnit::Count,
                    guide: None,
                    lines: STRIP_LINES,
                    series: vec![
                        bars("admitted", SeriesTone::Admitted, admitted),
                        bars("refused", SeriesTone::Refused, steps.iter().map(of).collect()),
                    ],
                }],
            }
        };
        let (now, then) = (&self.now, &self.then);
        Chart {
            title: "The same requests under two rule sets".into(),
            description: format!(
                "{} of {} answers would change: {} requests are refused now, {} would be.",
                changed, now.requests, now.refused, then.refused
            ),
            axis: ChartAxis::time(length_us),
            panels: vec![
                panel("now", now.requests, now.refused, |step| step.now_refused),
                panel("then", then.requests, then.refused, |step| step.then_refused),
            ],
        }
    }
}

fn bars(name: &str, tone: SeriesTone, counts: Vec<u64>) -> ChartSeries {
    ChartSeries { name: name.into(), tone, data: SeriesData::Bars(counts) }
}
