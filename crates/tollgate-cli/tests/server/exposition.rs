//! A strict reader of both formats that `/metrics` speaks, written from their descriptions. Whatever
//! is not exactly right fails the test.

use std::collections::{BTreeMap, BTreeSet};

/// A page that was read: families in order.
#[derive(Debug)]
pub(crate) struct ParsedExposition {
    pub(crate) families: Vec<ParsedFamily>,
}

#[derive(Debug, Default)]
pub(crate) struct ParsedFamily {
    /// As its `TYPE` line has it.
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) unit: Option<String>,
    pub(crate) samples: Vec<ParsedSample>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParsedSample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl ParsedExposition {
    /// Prometheus text 0.0.4.
    pub(crate) fn of_text(text: &str) -> ParsedExposition {
        assert!(text.ends_with('\n') && !text.contains("# EOF") && !text.contains("# UNIT"));
        ParsedExposition::read(text, false)
    }

    /// OpenMetrics 1.0.
    pub(crate) fn of_open_metrics(text: &str) -> ParsedExposition {
        let body = text.strip_suffix("# EOF\n").expect("the page ends with its end");
        assert!(!body.contains("# EOF"));
        ParsedExposition::read(body, true)
    }

    fn read(text: &str, open: bool) -> ParsedExposition {
        let mut families: Vec<ParsedFamily> = Vec::new();
        let mut series = BTreeSet::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                describe(&mut families, comment);
                continue;
            }
            let sample = read_sample(line);
            let family = families.last_mut().expect("a family comes before its samples");
            family.check(&sample, open);
            assert!(series.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
            family.samples.push(sample);
        }
        let names: BTreeSet<_> = families.iter().map(|family| &family.name).collect();
        assert_eq!(names.len(), families.len(), "a family stands in one place");
        for family in &families {
            family.check_whole();
        }
        ParsedExposition { families }
    }

    /// All samples.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &ParsedSample> {
        self.families.iter().flat_map(|family| &family.samples)
    }

    /// The value of the one sample with this name and exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let labels: BTreeMap<_, _> = labels.collect();
        let found = self.samples().find(|one| one.name == name && one.labels == labels);
        found.unwrap_or_else(|| panic!("no {name} {labels:?}")).value
    }
}

impl ParsedFamily {
    fn check(&self, sample: &ParsedSample, open: bool) {
        let suffix = sample.name.strip_prefix(&*self.name);
        let suffix = suffix.unwrap_or_else(|| panic!("{sample:?} is not of {}", self.name));
        let fits = match &*self.kind {
            "counter" if open => suffix == "_total",
            "counter" => suffix.is_empty() && self.name.ends_with("_total"),
            "gauge" => suffix.is_empty(),
            "info" => open && suffix == "_info" && sample.value == 1.0,
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            kind => panic!("an unknown kind {kind}"),
        };
        assert!(fits, "{sample:?} in {} of kind {}", self.name, self.kind);
        assert!(sample.value >= 0.0, "{sample:?}");
        if let Some(unit) = &self.unit {
            assert!(self.name.ends_with(&format!("_{unit}")), "{}", self.name);
        }
    }

    fn check_whole(&self) {
        assert!(!self.kind.is_empty() && !self.samples.is_empty(), "{self:?}");
        if self.kind != "histogram" {
            return;
        }
        let of = |suffix: &str| {
            let name = format!("{}{suffix}", self.name);
            self.samples.iter().filter(move |one| one.name == name)
        };
        let bounds: Vec<f64> = of("_bucket").map(|one| read_number(&one.labels["le"])).collect();
        assert!(bounds.is_sorted_by(|a, b| a < b) && bounds.last() == Some(&f64::INFINITY));
        let counts: Vec<f64> = of("_bucket").map(|one| one.value).collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(
            of("_count").map(|one| one.value).collect::<Vec<_>>(),
            counts[counts.len() - 1..]
        );
        assert_eq!(of("_sum").count(), 1);
    }

    /// The name that all its samples have, without what a histogram adds.
    pub(crate) fn sample_name(&self) -> &str {
        match &*self.kind {
            "histogram" => &self.name,
            _ => &self.samples[0].name,
        }
    }

    /// The names of labels, without that of buckets.
    pub(crate) fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|one| one.labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }
}

/// `HELP`, `TYPE` and `UNIT` lines: each once, before the samples, all of one family together.
fn describe(families: &mut Vec<ParsedFamily>, comment: &str) {
    let mut words = comment.splitn(3, ' ');
    let [what, name, rest] = [(); 3].map(|()| words.next().expect("three words"));
    assert!(is_name(name) && !rest.is_empty(), "{comment}");
    if families.last().is_none_or(|family| family.name != name) {
        families.push(ParsedFamily { name: name.into(), ..ParsedFamily::default() });
    }
    let family = families.last_mut().expect("one was pushed");
    assert!(family.samples.is_empty(), "{comment} comes too late");
    match what {
        "HELP" => assert!(!rest.contains(['\\', '"'])),
        "TYPE" => {
            assert!(family.kind.is_empty(), "{comment}");
            family.kind = rest.into();
        }
        "UNIT" => assert!(family.unit.replace(rest.into()).is_none(), "{comment}"),
        _ => panic!("an unknown comment {comment}"),
    }
}

fn read_sample(line: &str) -> ParsedSample {
    let end = line.find(['{', ' ']).expect("a name");
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label");
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (value, after) = read_quoted(after);
            assert!(labels.insert(label.to_string(), value).is_none(), "{line}");
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').expect("the end of the labels");
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').expect("one space before the value");
    ParsedSample { name: name.into(), labels, value: read_number(value) }
}

/// The value of a label up to its closing quote, and what follows.
fn read_quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return (value, &text[index + 1..]),
            '\\' => match chars.next().expect("an escaped character").1 {
                'n' => value.push('\n'),
                c @ ('\\' | '"') => value.push(c),
                c => panic!("\\{c} is no escape"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote in {text}")
}

fn read_number(text: &str) -> f64 {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b".e-".contains(&byte));
    assert!(plain || text == "+Inf", "{text:?} is no number");
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    text.bytes().all(fits) && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

#[test]
fn the_reader_refuses_what_is_wrong() {
    let good = "# HELP a_total b\n# TYPE a_total counter\na_total{x=\"\\\\y\\\"\\n\"} 1\n";
    let page = ParsedExposition::of_text(good);
    assert_eq!(page.value("a_total", &[("x", "\\y\"\n")]), 1.0);
    ParsedExposition::of_open_metrics("# HELP a b\n# TYPE a counter\na_total 1\n# EOF\n");
    let wrong = [
        "a_total 1\n",
        "# HELP a_total b\n# TYPE a_total counter\na_total 1\na_total 1\n",
        "# HELP a_total b\n# TYPE a_total counter\na_total -1\n",
        "# HELP a_total b\n# TYPE a_total counter\na_total 1 2\n",
        "# HELP a_total b\n# TYPE a_total counter\na_total{x=\"y\\\"} 1\n",
        "# HELP a b\n# TYPE a counter\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\n# HELP a b\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a b\n# TYPE a gauge\n",
    ];
    for text in wrong {
        assert!(std::panic::catch_unwind(|| ParsedExposition::of_text(text)).is_err(), "{text}");
    }
    for text in ["# HELP a b\n# TYPE a counter\na 1\n# EOF\n", "# HELP a b\n# TYPE a gauge\na 1\n"]
    {
        assert!(
            std::panic::catch_unwind(|| ParsedExposition::of_open_metrics(text)).is_err(),
            "{text}"
        );
    }
}
