//! Charts: series of whole numbers as text for a terminal or as an SVG.
//!
//! A [`Chart`] says what to show; [`TerminalChart`] and [`SvgChart`] draw it. Both are pure functions on
//! integers: the same chart gives the same bytes on every machine, so pictures can be checked in and compared.

mod axis;
mod braille;
mod palette;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;

pub(crate) use axis::{AxisTick, ChartAxis, ChartUnit, time_step};
pub(crate) use palette::SeriesTone;
pub(crate) use svg::SvgChart;
pub(crate) use terminal::TerminalChart;

/// A chart: panels below each other that share one horizontal axis.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The heading, and the name for screen readers.
    pub(crate) title: String,
    /// One or two sentences that say what the chart shows, for screen readers and below the heading.
    pub(crate) description: String,
    pub(crate) axis: ChartAxis,
    pub(crate) panels: Vec<ChartPanel>,
}

/// One part of a chart with its own heading, such as one algorithm.
#[derive(Clone, Debug)]
pub(crate) struct ChartPanel {
    pub(crate) title: String,
    /// Short facts, each on a line of its own in an SVG.
    pub(crate) notes: Vec<String>,
    pub(crate) strips: Vec<ChartStrip>,
}

/// One drawing area of a panel with its own vertical axis.
#[derive(Clone, Debug)]
pub(crate) struct ChartStrip {
    /// Name of the vertical axis.
    pub(crate) label: String,
    /// Value at the top. 0 means the largest value of the series.
    pub(crate) top: u64,
    /// Unit of the vertical axis.
    pub(crate) unit: ChartUnit,
    /// A horizontal line, such as a limit.
    pub(crate) guide: Option<ChartGuide>,
    /// Height in lines of a terminal; a line is 14 units high in an SVG.
    pub(crate) lines: u16,
    pub(crate) series: Vec<ChartSeries>,
}

/// A horizontal line across a strip.
#[derive(Clone, Debug)]
pub(crate) struct ChartGuide {
    pub(crate) value: u64,
    pub(crate) label: String,
}

/// Numbers with a name and a colour.
#[derive(Clone, Debug)]
pub(crate) struct ChartSeries {
    /// Name in the legend. Series with the same name and tone share one entry.
    pub(crate) name: String,
    pub(crate) tone: SeriesTone,
    pub(crate) data: SeriesData,
}

/// The numbers of a series.
#[derive(Clone, Debug)]
pub(crate) enum SeriesData {
    /// One value for each of as many equal parts of the horizontal axis. Bars of one strip are stacked.
    Bars(Vec<u64>),
    /// Points joined by straight lines, in the order of `x`; two points with the same `x` make a step.
    Line(Vec<ChartPoint>),
    /// Single events, drawn as symbols at these positions of the horizontal axis.
    Marks(Vec<u64>),
    /// Events that last, such as waits: from and to.
    Spans(Vec<(u64, u64)>),
}

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChartPoint {
    pub(crate) x: u64,
    pub(crate) y: u64,
}

impl ChartStrip {
    /// The value at the top of the strip, at least 1.
    fn top_value(&self) -> u64 {
        let largest = if self.top > 0 { self.top } else { self.largest() };
        largest.max(1)
    }

    /// The largest value that is drawn.
    fn largest(&self) -> u64 {
        let lines = self.series.iter().filter_map(|series| match &series.data {
            SeriesData::Line(points) => points.iter().map(|point| point.y).max(),
            _ => None,
        });
        let stacked = (0..self.bar_count()).map(|index| self.stack_at(index).1);
        let guide = self.guide.as_ref().map(|guide| guide.value);
        lines.chain(stacked).chain(guide).max().unwrap_or(0)
    }

    /// Number of bars of the longest series.
    fn bar_count(&self) -> usize {
        self.bars().map(|(_, bars)| bars.len()).max().unwrap_or(0)
    }

    /// The series of bars with their tones, the lowest first.
    fn bars(&self) -> impl Iterator<Item = (SeriesTone, &[u64])> {
        self.series.iter().filter_map(|series| match &series.data {
            SeriesData::Bars(bars) => Some((series.tone, &bars[..])),
            _ => None,
        })
    }

    /// The parts of a stack, each with its upper end, and the height of the stack.
    fn stack_at(&self, index: usize) -> (Vec<(SeriesTone, u64)>, u64) {
        let mut height = 0_u64;
        let parts = self.bars().map(|(tone, bars)| {
            height = height.saturating_add(bars.get(index).copied().unwrap_or(0));
            (tone, height)
        });
        let parts = parts.collect();
        (parts, height)
    }
}

impl Chart {
    /// The legend: each name once, in the order of its first use.
    fn legend(&self) -> Vec<&ChartSeries> {
        let mut legend: Vec<&ChartSeries> = Vec::new();
        let strips = self.panels.iter().flat_map(|panel| &panel.strips);
        for series in strips.flat_map(|strip| &strip.series) {
            let is_same =
                |known: &&ChartSeries| known.name == series.name && known.tone == series.tone;
            if !series.name.is_empty() && !legend.iter().any(is_same) {
                legend.push(series);
            }
        }
        legend
    }
}

/// `value` of `most` as a part of `length`, rounded to the nearest. Values above `most` count as `most`.
fn scaled(value: u64, most: u64, length: u64) -> u64 {
    let most = most.max(1);
    let product = u128::from(value.min(most)) * u128::from(length) + u128::from(most / 2);
    u64::try_from(product / u128::from(most)).unwrap_or(length).min(length)
}
