//! The chart of a comparison: the offered requests, then a panel for each algorithm.

use std::path::Path;

use tollgate::Limit;

use super::course::{AlgorithmCourse, CourseAnswer, RequestFate};
use super::traffic::{TrafficRequest, TrafficSpan, TrafficTrace};
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
    let has = |fate| courses.iter().any(|course| course.answers.iter().any(|a| a.fate() == fate));
    let fates = FATES.into_iter().filter(|(_, fate)| has(*fate)).collect();
    let marks = has_room_for_marks(traffic);
    let view = TrafficView { span: traffic.span(), has_marks: marks, fates };
    let mut panels = vec![view.offered(traffic)];
    panels.extend(courses.iter().map(|course| view.course(course)));
    Chart {
        title: heading.title.clone(),
        description: heading.text.clone(),
        axis: traffic.span().axis(),
        panels,
    }
}

/// Returns true if the requests can be told apart.
fn has_room_for_marks(traffic: &TrafficTrace) -> bool {
    let requests = &traffic.requests;
    let gap = traffic.span().length_us() / MARK_PARTS;
    let is_apart =
        |pair: &[TrafficRequest]| pair[1].at.as_u64() >= pair[0].at.as_u64().saturating_add(gap);
    requests.len() <= MARKS_MAX
        && requests.windows(2).all(is_apart)
        && requests.iter().all(|request| request.cost == 1)
}

/// The fates of requests, with their colours.
const FATES: [(SeriesTone, RequestFate); 3] = [
    (SeriesTone::Admitted, RequestFate::Admitted),
    (SeriesTone::Delayed, RequestFate::Delayed),
    (SeriesTone::Refused, RequestFate::Refused),
];

/// The way in which traffic is drawn.
struct TrafficView {
    span: TrafficSpan,
    /// True if each request is drawn, false if they are counted in bars.
    has_marks: bool,
    /// The fates that occur.
    fates: Vec<(SeriesTone, RequestFate)>,
}

impl TrafficView {
    fn offered(&self, traffic: &TrafficTrace) -> ChartPanel {
        let requests = traffic.requests.iter().map(|request| (request.at.as_u64(), request.cost));
        let series = self.events("offered", SeriesTone::Offered, requests);
        let strips = vec![strip(self.event_lines(), vec![series])];
        ChartPanel { title: "offered".into(), notes: vec![traffic.summary()], strips }
    }

    fn course(&self, course: &AlgorithmCourse) -> ChartPanel {
        let mut strips = vec![self.fates(course)];
        if course.limit.is_queue() {
            let has_waits = self.has_marks && course.counts()[1] <= WAITS_MAX;
            strips.push(if has_waits { self.waits(course) } else { self.served(course) });
        }
        if !course.level.is_empty() {
            strips.push(level(course));
        }
        ChartPanel { title: course.name(), notes: notes(course), strips }
    }

    /// The requests at the instants at which they arrive, by their fate.
    fn fates(&self, course: &AlgorithmCourse) -> ChartStrip {
        let series = self.fates.iter().map(|&(tone, fate)| {
            let of_fate = course.answers.iter().filter(|answer| answer.fate() == fate);
            let name = match fate {
                RequestFate::Admitted => "admitted",
                RequestFate::Delayed => "admitted after a wait",
                RequestFate::Refused => "refused",
            };
            self.events(name, tone, of_fate.map(|answer| (answer.at.as_u64(), answer.cost)))
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
    fn served(&self, course: &AlgorithmCourse) -> ChartStrip {
        let admitted = course.answers.iter().filter(|answer| answer.decision.allowed());
        let served = admitted.map(|answer| (answer.served_at_us(), answer.cost));
        let served = served.filter(|(at_us, _)| *at_us <= self.span.to_us);
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
