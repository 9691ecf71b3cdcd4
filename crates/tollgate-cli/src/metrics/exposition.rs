//! The page that Prometheus reads, in either of its two formats: text 0.0.4 and OpenMetrics 1.0.
//!
//! Written by hand: crates for these formats either support one of them only, or own every counter, while
//! ours live where they are counted. The formats differ in little: the name of a counter's family, `info`,
//! units, and the last line.
//!
//! ```text
//! # HELP tollgate_requests_total Requests decided.         # TYPE tollgate_requests counter
//! # TYPE tollgate_requests_total counter                   # HELP tollgate_requests Requests decided.
//! tollgate_requests_total{outcome="allowed"} 7             tollgate_requests_total{outcome="allowed"} 7
//!                                                          # EOF
//! ```

use std::fmt::{self, Write};

use super::histogram::{BOUNDS, HistogramBuckets};

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpositionFormat {
    /// Prometheus text 0.0.4, which all readers understand.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// The media type of the response.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        }
    }
}

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// A number that only grows; its name ends in `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Always 1: its labels carry the information. Its name ends in `_info`.
    Info,
    /// Durations in buckets.
    Histogram,
}

/// A number, kept as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricValue {
    Whole(u64),
    /// Microseconds, written as seconds.
    Micros(u64),
    /// Nanoseconds, written as seconds.
    Nanos(u64),
}

impl From<u64> for MetricValue {
    fn from(number: u64) -> MetricValue {
        MetricValue::Whole(number)
    }
}

impl From<usize> for MetricValue {
    fn from(number: usize) -> MetricValue {
        MetricValue::Whole(number as u64)
    }
}

impl From<bool> for MetricValue {
    fn from(yes: bool) -> MetricValue {
        MetricValue::Whole(yes.into())
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MICROS: u64 = 1_000_000;
        const NANOS: u64 = 1_000_000_000;
        match *self {
            MetricValue::Whole(number) => write!(f, "{number}"),
            MetricValue::Micros(us) => write!(f, "{}.{:06}", us / MICROS, us % MICROS),
            MetricValue::Nanos(ns) => write!(f, "{}.{:09}", ns / NANOS, ns % NANOS),
        }
    }
}

/// A label and its value.
pub(crate) type MetricLabel<'a> = (&'static str, &'a str);

/// A page that is being written. Bound: the families are fixed, and the one with labels from outside, that
/// of the rules, is bounded.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    format: ExpositionFormat,
    text: String,
}

/// A family that takes samples.
pub(crate) struct MetricFamily<'a> {
    page: &'a mut MetricsPage,
    name: &'static str,
}

impl MetricsPage {
    pub(crate) fn new(format: ExpositionFormat) -> MetricsPage {
        MetricsPage { format, text: String::with_capacity(16 << 10) }
    }

    /// Begins a family; `name` is the name of its samples, with `_total` or `_info`.
    pub(crate) fn family(
        &mut self,
        name: &'static str,
        kind: MetricKind,
        help: &str,
    ) -> MetricFamily<'_> {
        let (family, kind) = match (self.format, kind) {
            (ExpositionFormat::Text, MetricKind::Info) => (name, "gauge"),
            (ExpositionFormat::OpenMetrics, MetricKind::Info) => {
                (name.trim_end_matches("_info"), "info")
            }
            (ExpositionFormat::OpenMetrics, MetricKind::Counter) => {
                (name.trim_end_matches("_total"), "counter")
            }
            (_, MetricKind::Counter) => (name, "counter"),
            (_, MetricKind::Gauge) => (name, "gauge"),
            (_, MetricKind::Histogram) => (name, "histogram"),
        };
        let unit = ["seconds", "bytes"].into_iter().find(|unit| {
            self.format == ExpositionFormat::OpenMetrics
                && family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_'))
        });
        self.line(format_args!("# HELP {family} {help}"));
        self.line(format_args!("# TYPE {family} {kind}"));
        if let Some(unit) = unit {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
        MetricFamily { page: self, name }
    }

    /// Writes a family of one sample without labels.
    pub(crate) fn single_sample(
        &mut self,
        name: &'static str,
        kind: MetricKind,
        value: impl Into<MetricValue>,
        help: &str,
    ) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// Returns the whole page.
    pub(crate) fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.line(format_args!("# EOF"));
        }
        self.text
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }
}

impl MetricFamily<'_> {
    /// Writes a sample.
    pub(crate) fn sample(
        &mut self,
        labels: &[MetricLabel<'_>],
        value: impl Into<MetricValue>,
    ) -> &mut Self {
        self.write("", labels, value.into());
        self
    }

    /// Writes the samples of a histogram.
    pub(crate) fn buckets(&mut self, buckets: &HistogramBuckets) {
        let bounds = BOUNDS.iter().map(|(_, spelt)| *spelt).chain(["+Inf"]);
        for (bound, count) in bounds.zip(buckets.cumulative) {
            self.write("_bucket", &[("le", bound)], count.into());
        }
        let all = buckets.cumulative.last().copied().unwrap_or_default();
        self.write("_sum", &[], MetricValue::Nanos(buckets.sum_ns));
        self.write("_count", &[], all.into());
    }

    /// Writes the samples of a histogram with bounds of its own: each bound in seconds, with the number of values up to
    /// it. The last bound is `+Inf`.
    pub(crate) fn buckets_of(
        &mut self,
        cumulative: impl Iterator<Item = (&'static str, u64)>,
        sum_us: u64,
    ) {
        let mut all = 0;
        for (bound, count) in cumulative {
            self.write("_bucket", &[("le", bound)], count.into());
            all = count;
        }
        self.write("_sum", &[], MetricValue::Micros(sum_us));
        self.write("_count", &[], all.into());
    }

    fn write(&mut self, suffix: &str, labels: &[MetricLabel<'_>], value: MetricValue) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            text.push(if index == 0 { '{' } else { ',' });
            text.push_str(name);
            text.push_str("=\"");
            push_escaped(text, value);
            text.push('"');
        }
        if !labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

/// Appends a label's value; both formats escape the same three characters.
fn push_escaped(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::histogram::Histogram;

    fn page(format: ExpositionFormat) -> String {
        let mut page = MetricsPage::new(format);
        page.family("a_total", MetricKind::Counter, "Help.")
            .sample(&[("rule", "x\\y\"z\nü"), ("outcome", "b")], 7_u64)
            .sample(&[], u64::MAX);
        page.single_sample("b_seconds", MetricKind::Gauge, MetricValue::Micros(1_500_001), "Help.");
        page.single_sample("b_bytes_total", MetricKind::Counter, 3_usize, "Help.");
        page.single_sample("c", MetricKind::Gauge, true, "Help.");
        page.family("d_info", MetricKind::Info, "Help.").sample(&[("version", "1")], 1_u64);
        page.finish()
    }

    #[test]
    fn the_two_formats_differ_where_they_have_to() {
        let text = "# HELP a_total Help.\n# TYPE a_total counter\n\
            a_total{rule=\"x\\\\y\\\"z\\nü\",outcome=\"b\"} 7\na_total 18446744073709551615\n\
            # HELP b_seconds Help.\n# TYPE b_seconds gauge\nb_seconds 1.500001\n\
            # HELP b_bytes_total Help.\n# TYPE b_bytes_total counter\nb_bytes_total 3\n\
            # HELP c Help.\n# TYPE c gauge\nc 1\n\
            # HELP d_info Help.\n# TYPE d_info gauge\nd_info{version=\"1\"} 1\n";
        assert_eq!(page(ExpositionFormat::Text), text);
        let open = "# HELP a Help.\n# TYPE a counter\n\
            a_total{rule=\"x\\\\y\\\"z\\nü\",outcome=\"b\"} 7\na_total 18446744073709551615\n\
            # HELP b_seconds Help.\n# TYPE b_seconds gauge\n# UNIT b_seconds seconds\n\
            b_seconds 1.500001\n\
            # HELP b_bytes Help.\n# TYPE b_bytes counter\n# UNIT b_bytes bytes\nb_bytes_total 3\n\
            # HELP c Help.\n# TYPE c gauge\nc 1\n\
            # HELP d Help.\n# TYPE d info\nd_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(page(ExpositionFormat::OpenMetrics), open);
    }

    #[test]
    fn a_histogram_has_its_buckets_its_sum_and_its_count() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_nanos(300), 1);
        histogram.observe(Duration::from_secs(2), 1);
        let mut page = MetricsPage::new(ExpositionFormat::Text);
        page.family("a_seconds", MetricKind::Histogram, "Help.").buckets(&histogram.buckets());
        let page = page.finish();
        let lines: Vec<_> = page.lines().collect();
        assert_eq!(lines.len(), 2 + BOUNDS.len() + 3);
        assert_eq!(
            lines[2..4],
            ["a_seconds_bucket{le=\"2.5e-07\"} 0", "a_seconds_bucket{le=\"5e-07\"} 1"]
        );
        assert_eq!(
            lines[lines.len() - 3..],
            ["a_seconds_bucket{le=\"+Inf\"} 2", "a_seconds_sum 2.000000300", "a_seconds_count 2"]
        );
    }
}
