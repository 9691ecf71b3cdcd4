//! The table of a comparison: the outcome of the traffic, and what was measured about each limit.

use tollgate::Algorithm;

use super::course::AlgorithmCourse;
use super::measured::{KEYS, MeasuredLimit, measure, requests_per_key};
use super::traffic::{TrafficTrace, counted};
use crate::chart::ChartUnit;
use crate::cli::human_output::table;

/// Both tables as text.
pub(super) fn text(traffic: &TrafficTrace, courses: &[AlgorithmCourse]) -> String {
    let limits: Vec<_> = courses.iter().map(|course| &course.limit).collect();
    let measured = measure(&limits);
    let Some(first) = limits.first() else { return String::new() };
    let period = ChartUnit::Micros.label(first.period_us());
    let has_uncounted = measured.iter().any(|limit| limit.attacked.is_none());
    let uncounted = if has_uncounted { "-: counting it takes too many requests.\n" } else { "" };
    format!(
        "{}\n\n{}\nA limit of {}, measured in this run\n\n{}\n\
         at once: served at one instant after silence. Worst {period}: served to one who takes all at the\n\
         end of a window and then whatever is given. Bytes: allocated for {KEYS} keys, each with {requests}\n\
         in use. Ns: an allowed check of one of them on this machine, one thread.\n{uncounted}",
        traffic.summary(),
        of_traffic(courses, &period),
        first.rate(),
        of_limits(courses, &measured, &period),
        requests = counted(requests_per_key(first), "unit"),
    )
}

/// The outcome of the traffic.
fn of_traffic(courses: &[AlgorithmCourse], period: &str) -> String {
    let exact = courses.iter().find(|one| one.limit.algorithm() == Algorithm::SlidingWindowLog);
    let exact = exact.map(|course| course.admitted_units());
    let rows: Vec<[String; 7]> = courses
        .iter()
        .map(|course| {
            let [at_once, delayed, refused] = course.counts();
            let longest = course.longest_delay_us();
            [
                course.name(),
                (at_once + delayed).to_string(),
                refused.to_string(),
                if delayed > 0 { delayed.to_string() } else { "-".into() },
                if delayed > 0 { ChartUnit::Micros.label(longest) } else { "-".into() },
                exact.map_or_else(String::new, |exact| percent(course.admitted_units(), exact)),
                course.most_in_a_period().to_string(),
            ]
        })
        .collect();
    let most = format!("most in any {period}");
    let head = ["", "admitted", "refused", "delayed", "longest delay", "of the log", &most];
    aligned(head, rows)
}

/// The measurements of the limits.
fn of_limits(courses: &[AlgorithmCourse], measured: &[MeasuredLimit], period: &str) -> String {
    let rows: Vec<[String; 5]> = courses
        .iter()
        .zip(measured)
        .map(|(course, measured)| {
            [
                course.name(),
                measured.at_once.map_or_else(|| "-".into(), |units| units.to_string()),
                measured.attacked.map_or_else(|| "-".into(), |units| units.to_string()),
                measured.bytes_per_key.to_string(),
                measured.ns_per_check.to_string(),
            ]
        })
        .collect();
    let most = format!("worst {period}");
    aligned(["", "at once", &most, "bytes per key", "ns per check"], rows)
}

/// A table whose columns, except the first, are aligned to the right.
fn aligned<const N: usize>(head: [&str; N], mut rows: Vec<[String; N]>) -> String {
    let mut head = head.map(String::from);
    for column in 1..N {
        let cells = rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
        let Some(width) = cells.map(|cell| cell.chars().count()).max() else { continue };
        let width = width.max(head[column].chars().count());
        for cell in rows.iter_mut().map(|row| &mut row[column]).chain([&mut head[column]]) {
            *cell = format!("{cell:>width$}");
        }
    }
    table(head.each_ref().map(String::as_str), &rows)
}

/// `part` in per cent of `whole` with one decimal, cut.
fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1_000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}
