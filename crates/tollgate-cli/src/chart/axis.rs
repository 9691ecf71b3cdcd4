//! Axes: units, round numbers for ticks, and their labels.

/// Most ticks on an axis.
const TICKS_MAX: u64 = 8;

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChartUnit {
    /// Whole things, such as requests.
    Count,
    /// Thousandths of things, such as a bucket's level between two requests.
    Thousandths,
    /// Microseconds.
    Micros,
}

/// The horizontal axis of a chart.
#[derive(Clone, Debug)]
pub(crate) struct ChartAxis {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Labelled positions, in order.
    pub(crate) ticks: Vec<AxisTick>,
}

/// A labelled position of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AxisTick {
    pub(crate) at: u64,
    pub(crate) label: String,
}

/// Steps of a second, a minute, an hour and a day that people count in, in microseconds.
const TIME_STEPS_US: [u64; 26] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    15_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
    1_800_000_000,
    3_600_000_000,
    7_200_000_000,
    21_600_000_000,
    43_200_000_000,
    86_400_000_000,
    604_800_000_000,
];

impl ChartAxis {
    /// An axis of time from 0, in microseconds, with round ticks.
    pub(crate) fn time(to_us: u64) -> ChartAxis {
        ChartAxis::time_between(0, to_us)
    }

    /// An axis of time between two instants, in microseconds, with ticks at round instants.
    pub(crate) fn time_between(from_us: u64, to_us: u64) -> ChartAxis {
        let to = to_us.max(from_us.saturating_add(1));
        let step = time_step(to - from_us);
        let ticks = (from_us.div_ceil(step)..=to / step)
            .map(|n| AxisTick { at: n * step, label: ChartUnit::Micros.label(n * step) });
        ChartAxis { from: from_us, to, ticks: ticks.collect() }
    }

    /// An axis of whole numbers from 0, with round ticks.
    pub(crate) fn count(to: u64) -> ChartAxis {
        let to = to.max(1);
        let step = round_step(to);
        let label = |n: u64| ChartUnit::Count.label(n * step);
        let ticks = (0..=to / step).map(|n| AxisTick { at: n * step, label: label(n) });
        ChartAxis { from: 0, to, ticks: ticks.collect() }
    }

    /// The position of a value, as a part of `length`.
    pub(super) fn position(&self, at: u64, length: u64) -> u64 {
        super::scaled(at.saturating_sub(self.from), self.to.saturating_sub(self.from), length)
    }
}

/// The shortest round step that gives at most [`TICKS_MAX`] ticks in a time of this length.
pub(crate) fn time_step(length_us: u64) -> u64 {
    let fits = |step: &u64| length_us / step < TICKS_MAX;
    TIME_STEPS_US.into_iter().find(fits).unwrap_or_else(|| round_step(length_us))
}

/// The smallest of 1, 2 and 5 times a power of ten that gives at most [`TICKS_MAX`] steps.
fn round_step(to: u64) -> u64 {
    let mut step = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let candidate = step.saturating_mul(factor);
            if to / candidate < TICKS_MAX {
                return candidate;
            }
        }
        step = step.saturating_mul(10);
    }
}

impl ChartUnit {
    /// A value as people write it.
    pub(crate) fn label(self, value: u64) -> String {
        match self {
            ChartUnit::Count => short_count(value),
            ChartUnit::Thousandths => with_decimals(value, 1_000, ""),
            ChartUnit::Micros => match value {
                0 => "0".into(),
                1..1_000 => format!("{value} µs"),
                1_000..1_000_000 => with_decimals(value, 1_000, " ms"),
                1_000_000..60_000_000 => with_decimals(value, 1_000_000, " s"),
                60_000_000..3_600_000_000 => two_parts(value / 1_000_000, 60, ["min", "s"]),
                3_600_000_000..86_400_000_000 => two_parts(value / 60_000_000, 60, ["h", "min"]),
                _ => two_parts(value / 3_600_000_000, 24, ["d", "h"]),
            },
        }
    }
}

/// A count with k, M, G, T, P or E if it is long.
fn short_count(value: u64) -> String {
    const SUFFIXES: [(u64, &str); 6] = [
        (1_000_000_000_000_000_000, "E"),
        (1_000_000_000_000_000, "P"),
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    match SUFFIXES.into_iter().find(|(unit, _)| value >= *unit && value >= 10_000) {
        Some((unit, suffix)) => with_decimals(value, unit, suffix),
        None => value.to_string(),
    }
}

/// `value / unit` with at most one decimal, cut and not rounded.
fn with_decimals(value: u64, unit: u64, suffix: &str) -> String {
    match value % unit / (unit / 10) {
        0 => format!("{}{suffix}", value / unit),
        tenth => format!("{}.{tenth}{suffix}", value / unit),
    }
}

fn two_parts(value: u64, per: u64, [large, small]: [&str; 2]) -> String {
    match value % per {
        0 => format!("{} {large}", value / per),
        rest => format!("{} {large} {rest} {small}", value / per),
    }
}
