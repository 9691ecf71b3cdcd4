//! The chart of a comparison: the offered requests, then a panel for each algorithm.

use super::course::{AlgorithmCourse, RequestFate};
use super::traffic::TrafficTrace;
use crate::chart::{
    Chart, ChartAxis, ChartGuide, ChartPanel, ChartSeries, ChartStrip, ChartUnit, SeriesData,
    SeriesTone,
};

/// Most requests that are drawn one by one.
const MARKS_MAX: usize = 60;

/// Requests closer than this part of the axis are counted in bars.
const MARK_PARTS: u64 = 80;

/// Bars of a chart.
const BARS: u64 = 80;

/// Title and text above a chart.
pub(super) struct PictureHeading {
    pub(super) title: String,
    pub(super) text: String,
}

/// Draws the courses of all algorithms below each other.
pub(super) fn comparison(
    heading: &PictureHeading,
    traffic: &TrafficTrace,
    courses: &[AlgorithmCourse],
) -> Chart {
    let view = TrafficView { traffic, has_marks: has_room_for_marks(traffic) };
    let mut panels = vec![view.offered()];
    panels.extend(courses.iter().map(|course| view.course(course)));
    Chart {
        title: heading.title.clone(),
        description: heading.text.clone(),
        axis: ChartAxis::time(traffic.length_us()),
        panels,
    }
}

/// Returns true if the requests can be told apart.
fn has_room_for_marks(traffic: &TrafficTrace) -> bool {
    let requests = &traffic.requests;
    let gap = traffic.length_us() / MARK_PARTS;
    let is_apart = |pair: &[super::traffic::TrafficRequest]| {
        pair[1].at.as_u64() >= pair[0].at.as_u64().saturating_add(gap)
    };
    requests.len() <= MARKS_MAX && requests.windows(2).all(is_apart)
}

/// The way in which traffic is drawn.
struct TrafficView<'a> {
    traffic: &'a TrafficTrace,
    /// True if each request is drawn, false if they are counted in bars.
    has_marks: bool,
}

impl TrafficView<'_> {
    fn offered(&self) -> ChartPanel {
        let instants = self.traffic.requests.iter().map(|request| (request.at.as_u64(), 1));
        let series = self.events("offered", SeriesTone::Offered, instants);
        let notes = vec![requests_text(self.traffic.requests.len() as u64)];
        ChartPanel {
            title: "offered".into(),
            notes,
            strips: vec![strip(self.event_lines(), vec![series])],
        }
    }

    fn course(&self, course: &AlgorithmCourse) -> ChartPanel {
        let mut strips = vec![self.fates(course)];
        if course.limit.is_queue() && !self.has_marks {
            strips.push(self.served(course));
        }
        if !course.level.is_empty() {
            strips.push(level(course));
        }
        ChartPanel { title: course.name(), notes: notes(course), strips }
    }

    /// The requests at the instants at which they arrive, by their fate.
    fn fates(&self, course: &AlgorithmCourse) -> ChartStrip {
        let fates = [
            ("admitted", SeriesTone::Admitted, RequestFate::Admitted),
            ("admitted after a delay", SeriesTone::Delayed, RequestFate::Delayed),
            ("refused", SeriesTone::Refused, RequestFate::Refused),
        ];
        let mut series = Vec::new();
        for (name, tone, fate) in fates {
            let of_fate = course.answers.iter().filter(|answer| answer.fate() == fate);
            let instants: Vec<(u64, u64)> = of_fate.map(|answer| (answer.at.as_u64(), 1)).collect();
            if !instants.is_empty() {
                series.push(self.events(name, tone, instants.into_iter()));
            }
        }
        let mut lines = self.event_lines();
        if self.has_marks && course.longest_delay_us() > 0 {
            let delayed = course.answers.iter().filter(|answer| answer.delay_us() > 0);
            let spans: Vec<(u64, u64)> = delayed
                .map(|answer| (answer.at.as_u64(), answer.served_at_us()))
                .map(|(from, to)| (self.traffic.place(from), self.traffic.place(to)))
                .collect();
            lines = 4;
            let data = SeriesData::Spans(spans);
            series.push(ChartSeries { name: "waits".into(), tone: SeriesTone::Delayed, data });
        }
        strip(lines, series)
    }

    /// The requests of a queue at the instants at which they are served.
    fn served(&self, course: &AlgorithmCourse) -> ChartStrip {
        let admitted = course.answers.iter().filter(|answer| answer.decision.allowed());
        let instants: Vec<(u64, u64)> = admitted.map(|answer| (answer.served_at_us(), 1)).collect();
        let series = self.events("served", SeriesTone::Admitted, instants.into_iter());
        ChartStrip { label: "served".into(), ..strip(self.event_lines(), vec![series]) }
    }

    fn events(
        &self,
        name: &str,
        tone: SeriesTone,
        instants: impl Iterator<Item = (u64, u64)>,
    ) -> ChartSeries {
        let data = if self.has_marks {
            SeriesData::Marks(instants.map(|(at_us, _)| self.traffic.place(at_us)).collect())
        } else {
            let mut bars = vec![0; BARS as usize];
            for (at_us, units) in instants {
                let index = self.traffic.place(at_us) * BARS / self.traffic.length_us();
                if let Some(bar) = usize::try_from(index).ok().and_then(|index| bars.get_mut(index))
                {
                    *bar += units;
                }
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
    let capacity = course.limit.capacity();
    let series = ChartSeries {
        name: "level".into(),
        tone: SeriesTone::Level,
        data: SeriesData::Line(course.level.clone()),
    };
    ChartStrip {
        label: if course.limit.is_queue() { "backlog".into() } else { "in use".into() },
        top: capacity.saturating_mul(1_000),
        unit: ChartUnit::Thousandths,
        guide: Some(ChartGuide { value: capacity.saturating_mul(1_000), label: String::new() }),
        lines: 3,
        series: vec![series],
    }
}

fn notes(course: &AlgorithmCourse) -> Vec<String> {
    let [admitted, delayed, refused] = course.counts();
    let mut notes = vec![format!("{} admitted, {refused} refused", admitted + delayed)];
    if delayed > 0 {
        let longest = ChartUnit::Micros.label(course.longest_delay_us());
        notes.push(format!("{delayed} of them after a delay, at most {longest}"));
    }
    let period = ChartUnit::Micros.label(course.limit.period_us());
    notes.push(format!("most served in any {period}: {}", course.most_in_a_period()));
    notes
}

fn requests_text(count: u64) -> String {
    if count == 1 { "1 request".into() } else { format!("{count} requests") }
}

fn strip(lines: u16, series: Vec<ChartSeries>) -> ChartStrip {
    ChartStrip { label: String::new(), top: 0, unit: ChartUnit::Count, guide: None, lines, series }
}
