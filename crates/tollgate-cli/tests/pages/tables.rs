//! Tables of measurements name the command that prints them.

use std::fs;
use std::ops::Range;

use super::{all_pages, repository};

/// The beginnings of commands that measure.
const MEASURING: [&str; 5] = [
    "`cargo xtask ",
    "`cargo nextest run ",
    "`cargo test ",
    "`tollgate simulate ",
    "`tollgate bench ",
];

/// The tables of measurements whose section names no command, by the line of their heading.
///
/// A table shows measurements if most cells of a column have a decimal fraction; whole numbers may be codes or bounds.
fn unexplained_tables(page: &str) -> Vec<usize> {
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    for section in sections(&lines) {
        let text = &lines[section.clone()];
        let is_named = text.iter().any(|line| MEASURING.iter().any(|begin| line.contains(begin)));
        let tables = text.chunk_by(|one, next| is_row(one) == is_row(next));
        let mut line = section.start + 1;
        for chunk in tables {
            if is_row(chunk[0]) && shows_measurements(chunk) && !is_named {
                found.push(line);
            }
            line += chunk.len();
        }
    }
    found
}

/// The parts of a page between headings of the second level. Headings below belong to their section.
fn sections(lines: &[&str]) -> Vec<Range<usize>> {
    let starts = (0..lines.len()).filter(|&index| index == 0 || lines[index].starts_with("## "));
    let starts: Vec<usize> = starts.collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}

fn is_row(line: &str) -> bool {
    line.starts_with('|')
}

/// `table` begins with the heading and the rule below it.
fn shows_measurements(table: &[&str]) -> bool {
    let rows = table.get(2..).unwrap_or_default();
    let columns = rows.first().map_or(0, |row| row.split('|').count());
    (2..columns).any(|column| {
        let cells = rows.iter().filter_map(|row| row.split('|').nth(column));
        cells.filter(|cell| begins_with_a_fraction(cell.trim())).count() * 2 > rows.len()
    })
}

/// Returns true for `0.94 (0.75–1.19)` and `16.9 ms`, false for `10,000`, `0.1.0` and words.
fn begins_with_a_fraction(cell: &str) -> bool {
    let number = cell.split([' ', '(', ';']).next().unwrap_or_default();
    number.contains('.') && number.replace(',', "").parse::<f64>().is_ok()
}

#[test]
fn every_table_of_measurements_names_a_command() {
    let mut tables = Vec::new();
    for page in all_pages() {
        let text = fs::read_to_string(repository().join(&page)).expect("a page");
        tables.extend(unexplained_tables(&text).into_iter().map(|line| format!("{page}:{line}")));
    }
    assert!(
        tables.is_empty(),
        "name the command that prints these figures, or write a sentence: {tables:?}"
    );
}

#[test]
fn tables_of_measurements_are_told_from_others() {
    let figures = "| a | µs |\n|---|---|\n| x | 1.5 (±2 %) |\n| y | 2.25 |\n";
    let codes = "| a | code |\n|---|---|\n| x | 200 |\n| y | 0.1.0 |\n";
    let page = format!("# A\n`cargo xtask bench`\n\n{figures}\n## B\n{codes}\n### C\n{figures}");
    assert_eq!(unexplained_tables(&page), [16]);
    assert_eq!(
        unexplained_tables(&format!("## B\nBy `cargo xtask errors`:\n### C\n{figures}")),
        [0; 0]
    );
}
