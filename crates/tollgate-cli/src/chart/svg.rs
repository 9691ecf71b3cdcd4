//! Draws a chart as an SVG that stands alone: no fonts or scripts are fetched, and it follows the light or dark
//! theme of its reader.
//!
//! Positions are counted in tenths of a unit and written with at most one decimal, so the same chart is the same
//! file everywhere.

use std::fmt::Write as _;

use super::{
    Chart, ChartAxis, ChartPanel, ChartPoint, ChartSeries, ChartStrip, SeriesData, SeriesTone,
    scaled,
};
use crate::telemetry::Printable;

mod style;

/// Width of the picture, in units.
const WIDTH: u64 = 880;
/// Space at the left and right.
const MARGIN: u64 = 24;
/// Left edge of the drawing areas.
const PLOT_LEFT: u64 = 286;
/// Width of the drawing areas.
const PLOT_WIDTH: u64 = WIDTH - PLOT_LEFT - MARGIN;
/// Height of a strip per line of a terminal.
const LINE_HEIGHT: u64 = 14;
/// Height of the name above a strip.
const LABEL_HEIGHT: u64 = 18;
/// Height of a note.
const NOTE_HEIGHT: u64 = 17;
/// Space between panels.
const PANEL_GAP: u64 = 30;
/// Characters of a line of the title.
const TITLE_CHARS: usize = 80;
/// Characters of a line of the description.
const DESCRIPTION_CHARS: usize = 118;
/// Characters of the name of a panel beside its drawing areas.
const PANEL_TITLE_CHARS: usize = 30;
/// Characters of a note, so that it ends before the drawing area.
const NOTE_CHARS: usize = 36;

/// Draws charts as SVG.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SvgChart;

/// A picture in the making.
struct SvgWriter {
    body: String,
    /// The lower end of what is drawn.
    bottom: u64,
}

impl SvgChart {
    /// The chart as the text of a file.
    pub(crate) fn draw(self, chart: &Chart) -> String {
        let mut writer = SvgWriter { body: String::new(), bottom: 0 };
        writer.heading(chart);
        for (index, panel) in chart.panels.iter().enumerate() {
            writer.panel(panel, &chart.axis, index > 0);
        }
        writer.axis(&chart.axis);
        writer.finish(chart)
    }
}

impl SvgWriter {
    fn heading(&mut self, chart: &Chart) {
        self.bottom = 14;
        for line in wrapped(&chart.title, TITLE_CHARS) {
            self.bottom += 24;
            self.text("h", MARGIN, self.bottom, &line);
        }
        for line in wrapped(&chart.description, DESCRIPTION_CHARS) {
            self.bottom += 20;
            self.text("d", MARGIN, self.bottom, &line);
        }
        self.legend(chart);
        self.bottom += 12;
    }

    fn legend(&mut self, chart: &Chart) {
        let legend = chart.legend();
        if legend.is_empty() {
            return;
        }
        self.bottom += 28;
        let mut left = MARGIN;
        for series in legend {
            let width = 34 + series.name.chars().count() as u64 * 7;
            if left > MARGIN && left + width > WIDTH - MARGIN {
                left = MARGIN;
                self.bottom += 20;
            }
            self.legend_symbol(series, left * 10, (self.bottom - 4) * 10);
            self.text("d", left + 18, self.bottom, &series.name);
            left += width;
        }
    }

    fn legend_symbol(&mut self, series: &ChartSeries, left: u64, middle: u64) {
        let class = series.tone.class();
        match series.data {
            SeriesData::Bars(_) => {
                let (x, y) = (tenths(left), tenths(middle - 60));
                self.add(&format!("<path class=\"b {class}\" d=\"M{x} {y}h12v12h-12z\"/>"));
            }
            SeriesData::Line(_) => {
                let (x, y) = (tenths(left), tenths(middle));
                self.add(&format!("<path class=\"l {class}\" d=\"M{x} {y}h12\"/>"));
            }
            SeriesData::Marks(_) => self.mark(series.tone, left + 60, middle),
            SeriesData::Spans(_) => {
                let (x, y) = (tenths(left), tenths(middle));
                self.add(&format!("<path class=\"s {class}\" d=\"M{x} {y}h12\"/>"));
            }
        }
    }

    fn panel(&mut self, panel: &ChartPanel, axis: &ChartAxis, is_below_another: bool) {
        if is_below_another {
            let y = self.bottom + PANEL_GAP / 2;
            self.add(&format!("<path class=\"r\" d=\"M{MARGIN} {y}H{}\"/>", WIDTH - MARGIN));
            self.bottom += PANEL_GAP;
        } else {
            self.bottom += 14;
        }
        let top = self.bottom;
        let mut notes_end = top + 13;
        for (index, line) in wrapped(&panel.title, PANEL_TITLE_CHARS).iter().enumerate() {
            notes_end += if index > 0 { NOTE_HEIGHT } else { 0 };
            self.text("p", MARGIN, notes_end, line);
        }
        for line in panel.notes.iter().flat_map(|note| wrapped(note, NOTE_CHARS)) {
            notes_end += NOTE_HEIGHT;
            self.text("n", MARGIN, notes_end, &line);
        }
        for (index, strip) in panel.strips.iter().enumerate() {
            self.bottom += if index > 0 { 8 } else { 0 };
            self.strip(strip, axis);
        }
        self.bottom = self.bottom.max(notes_end + 4);
    }

    fn strip(&mut self, strip: &ChartStrip, axis: &ChartAxis) {
        if !strip.label.is_empty() {
            self.text("a", PLOT_LEFT, self.bottom + 11, &strip.label);
            self.bottom += LABEL_HEIGHT;
        }
        let (top, height) = (self.bottom, u64::from(strip.lines.max(1)) * LINE_HEIGHT);
        self.bottom += height;
        let area = StripArea { top: top * 10, height: height * 10, most: strip.top_value() };
        self.add(&format!("<rect class=\"f\" x=\"{PLOT_LEFT}\" y=\"{top}\" width=\"{PLOT_WIDTH}\" height=\"{height}\"/>"));
        self.grid(axis, top, self.bottom);
        self.scale(strip, &area);
        self.bars(strip, &area);
        let mut spans = 0;
        for series in &strip.series {
            match &series.data {
                SeriesData::Line(points) => self.line(series.tone, points, axis, &area),
                SeriesData::Spans(list) => self.spans(series.tone, list, axis, &area, &mut spans),
                SeriesData::Bars(_) | SeriesData::Marks(_) => {}
            }
        }
        self.guide(strip, &area);
        let middle = area.top + area.height / 2;
        for series in &strip.series {
            let SeriesData::Marks(marks) = &series.data else { continue };
            for &at in marks {
                self.mark(series.tone, plot_x(axis, at), middle);
            }
        }
    }

    /// Lines at the ticks of the horizontal axis.
    fn grid(&mut self, axis: &ChartAxis, top: u64, bottom: u64) {
        let mut path = String::new();
        for tick in &axis.ticks {
            let _ = write!(path, "M{} {top}V{bottom}", tenths(plot_x(axis, tick.at)));
        }
        if !path.is_empty() {
            self.add(&format!("<path class=\"g\" d=\"{path}\"/>"));
        }
    }

    /// The largest value and 0 at the left, for strips that have a scale.
    fn scale(&mut self, strip: &ChartStrip, area: &StripArea) {
        let has_scale =
            |series: &ChartSeries| matches!(series.data, SeriesData::Bars(_) | SeriesData::Line(_));
        if strip.series.iter().any(has_scale) {
            let (top, bottom) = (area.top / 10, (area.top + area.height) / 10);
            self.text("y", PLOT_LEFT - 8, top + 9, &strip.unit.label(area.most));
            self.text("y", PLOT_LEFT - 8, bottom, "0");
        }
    }

    fn bars(&mut self, strip: &ChartStrip, area: &StripArea) {
        let count = strip.bar_count() as u64;
        let mut paths: Vec<(SeriesTone, String)> =
            strip.bars().map(|(tone, _)| (tone, String::new())).collect();
        for index in 0..count {
            let left = PLOT_LEFT * 10 + PLOT_WIDTH * 10 * index / count;
            let right = PLOT_LEFT * 10 + PLOT_WIDTH * 10 * (index + 1) / count;
            let gap = if right - left >= 40 { 10 } else { 0 };
            let mut ground = 0;
            let (parts, _) = strip.stack_at(index as usize);
            for ((_, end), (_, path)) in parts.into_iter().zip(&mut paths) {
                let height = scaled(end, area.most, area.height);
                if height > ground {
                    let (x, y) = (tenths(left), tenths(area.top + area.height - height));
                    let (w, h) = (tenths(right - left - gap), tenths(height - ground));
                    let _ = write!(path, "M{x} {y}h{w}v{h}h-{w}z");
                    ground = height;
                }
            }
        }
        for (tone, path) in paths.iter().filter(|(_, path)| !path.is_empty()) {
            self.add(&format!("<path class=\"b {}\" d=\"{path}\"/>", tone.class()));
        }
    }

    fn line(
        &mut self,
        tone: SeriesTone,
        points: &[ChartPoint],
        axis: &ChartAxis,
        area: &StripArea,
    ) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let mut path = String::new();
        for (x, y) in line_places(points, axis, area) {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{} {}", tenths(x), tenths(y));
        }
        let class = tone.class();
        if tone == SeriesTone::Level {
            let ground = tenths(area.top + area.height);
            let (right, left) = (tenths(plot_x(axis, last.x)), tenths(plot_x(axis, first.x)));
            self.add(&format!(
                "<path class=\"u {class}\" d=\"{path}L{right} {ground}L{left} {ground}z\"/>"
            ));
        }
        self.add(&format!("<path class=\"l {class}\" d=\"{path}\"/>"));
    }

    /// Lasting events, each on a line of its own until the strip is full.
    fn spans(
        &mut self,
        tone: SeriesTone,
        spans: &[(u64, u64)],
        axis: &ChartAxis,
        area: &StripArea,
        drawn: &mut u64,
    ) {
        let class = tone.class();
        let lines = (area.height / 80).max(1);
        for &(from, to) in spans {
            let y = tenths(area.top + 40 + *drawn % lines * 80);
            *drawn += 1;
            let (left, right) = (plot_x(axis, from), plot_x(axis, to.max(from)));
            let (left, right) = (tenths(left), tenths(right));
            self.add(&format!(
                "<path class=\"s {class}\" d=\"M{left} {y}H{right}\"/>\
                 <circle class=\"{class}\" cx=\"{right}\" cy=\"{y}\" r=\"2.5\"/>"
            ));
        }
    }

    fn guide(&mut self, strip: &ChartStrip, area: &StripArea) {
        let Some(guide) = &strip.guide else { return };
        let y = area.y(guide.value);
        let right = PLOT_LEFT + PLOT_WIDTH;
        self.add(&format!("<path class=\"k\" d=\"M{PLOT_LEFT} {}H{right}\"/>", tenths(y)));
        if !guide.label.is_empty() {
            // Above the line, unless that is outside of the strip.
            let label = if y >= area.top + 140 { y - 40 } else { y + 120 };
            self.text("e", right - 5, label / 10, &guide.label);
        }
    }

    fn mark(&mut self, tone: SeriesTone, x: u64, y: u64) {
        let class = tone.class();
        let (cx, cy) = (tenths(x), tenths(y));
        self.add(&match tone {
            SeriesTone::Refused => {
                let (left, top) = (tenths(x - 42), tenths(y - 42));
                format!("<path class=\"x {class}\" d=\"M{left} {top}l8.4 8.4m0-8.4l-8.4 8.4\"/>")
            }
            SeriesTone::Delayed => {
                let top = tenths(y - 45);
                format!(
                    "<circle class=\"o {class}\" cx=\"{cx}\" cy=\"{cy}\" r=\"4.5\"/>\
                     <path class=\"{class}\" d=\"M{cx} {top}a4.5 4.5 0 0 1 0 9z\"/>"
                )
            }
            SeriesTone::Offered => {
                format!("<path class=\"x {class}\" d=\"M{cx} {}v9\"/>", tenths(y - 45))
            }
            SeriesTone::Admitted | SeriesTone::Level => {
                format!("<circle class=\"{class}\" cx=\"{cx}\" cy=\"{cy}\" r=\"5\"/>")
            }
        });
    }

    /// The labels of the horizontal axis. A label that would touch the one before is left out.
    fn axis(&mut self, axis: &ChartAxis) {
        self.bottom += 20;
        let mut free = 0;
        for tick in &axis.ticks {
            let (x, half) =
                (plot_x(axis, tick.at) / 10, tick.label.chars().count() as u64 * 35 / 10);
            if x.saturating_sub(half) < free {
                continue;
            }
            free = x + half + 6;
            self.text("t", x, self.bottom, &tick.label);
        }
        self.bottom += 20;
    }

    fn text(&mut self, class: &str, x: u64, y: u64, text: &str) {
        let text = escaped(text);
        self.add(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"));
    }

    fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    fn finish(self, chart: &Chart) -> String {
        let (title, description) = (escaped(&chart.title), escaped(&chart.description));
        let height = self.bottom;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-labelledby=\"t d\">\n\
             <title id=\"t\">{title}</title>\n<desc id=\"d\">{description}</desc>\n\
             <style>{}</style>\n{}\
             <rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n{}</svg>\n",
            style::sheet(),
            style::PATTERNS,
            self.body
        )
    }
}

/// Place and scale of a strip, in tenths.
struct StripArea {
    top: u64,
    height: u64,
    most: u64,
}

impl StripArea {
    fn y(&self, value: u64) -> u64 {
        self.top + self.height - scaled(value, self.most, self.height)
    }
}

/// The places of a line in tenths: where many points share one horizontal place, the first, the highest, the lowest and
/// the last of them. Bound: four for each tenth of the width.
fn line_places(points: &[ChartPoint], axis: &ChartAxis, area: &StripArea) -> Vec<(u64, u64)> {
    let all = points.iter().map(|point| (plot_x(axis, point.x), area.y(point.y)));
    let all: Vec<(u64, u64)> = all.collect();
    let mut places = Vec::new();
    for column in all.chunk_by(|one, next| one.0 == next.0) {
        let height = |index: &usize| column[*index].1;
        let indices = 0..column.len();
        let highest = indices.clone().min_by_key(height).unwrap_or(0);
        let lowest = indices.max_by_key(height).unwrap_or(0);
        let mut kept = [0, highest, lowest, column.len() - 1];
        kept.sort_unstable();
        places.extend(kept.map(|index| column[index]));
    }
    places.dedup();
    places
}

/// The horizontal position of a value, in tenths.
fn plot_x(axis: &ChartAxis, at: u64) -> u64 {
    PLOT_LEFT * 10 + axis.position(at, PLOT_WIDTH * 10)
}

/// A length in tenths as text.
fn tenths(length: u64) -> String {
    match length % 10 {
        0 => (length / 10).to_string(),
        tenth => format!("{}.{tenth}", length / 10),
    }
}

/// Text without characters that mean something in XML, or that XML forbids.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for piece in text.chars() {
        match piece {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            plain => escaped.push_str(&Printable(plain.encode_utf8(&mut [0; 4])).to_string()),
        }
    }
    escaped
}

/// Lines of at most so many characters, broken between words; a longer word is broken anywhere.
fn wrapped(text: &str, chars_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let chars: Vec<char> = word.chars().collect();
        for piece in chars.chunks(chars_max) {
            let piece = String::from_iter(piece);
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + piece.chars().count() <= chars_max => {
                    line.push(' ');
                    line.push_str(&piece);
                }
                _ => lines.push(piece),
            }
        }
    }
    lines
}
