//! The chart of a comparison: the offered requests, then a panel for each algorithm.

use std::path::Path;

use tollgate::Limit;

use super::course::{AlgorithmCourse, CourseAnswer, RequestFate};
use super::traffic::{TrafficSpan, TrafficTrace};
use crate::chart::{
    Chart, ChartGuide, ChartPanel, ChartSeries, ChartStrip, ChartUnit, SeriesData, SeriesTone,
};

/// Most requests that are drawn one by one.
const MARKS_MAX: usize = 60;

/// Requests closer than this part of the axis are counted in bars.
const MARK_PARTS: u64 = 80;

/// Most waits that are drawn one by one.
const WAITS_MAX: u64 = 15;

/// Bars of a chart.
const BARS: u64 = 80;

/// Title and text above a chart.
pub(super) struct PictureHeading {
    pub(super) title: String,
    pub(super) text: String,
}

impl PictureHeading {
    pub(super) fn of_trace(path: &Path, traffic: &TrafficTrace, limit: &Limit) -> PictureHeading {
        let name = path.file_name().map_or_else(|| "-".into(), |name| name.to_string_lossy());
        let rate = limit.rate();
        PictureHeading {
            title: format!("Requests of {name}"),
            text: format!("{} under a limit of {rate}.", traffic.summary()),
        }
    }
}

/// Draws the courses of all algorithms below each other.
pub(super) fn comparison(
    heading: &PictureHeading,
    traffic: &TrafficTrace,
    courses: &[AlgorithmCourse],
) -> Chart {
    let fates = courses.iter().flat_map(|course| &course.answers).map(CourseAnswer::fate);
    let offered: Vec<(u64, u64)> =
        traffic.requests.iter().map(|request| (request.at.as_u64(), request.cost)).collect();
    let view = TrafficView::new(traffic.span(), &offered, fates.collect());
    let mut panels = vec![view.offered(&offered, traffic.summary())];
    panels.extend(courses.iter().map(|course| view.course(course)));
    Chart {
        title: heading.title.clone(),
        description: heading.text.clone(),
        axis: traffic.span().axis(),
        panels,
    }
}

/// Returns true if requests, given by instant and units, can be told apart.
fn has_room_for_marks(span: TrafficSpan, requests: &[(u64, u64)]) -> bool {
    let gap = span.length_us() / MARK_PARTS;
    let is_apart = |pair: &[(u64, u64)]| pair[1].0 >= pair[0].0.saturating_add(gap);
    requests.len() <= MARKS_MAX
        && requests.windows(2).all(is_apart)
        && requests.iter().all(|(_, units)| *units == 1)
}

/// The fates of requests, with their names and colours.
const FATES: [(&str, SeriesTone, RequestFate); 3] = [
    ("admitted", SeriesTone::Admitted, RequestFate::Admitted),
    ("admitted after a wait", SeriesTone::Delayed, RequestFate::Delayed),
    ("refused", SeriesTone::Refused, RequestFate::Refused),
];

/// The way in which traffic is drawn.
pub(in super::super) struct TrafficView {
    span: TrafficSpan,
    /// True if each request is drawn, false if they are counted in bars.
    has_marks: bool,
    /// The fates that occur.
    fates: Vec<RequestFate>,
}

impl TrafficView {
    /// A view of these requests, each with its instant and its units.
    pub(in super::super) fn new(
        span: TrafficSpan,
        offered: &[(u64, u64)],
        fates: Vec<RequestFate>,
    ) -> TrafficView {
        TrafficView { span, has_marks: has_room_for_marks(span, offered), fates }
    }

    /// The panel of all requests.
    pub(in super::super) fn offered(&self, offered: &[(u64, u64)], summary: String) -> ChartPanel {
        let series = self.events("offered", SeriesTone::Offered, offered.iter().copied());
        let strips = vec![strip(self.event_lines(), vec![series])];
        ChartPanel { title: "offered".into(), notes: vec![summary], strips }
    }

    fn course(&self, course: &AlgorithmCourse) -> ChartPanel {
        let requests: Vec<_> = course
            .answers
            .iter()
            .map(|answer| (answer.at.as_u64(), answer.cost, answer.fate()))
            .collect();
        let mut strips = vec![self.fates(&requests)];
        if course.limit.is_queue() {
            let has_waits = self.has_marks && course.counts()[1] <= WAITS_MAX;
            let admitted = course.answers.iter().filter(|answer| answer.decision.allowed());
            let served: Vec<_> =
                admitted.map(|answer| (answer.served_at_us(), answer.cost)).collect();
            strips.push(if has_waits { self.waits(course) } else { self.served(&served) });
        }
        if !course.level.is_empty() {
            strips.push(level(course));
        }
        ChartPanel { title: course.name(), notes: notes(course), strips }
    }

    /// The requests at the instants at which they arrive, by their fate.
    pub(in super::super) fn fates(&self, requests: &[(u64, u64, RequestFate)]) -> ChartStrip {
        let occurring = FATES.into_iter().filter(|(_, _, fate)| self.fates.contains(fate));
        let series = occurring.map(|(name, tone, fate)| {
            let of_fate = requests.iter().filter(|(_, _, of)| *of == fate);
            self.events(name, tone, of_fate.map(|&(at_us, units, _)| (at_us, units)))
        });
        strip(self.event_lines(), series.collect())
    }

    /// The waits of a queue, one by one.
    fn waits(&self, course: &AlgorithmCourse) -> ChartStrip {
        let delayed = course.answers.iter().filter(|answer| answer.delay_us() > 0);
        let wait = |answer: &CourseAnswer| (answer.at.as_u64(), answer.served_at_us());
        let waits =
            delayed.map(wait).map(|(from, to)| (self.span.place(from), self.span.place(to)));
        let data = SeriesData::Spans(waits.collect());
        let series = ChartSeries { name: "waits".into(), tone: SeriesTone::Delayed, data };
        ChartStrip { label: "waits until served".into(), ..strip(3, vec![series]) }
    }

    /// The requests of a queue at the instants at which they are served.
    pub(in super::super) fn served(&self, served: &[(u64, u64)]) -> ChartStrip {
        let served = served.iter().copied().filter(|(at_us, _)| *at_us <= self.span.to_us);
        let series = self.events("", SeriesTone::Admitted, served);
        ChartStrip { label: "served".into(), ..strip(self.event_lines().min(2), vec![series]) }
    }

    fn events(
        &self,
        name: &str,
        tone: SeriesTone,
        requests: impl Iterator<Item = (u64, u64)>,
    ) -> ChartSeries {
        let data = if self.has_marks {
            SeriesData::Marks(requests.map(|(at_us, _)| self.span.place(at_us)).collect())
        } else {
            let mut bars = vec![0_u64; BARS as usize];
            for (at_us, units) in requests {
                let bar = &mut bars[self.span.part_of(at_us, BARS)];
                *bar = bar.saturating_add(units);
            }
            SeriesData::Bars(bars)
        };
        ChartSeries { name: name.into(), tone, data }
    }

    fn event_lines(&self) -> u16 {
        if self.has_marks { 1 } else { 3 }
    }
}

/// Strip of the units that the limiter counts as used.
fn level(course: &AlgorithmCourse) -> ChartStrip {
    let capacity = course.limit.capacity().saturating_mul(1_000);
    let series = ChartSeries {
        name: "level".into(),
        tone: SeriesTone::Level,
        data: SeriesData::Line(course.level.clone()),
    };
    ChartStrip {
        label: if course.limit.is_queue() { "backlog".into() } else { "units in use".into() },
        top: capacity,
        unit: ChartUnit::Thousandths,
        guide: Some(ChartGuide { value: capacity, label: String::new() }),
        lines: 3,
        series: vec![series],
    }
}

fn notes(course: &AlgorithmCourse) -> Vec<String> {
    let [admitted, delayed, refused] = course.counts();
    let mut notes = vec![format!("{} admitted, {refused} refused", admitted + delayed)];
    if delayed > 0 {
        let longest = ChartUnit::Micros.label(course.longest_delay_us());
        notes.push(format!("{delayed} waited, {longest} at most"));
    }
    let period = ChartUnit::Micros.label(course.limit.period_us());
    notes.push(format!("most served in any {period}: {}", course.most_in_a_period()));
    notes
}

fn strip(lines: u16, series: Vec<ChartSeries>) -> ChartStrip {
    ChartStrip { label: String::new(), top: 0, unit: ChartUnit::Count, guide: None, lines, series }
}
