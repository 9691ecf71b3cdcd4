//! The page that Prometheus reads, in either of its two formats: text 0.0.4 and OpenMetrics 1.0.
//!
//! Written by hand: the crates that know these formats either speak one of them only, or want every
//! counter to be theirs, while ours live where they are counted. The formats differ in little: what a
//! counter's family is called, what an `info` is, units, and the last line.
//!
//! ```text
//! # HELP tollgate_requests_total Requests decided.         # TYPE tollgate_requests counter
//! # TYPE tollgate_requests_total counter                   # HELP tollgate_requests Requests decided.
//! tollgate_requests_total{outcome="allowed"} 7             tollgate_requests_total{outcome="allowed"} 7
//!                                                          # EOF
//! ```

use std::fmt::{self, Write};

use super::histogram::{BOUNDS, Buckets};

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus text 0.0.4: what everything understands.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The media type, as it is answered.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the numbers of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1, for what its labels say; its name ends in `_info`.
    Info,
    /// Durations in buckets.
    Histogram,
}

/// A number, kept whole as long as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Whole(u64),
    /// Seconds in millionths.
    Micros(u64),
    /// Seconds in billionths.
    Nanos(u64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Whole(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Whole(number as u64)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Value {
        Value::Whole(yes.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MICROS: u64 = 1_000_000;
        const NANOS: u64 = 1_000_000_000;
        match *self {
            Value::Whole(number) => write!(f, "{number}"),
            Value::Micros(us) => write!(f, "{}.{:06}", us / MICROS, us % MICROS),
            Value::Nanos(ns) => write!(f, "{}.{:09}", ns / NANOS, ns % NANOS),
        }
    }
}

/// A label and its value.
pub(crate) type Label<'a> = (&'static str, &'a str);

/// A page under way. Bound: what its families write; the only family whose labels come from
/// somewhere else is that of the rules, and it counts them.
#[derive(Debug)]
pub(crate) struct Page {
    format: Format,
    text: String,
}

/// A family whose samples follow.
pub(crate) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    pub(crate) fn new(format: Format) -> Page {
        Page { format, text: String::with_capacity(16 << 10) }
    }

    /// Begins a family; `name` is that of its samples, with `_total` or `_info`.
    pub(crate) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let (family, kind) = match (self.format, kind) {
            (Format::Text, Kind::Info) => (name, "gauge"),
            (Format::OpenMetrics, Kind::Info) => (name.trim_end_matches("_info"), "info"),
            (Format::OpenMetrics, Kind::Counter) => (name.trim_end_matches("_total"), "counter"),
            (_, Kind::Counter) => (name, "counter"),
            (_, Kind::Gauge) => (name, "gauge"),
            (_, Kind::Histogram) => (name, "histogram"),
        };
        let unit = ["seconds", "bytes"].into_iter().find(|unit| {
            self.format == Format::OpenMetrics
                && family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_'))
        });
        self.line(format_args!("# HELP {family} {help}"));
        self.line(format_args!("# TYPE {family} {kind}"));
        if let Some(unit) = unit {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
        Family { page: self, name }
    }

    /// A family of one sample without labels.
    pub(crate) fn one(
        &mut self,
        name: &'static str,
        kind: Kind,
        value: impl Into<Value>,
        help: &str,
    ) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// The whole page.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
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

impl Family<'_> {
    /// One more sample.
    pub(crate) fn sample(&mut self, labels: &[Label<'_>], value: impl Into<Value>) -> &mut Self {
        self.write("", labels, value.into());
        self
    }

    /// The samples of a histogram.
    pub(crate) fn buckets(&mut self, buckets: &Buckets) {
        let bounds = BOUNDS.iter().map(|(_, spelt)| *spelt).chain(["+Inf"]);
        for (bound, count) in bounds.zip(buckets.up_to) {
            self.write("_bucket", &[("le", bound)], count.into());
        }
        let all = buckets.up_to.last().copied().unwrap_or_default();
        self.write("_sum", &[], Value::Nanos(buckets.sum_ns));
        self.write("_count", &[], all.into());
    }

    fn write(&mut self, suffix: &str, labels: &[Label<'_>], value: Value) {
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

/// A label's value; both formats escape the same three characters.
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

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        page.family("a_total", Kind::Counter, "Help.")
            .sample(&[("rule", "x\\y\"z\nü"), ("outcome", "b")], 7_u64)
            .sample(&[], u64::MAX);
        page.one("b_seconds", Kind::Gauge, Value::Micros(1_500_001), "Help.");
        page.one("b_bytes_total", Kind::Counter, 3_usize, "Help.");
        page.one("c", Kind::Gauge, true, "Help.");
        page.family("d_info", Kind::Info, "Help.").sample(&[("version", "1")], 1_u64);
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
        assert_eq!(page(Format::Text), text);
        let open = "# HELP a Help.\n# TYPE a counter\n\
            a_total{rule=\"x\\\\y\\\"z\\nü\",outcome=\"b\"} 7\na_total 18446744073709551615\n\
            # HELP b_seconds Help.\n# TYPE b_seconds gauge\n# UNIT b_seconds seconds\n\
            b_seconds 1.500001\n\
            # HELP b_bytes Help.\n# TYPE b_bytes counter\n# UNIT b_bytes bytes\nb_bytes_total 3\n\
            # HELP c Help.\n# TYPE c gauge\nc 1\n\
            # HELP d Help.\n# TYPE d info\nd_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(page(Format::OpenMetrics), open);
    }

    #[test]
    fn a_histogram_has_its_buckets_its_sum_and_its_count() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_nanos(300));
        histogram.observe(Duration::from_secs(2));
        let mut page = Page::new(Format::Text);
        page.family("a_seconds", Kind::Histogram, "Help.").buckets(&histogram.buckets());
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
