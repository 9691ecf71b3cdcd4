//! Draws a chart with block and braille characters.

use std::io::{self, IsTerminal};

use super::braille::BrailleArea;
use super::{Chart, ChartAxis, ChartPanel, ChartStrip, SeriesData, SeriesTone, scaled};
use crate::cli::human_output::printable_whole;

/// Narrowest chart, in characters.
pub(crate) const WIDTH_MIN: usize = 20;
/// Widest chart, in characters.
pub(crate) const WIDTH_MAX: usize = 300;

/// Widest label of the vertical axis, in characters.
const GUTTER_MAX: usize = 8;

/// Most lines of one strip.
const LINES_MAX: usize = 64;

/// Blocks of one to seven eighths.
const EIGHTHS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];

/// Draws charts as text of a fixed width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminalChart {
    width: usize,
    colour: bool,
}

/// A character and its colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChartCell {
    character: char,
    tone: Option<SeriesTone>,
    behind: Option<SeriesTone>,
}

const EMPTY: ChartCell = ChartCell { character: ' ', tone: None, behind: None };

/// The characters of a strip, line by line from the top.
struct CellGrid {
    columns: usize,
    /// Bound: [`WIDTH_MAX`] times [`LINES_MAX`].
    cells: Vec<ChartCell>,
}

impl TerminalChart {
    /// Draws in so many characters, at least [`WIDTH_MIN`] and at most [`WIDTH_MAX`].
    pub(crate) fn new(width: usize, colour: bool) -> TerminalChart {
        TerminalChart { width: width.clamp(WIDTH_MIN, WIDTH_MAX), colour }
    }

    /// Draws for standard output: in colour if it is a terminal and `NO_COLOR` is not set.
    pub(crate) fn for_stdout(width: usize) -> TerminalChart {
        // As no-color.org says: an empty value does not count.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        TerminalChart::new(width, io::stdout().is_terminal() && !unwanted)
    }

    /// The chart as lines of text. No line is wider than the width.
    pub(crate) fn draw(self, chart: &Chart) -> String {
        let mut text = String::new();
        self.push_wrapped(&mut text, &chart.title, true);
        self.push_wrapped(&mut text, &chart.description, false);
        self.push_legend(&mut text, chart);
        let gutter = self.gutter(chart);
        for panel in &chart.panels {
            text.push('\n');
            self.push_panel(&mut text, panel, &chart.axis, gutter);
        }
        if chart.panels.iter().any(|panel| !panel.strips.is_empty()) {
            text.push_str(&self.axis_line(&chart.axis, gutter));
        }
        text
    }

    /// Width of the labels of all vertical axes.
    fn gutter(self, chart: &Chart) -> usize {
        let strips = chart.panels.iter().flat_map(|panel| &panel.strips);
        let widest = strips.map(|strip| strip.unit.label(strip.top_value()).chars().count()).max();
        widest.unwrap_or(1).clamp(1, GUTTER_MAX.min(self.width / 4))
    }

    fn push_legend(self, text: &mut String, chart: &Chart) {
        let mut line = 0;
        for series in chart.legend() {
            let symbol = match series.data {
                SeriesData::Bars(_) => series.tone.shade(),
                SeriesData::Line(_) => '⠒',
                SeriesData::Marks(_) => series.tone.symbol(),
                SeriesData::Spans(_) => '━',
            };
            let name = shortened(&printable_whole(&series.name), self.width - 2);
            let width = name.chars().count() + 2;
            if line > 0 && line + 3 + width > self.width {
                text.push('\n');
                line = 0;
            } else if line > 0 {
                text.push_str("   ");
                line += 3;
            }
            let cell = ChartCell { character: symbol, tone: Some(series.tone), behind: None };
            self.push_cells(text, &[cell]);
            text.push(' ');
            text.push_str(&name);
            line += width;
        }
        if line > 0 {
            text.push('\n');
        }
    }

    fn push_panel(self, text: &mut String, panel: &ChartPanel, axis: &ChartAxis, gutter: usize) {
        self.push_wrapped(text, &panel.title, true);
        self.push_wrapped(text, &panel.notes.join(" · "), false);
        for strip in &panel.strips {
            self.push_strip(text, strip, axis, gutter);
        }
    }

    fn push_strip(self, text: &mut String, strip: &ChartStrip, axis: &ChartAxis, gutter: usize) {
        let lines = usize::from(strip.lines).clamp(1, LINES_MAX);
        let columns = self.width - gutter - 1;
        let mut grid = CellGrid { columns, cells: vec![EMPTY; columns * lines] };
        grid.add_bars(strip, lines, self.colour);
        grid.add_lines(strip, axis, lines);
        grid.add_guide(strip, lines);
        grid.add_events(strip, axis, lines);
        let has_scale = strip
            .series
            .iter()
            .any(|series| matches!(series.data, SeriesData::Bars(_) | SeriesData::Line(_)));
        for line in 0..lines {
            let label = match line {
                _ if !has_scale => String::new(),
                0 => strip.unit.label(strip.top_value()),
                _ if line == lines - 1 => "0".into(),
                _ => String::new(),
            };
            text.push_str(&format!("{:>gutter$}", shortened(&label, gutter)));
            text.push(if label.is_empty() { '│' } else { '┤' });
            let cells = &grid.cells[line * columns..(line + 1) * columns];
            let end = cells.iter().rposition(|cell| *cell != EMPTY).map_or(0, |last| last + 1);
            self.push_cells(text, &cells[..end]);
            text.push('\n');
        }
    }

    /// The line of ticks below the last strip. A label that would touch the one before is left out.
    fn axis_line(self, axis: &ChartAxis, gutter: usize) -> String {
        let columns = self.width - gutter - 1;
        let mut rule = vec!['─'; columns];
        let mut labels: Vec<char> = vec![' '; self.width];
        let mut free = 0;
        for tick in &axis.ticks {
            let column = column_of(axis.position(tick.at, columns as u64 * 2), columns);
            let label: Vec<char> = printable_whole(&tick.label).chars().collect();
            let middle = gutter + 1 + column;
            let start =
                middle.saturating_sub(label.len() / 2).min(self.width.saturating_sub(label.len()));
            if start < free || label.len() > self.width {
                continue;
            }
            rule[column] = '┴';
            labels[start..start + label.len()].copy_from_slice(&label);
            free = start + label.len() + 1;
        }
        let labels: String = labels.into_iter().collect();
        format!("{:gutter$}└{}\n{}\n", "", String::from_iter(rule), labels.trim_end())
    }

    /// Adds characters, changing the colour only where it changes.
    fn push_cells(self, text: &mut String, cells: &[ChartCell]) {
        let mut current = (None, None);
        for cell in cells {
            let colours = if self.colour { (cell.tone, cell.behind) } else { (None, None) };
            if colours != current {
                if current != (None, None) {
                    text.push_str("\x1b[0m");
                }
                if let Some(tone) = colours.0 {
                    text.push_str(&format!("\x1b[{}m", tone.ansi()));
                }
                if let Some(behind) = colours.1 {
                    text.push_str(&format!("\x1b[{}m", behind.ansi() + 10));
                }
                current = colours;
            }
            text.push(cell.character);
        }
        if current != (None, None) {
            text.push_str("\x1b[0m");
        }
    }

    /// Adds a sentence, wrapped between words; a word that is too long is cut.
    fn push_wrapped(self, text: &mut String, sentence: &str, is_heading: bool) {
        let sentence = printable_whole(sentence);
        let mut lines: Vec<String> = Vec::new();
        for word in sentence.split_whitespace() {
            let word = shortened(word, self.width);
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= self.width => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        for line in lines {
            let (on, off) =
                if self.colour && is_heading { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            text.push_str(&format!("{on}{line}{off}\n"));
        }
    }
}

impl CellGrid {
    /// Draws the bars, stacked.
    fn add_bars(&mut self, strip: &ChartStrip, lines: usize, colour: bool) {
        let bars = strip.bar_count();
        if bars == 0 {
            return;
        }
        let (top, eighths) = (strip.top_value(), lines as u64 * 8);
        for column in 0..self.columns {
            let (parts, height) = strip.stack_at(highest_bar(strip, column, self.columns, bars));
            if height == 0 {
                continue;
            }
            let mut ends: Vec<(SeriesTone, u64)> =
                parts.into_iter().map(|(tone, end)| (tone, scaled(end, top, eighths))).collect();
            // Something that exists is visible, however small.
            if ends.last().is_some_and(|(_, end)| *end == 0) {
                ends = vec![(ends[ends.len() - 1].0, 1)];
            }
            for line in 0..lines {
                let from = (lines - 1 - line) as u64 * 8;
                self.cells[line * self.columns + column] = stacked_cell(&ends, from, colour);
            }
        }
    }

    /// Draws lines in braille where no bar is.
    fn add_lines(&mut self, strip: &ChartStrip, axis: &ChartAxis, lines: usize) {
        let (dots_across, dots_down) = (self.columns as u64 * 2 - 1, lines as u64 * 4 - 1);
        let top = strip.top_value();
        for series in &strip.series {
            let SeriesData::Line(points) = &series.data else { continue };
            let mut area = BrailleArea::new(self.columns, lines);
            let place = |point: &super::ChartPoint| {
                let y = dots_down - scaled(point.y, top, dots_down);
                (axis.position(point.x, dots_across), y)
            };
            let places: Vec<(u64, u64)> = points.iter().map(place).collect();
            if let [only] = places[..] {
                area.line(only, only);
            }
            for pair in places.windows(2) {
                area.line(pair[0], pair[1]);
            }
            for index in 0..self.cells.len() {
                let character = area.character(index % self.columns, index / self.columns);
                if let Some(character) = character.filter(|_| self.cells[index] == EMPTY) {
                    self.cells[index] =
                        ChartCell { character, tone: Some(series.tone), behind: None };
                }
            }
        }
    }

    /// Draws the guide where nothing else is.
    fn add_guide(&mut self, strip: &ChartStrip, lines: usize) {
        let Some(guide) = &strip.guide else { return };
        let down = scaled(guide.value, strip.top_value(), lines as u64 * 2);
        let line = lines - 1 - (down.saturating_sub(1) / 2).min(lines as u64 - 1) as usize;
        for column in 0..self.columns {
            let cell = &mut self.cells[line * self.columns + column];
            if *cell == EMPTY {
                *cell =
                    ChartCell { character: '╌', tone: Some(SeriesTone::Offered), behind: None };
            }
        }
    }

    /// Draws events on the lowest line, and spans on lines from the top.
    fn add_events(&mut self, strip: &ChartStrip, axis: &ChartAxis, lines: usize) {
        let across = self.columns as u64 * 2;
        let column = |at: u64| column_of(axis.position(at, across), self.columns);
        let mut spans = 0;
        for series in &strip.series {
            match &series.data {
                SeriesData::Marks(marks) => {
                    for &at in marks {
                        let index = (lines - 1) * self.columns + column(at);
                        self.cells[index] = ChartCell {
                            character: series.tone.symbol(),
                            tone: Some(series.tone),
                            behind: None,
                        };
                    }
                }
                SeriesData::Spans(list) => {
                    for &(from, to) in list {
                        let line = (spans % lines) * self.columns;
                        spans += 1;
                        let (first, last) = (column(from), column(to.max(from)));
                        for at in first..=last {
                            let character = if at == last { '╸' } else { '━' };
                            self.cells[line + at] =
                                ChartCell { character, tone: Some(series.tone), behind: None };
                        }
                    }
                }
                SeriesData::Bars(_) | SeriesData::Line(_) => {}
            }
        }
    }
}

/// The column of a position that is counted in half columns.
fn column_of(halves: u64, columns: usize) -> usize {
    usize::try_from(halves / 2).unwrap_or(usize::MAX).min(columns - 1)
}

/// The bar that a column shows: if several fall into it, the highest stack, so that no peak is lost.
fn highest_bar(strip: &ChartStrip, column: usize, columns: usize, bars: usize) -> usize {
    let first = column * bars / columns;
    let last = ((column + 1) * bars).div_ceil(columns).max(first + 1).min(bars);
    let last = if bars <= columns { first + 1 } else { last };
    let heights = (first..last).map(|index| (strip.stack_at(index).1, std::cmp::Reverse(index)));
    heights.max().map_or(first, |(_, index)| index.0)
}

/// The cell of a stack that begins so many eighths above the ground.
fn stacked_cell(ends: &[(SeriesTone, u64)], from: u64, colour: bool) -> ChartCell {
    let above = |end: u64| end.saturating_sub(from).min(8);
    let mut parts = ends.iter().filter(|(_, end)| *end > from);
    let Some(&(tone, end)) = parts.next() else { return EMPTY };
    let next = parts.find(|(_, other)| *other > end).map(|(next, _)| *next);
    let cell = |character, behind| ChartCell { character, tone: Some(tone), behind };
    match (above(end), next) {
        (8, _) if colour => cell('█', None),
        (8, _) => cell(tone.shade(), None),
        // Two parts share the cell: in colour both show, without the larger one does.
        (part, Some(next)) if colour => cell(EIGHTHS[part as usize - 1], Some(next)),
        (part, Some(next)) if part < 4 => {
            ChartCell { character: next.shade(), tone: Some(next), behind: None }
        }
        (_, Some(_)) => cell(tone.shade(), None),
        (part, None) if colour || tone.shade() == '█' => cell(EIGHTHS[part as usize - 1], None),
        (_, None) => cell(tone.shade(), None),
    }
}

/// At most so many characters; a longer text ends with an ellipsis.
fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.into();
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}
