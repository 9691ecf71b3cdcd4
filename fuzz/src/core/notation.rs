//! Rates and periods as text: nothing panics, and what is shown reads back as the same limit.

use tollgate::limit::{parse_period, parse_rate};
use tollgate::{Algorithm, Limit, Precision};

use super::source::FuzzSource;

/// The bytes as text, as choices of pieces that rates are made of, and as numbers.
pub fn notation(bytes: &[u8]) {
    read_back(&String::from_utf8_lossy(bytes));
    let mut source = FuzzSource::new(bytes);
    let mut text = String::new();
    while !source.is_empty() && text.len() < 64 {
        match source.below(4) {
            0 => text.push_str(&source.number().to_string()),
            _ => text.push_str(PIECES[source.below(PIECES.len())]),
        }
    }
    read_back(&text);
    let mut source = FuzzSource::new(bytes);
    if let Ok(limit) = source.builder().build() {
        shown_reads_back(&limit);
    }
}

const PIECES: [&str; 30] = [
    "/", " per ", " burst ", "per", "burst", " ", "", ".", "-", "us", "ms", "s", "m", "h", "d",
    "w", "second", "minute", "hours", "day", "week", "month", "0", "1", "5", "10", "100", "0.4",
    "µ", "１",
];

fn read_back(text: &str) {
    if let Ok(period) = parse_period(text) {
        let again = format!("{}us", period.as_micros());
        assert_eq!(parse_period(&again), Ok(period), "{text:?}");
    }
    let Ok(builder) = parse_rate(text) else { return };
    if let Ok(limit) = builder.build() {
        shown_reads_back(&limit);
    }
}

/// The short form reads back; what needs words beside it is not a rate and must not pass for one.
fn shown_reads_back(limit: &Limit) {
    let shown = limit.to_string();
    let short = match limit.algorithm() {
        Algorithm::TokenBucket => true,
        Algorithm::SlidingWindowCounter => limit.precision() == Precision::Estimate,
        _ => false,
    };
    match shown.parse::<Limit>() {
        Ok(read) if short => {
            assert_eq!(read.to_string(), shown);
            let numbers = |it: &Limit| (it.algorithm(), it.units(), it.period(), it.capacity());
            assert_eq!(numbers(&read), numbers(limit), "{shown}");
        }
        Ok(read) => panic!("{shown} of {} reads as {}", limit.algorithm(), read.algorithm()),
        Err(error) => assert!(!short, "{shown} does not read back: {error}"),
    }
}
