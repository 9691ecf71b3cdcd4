//! The picture of a trace under rules: a panel for each rule and key, with its requests and the units in use.

use std::path::Path;

use tollgate::{Micros, Wait};
use tollgate_rules::{Answer, JudgedLimit};

use super::algorithms::{self, RequestFate, TrafficSpan, TrafficView};
use super::trace::TraceReader;
use super::trace_line::TraceLine;
use super::with_rules::{DecidedKey, SimRules};
use super::{Args, CommandFailure, OutputForm, Report, answer};
use crate::chart::{
    Chart, ChartGuide, ChartPanel, ChartPoint, ChartSeries, ChartStrip, ChartUnit, SeriesData,
    SeriesTone,
};
use crate::replay::tally::TraceTally;

/// Most keys that are followed.
const KEYS_MAX: usize = 256;

/// Most panels: the keys with the most requests.
const PANELS_MAX: usize = 4;

/// Parts of the horizontal axis at which limits are read.
const SAMPLES: u64 = 600;

/// Decides the requests of a trace and draws them.
pub(super) fn run(
    trace: &mut TraceReader,
    rules: &SimRules,
    args: &Args,
) -> Result<(), CommandFailure> {
    let requests = read(trace)?;
    let instants = || requests.iter().map(|(at, _)| at.as_u64());
    let (Some(first), Some(last)) = (instants().min(), instants().max()) else {
        return Err(CommandFailure::Input(algorithms::no_requests()));
    };
    let span = TrafficSpan::around(first, last);
    let mut course = RulesCourse::new(rules, span);
    let output = args.output.unwrap_or(OutputForm::Jsonl);
    let (mut tally, mut lines) = (TraceTally::default(), Vec::new());
    let mut offered = Vec::new();
    for (at, line) in &requests {
        let (answer, cost) = course.decide(*at, line)?;
        offered.push((at.as_u64(), cost));
        match output {
            OutputForm::Jsonl => answer::print_after(&answer, (*at, Wait::ZERO), &mut lines)
                .map_err(CommandFailure::from_output)?,
            OutputForm::Table | OutputForm::Chart => tally.add(&answer),
        }
    }
    course.sample_levels(span.to_us)?;
    course.read_levels(span.to_us)?;
    let text = if output == OutputForm::Table { tally.to_string().into_bytes() } else { lines };
    algorithms::print(&text)?;
    algorithms::show(&course.chart(&offered, args), output, args.svg.as_deref())
}

/// Reads the whole trace.
fn read(trace: &mut TraceReader) -> Result<Vec<(Micros, TraceLine<'static>)>, CommandFailure> {
    let mut requests = Vec::new();
    while trace.advance()? {
        if requests.len() == algorithms::REQUESTS_MAX {
            return Err(CommandFailure::Input(algorithms::too_many_requests()));
        }
        let request = trace.request()?;
        let line = TraceLine::read(&request)?;
        if line.has_descriptor() {
            let report = Report::new(format!("{}: a descriptor is not drawn", request.line));
            return Err(CommandFailure::Input(report.hint("write facts, or leave out --svg")));
        }
        requests.push((request.at, line.into_owned()));
    }
    Ok(requests)
}

/// The course of a trace through rules.
struct RulesCourse<'a> {
    rules: &'a SimRules,
    span: TrafficSpan,
    /// Bound: [`KEYS_MAX`].
    panels: Vec<RuleKeyPanel>,
    /// Requests of keys that are not followed.
    others: u64,
    /// The instant at which all levels are read next.
    next_sample: u64,
}

/// One key under one rule.
struct RuleKeyPanel {
    decided: DecidedKey,
    /// A request of this key, to look at its limits with.
    facts: TraceLine<'static>,
    /// Instant, units and fate of each request.
    requests: Vec<(u64, u64, RequestFate)>,
    served: Vec<(u64, u64)>,
    longest_delay_us: u64,
    levels: Vec<DrawnLimit>,
}

/// The units in use under one limit.
struct DrawnLimit {
    limit: String,
    capacity: u64,
    points: Vec<ChartPoint>,
}

impl<'a> RulesCourse<'a> {
    fn new(rules: &'a SimRules, span: TrafficSpan) -> RulesCourse<'a> {
        RulesCourse { rules, span, panels: Vec::new(), others: 0, next_sample: span.from_us }
    }

    /// Decides a request; returns the answer and the units that it costs.
    fn decide(
        &mut self,
        at: Micros,
        line: &TraceLine<'static>,
    ) -> Result<(Answer, u64), CommandFailure> {
        self.sample_levels(at.as_u64())?;
        let before = line.peek(self.rules, at)?;
        let answer = line.decide(self.rules, at)?;
        let decided = self.rules.take_decided();
        let after = line.peek(self.rules, at)?;
        let x = self.span.place(at.as_u64());
        let delay_us = answer.delay().as_micros().unwrap_or(0);
        let fate = RequestFate::new(answer.allowed(), delay_us);
        let mut units = line.cost().unwrap_or(1);
        for key in decided {
            units = units.max(key.cost);
            let cost = key.cost;
            let Some(panel) = self.panel(key, line, &before) else { continue };
            panel.add_levels(&before, x);
            panel.add_levels(&after, x);
            panel.requests.push((at.as_u64(), cost, fate));
            if fate != RequestFate::Refused {
                panel.served.push((at.as_u64().saturating_add(delay_us), cost));
                panel.longest_delay_us = panel.longest_delay_us.max(delay_us);
            }
        }
        Ok((answer, units))
    }

    fn panel(
        &mut self,
        key: DecidedKey,
        line: &TraceLine<'static>,
        before: &Answer,
    ) -> Option<&mut RuleKeyPanel> {
        let is_same =
            |panel: &RuleKeyPanel| panel.decided.rule == key.rule && panel.decided.key == key.key;
        if let Some(index) = self.panels.iter().position(is_same) {
            return self.panels.get_mut(index);
        }
        if self.panels.len() == KEYS_MAX {
            self.others += 1;
            return None;
        }
        let start = ChartPoint { x: self.span.place(self.span.from_us), y: 0 };
        let of_rule = before.limits().filter(|judged| *judged.rule == *key.rule);
        // Nobody has used this key before, so what remains is the capacity.
        let levels = of_rule.map(|judged| DrawnLimit {
            limit: judged.limit.into(),
            capacity: judged.outcome.remaining,
            points: vec![start],
        });
        let levels = levels.collect();
        self.panels.push(RuleKeyPanel {
            decided: key,
            facts: line.clone(),
            requests: Vec::new(),
            served: Vec::new(),
            longest_delay_us: 0,
            levels,
        });
        self.panels.last_mut()
    }

    /// Reads all levels at each part of the axis before this instant.
    fn sample_levels(&mut self, until_us: u64) -> Result<(), CommandFailure> {
        while self.next_sample < until_us {
            self.read_levels(self.next_sample)?;
            self.next_sample += (self.span.length_us() / SAMPLES).max(1);
        }
        Ok(())
    }

    fn read_levels(&mut self, at_us: u64) -> Result<(), CommandFailure> {
        let x = self.span.place(at_us);
        for panel in &mut self.panels {
            let answer = panel.facts.peek(self.rules, Micros::new(at_us))?;
            panel.add_levels(&answer, x);
        }
        Ok(())
    }

    /// The keys with the most requests, in the order of their first request, and the number of requests of others.
    fn busiest(&self) -> (Vec<&RuleKeyPanel>, u64) {
        let mut order: Vec<usize> = (0..self.panels.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.panels[index].requests.len()));
        let others = order.split_off(order.len().min(PANELS_MAX));
        let others = others.into_iter().map(|index| self.panels[index].requests.len() as u64);
        order.sort_unstable();
        (
            order.into_iter().map(|index| &self.panels[index]).collect(),
            self.others + others.sum::<u64>(),
        )
    }

    fn chart(&self, offered: &[(u64, u64)], args: &Args) -> Chart {
        let requests = || self.panels.iter().flat_map(|panel| &panel.requests);
        let fates = requests().map(|(_, _, fate)| *fate).collect();
        let view = TrafficView::new(self.span, offered, fates);
        let count = algorithms::counted(offered.len() as u64, "request");
        let mut panels = vec![view.offered(offered, count)];
        let (shown, others) = self.busiest();
        panels.extend(shown.into_iter().map(|panel| panel.chart(&view)));
        if others > 0 {
            let title = format!("{} of other keys", algorithms::counted(others, "request"));
            panels.push(ChartPanel { title, notes: Vec::new(), strips: Vec::new() });
        }
        let comment = args.rules.first().and_then(|path| first_comment(path));
        Chart {
            title: args.title.clone().unwrap_or_else(|| "Requests under rules".into()),
            description: comment.unwrap_or_else(|| "Each rule with each of its keys.".into()),
            axis: self.span.axis(),
            panels,
        }
    }
}

impl DrawnLimit {
    /// Adds a point. The level changes in steps. Where the trace goes back in time, the line does not.
    fn add(&mut self, mut point: ChartPoint) {
        let Some(last) = self.points.last().copied() else { return };
        point.x = point.x.max(last.x);
        if last.y != point.y {
            self.points.push(ChartPoint { x: point.x, y: last.y });
        } else if let [.., before, last] = &mut self.points[..]
            && before.y == point.y
        {
            last.x = point.x;
            return;
        }
        self.points.push(point);
    }

    fn strip(&self) -> ChartStrip {
        let data = SeriesData::Line(self.points.clone());
        ChartStrip {
            label: format!("units in use of {}", self.limit),
            top: self.capacity,
            unit: ChartUnit::Count,
            guide: Some(ChartGuide { value: self.capacity, label: String::new() }),
            lines: 3,
            series: vec![ChartSeries { name: "level".into(), tone: SeriesTone::Level, data }],
        }
    }
}

impl RuleKeyPanel {
    /// Adds what an answer to a request of this key says. A caller whose tier has other limits adds nothing.
    fn add_levels(&mut self, answer: &Answer, x: u64) {
        for level in &mut self.levels {
            let mut limits = answer.limits();
            let is_same = |judged: &JudgedLimit<'_>| {
                *judged.rule == *self.decided.rule && *judged.limit == *level.limit
            };
            if let Some(judged) = limits.find(is_same) {
                let used = level.capacity.saturating_sub(judged.outcome.remaining);
                level.add(ChartPoint { x, y: used });
            }
        }
    }

    fn chart(&self, view: &TrafficView) -> ChartPanel {
        let mut strips = vec![view.fates(&self.requests)];
        if self.longest_delay_us > 0 {
            strips.push(view.served(&self.served));
        }
        strips.extend(self.levels.iter().map(DrawnLimit::strip));
        let count = |fate| self.requests.iter().filter(|(_, _, of)| *of == fate).count();
        let delayed = count(RequestFate::Delayed);
        let admitted = count(RequestFate::Admitted) + delayed;
        let refused = count(RequestFate::Refused);
        let mut notes =
            vec![self.decided.key.clone(), format!("{admitted} admitted, {refused} refused")];
        if delayed > 0 {
            let longest = ChartUnit::Micros.label(self.longest_delay_us);
            notes.push(format!("{delayed} waited, {longest} at most"));
        }
        ChartPanel { title: self.decided.rule.clone(), notes, strips }
    }
}

/// The comment that a rules file begins with, as one paragraph.
fn first_comment(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    let lines: Vec<&str> = lines.map(str::trim).collect();
    (!lines.is_empty()).then(|| lines.join(" ").replace('`', ""))
}
