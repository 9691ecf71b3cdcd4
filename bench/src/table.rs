//! Tables: aligned text for people, Markdown for pages.

use std::fmt;

/// The format of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableStyle {
    /// Aligned columns.
    #[default]
    Text,
    /// Aligned columns with bars.
    Markdown,
}

impl TableStyle {
    /// Markdown if the option `--markdown` was given.
    pub fn from_flag(markdown: bool) -> TableStyle {
        if markdown { TableStyle::Markdown } else { TableStyle::Text }
    }
}

/// A table: the first column is text, the others are numbers, aligned to the right.
#[derive(Debug)]
pub struct BenchTable {
    title: String,
    style: TableStyle,
    rows: Vec<Vec<String>>,
}

impl BenchTable {
    /// A table without rows.
    pub fn new(title: impl Into<String>, style: TableStyle, columns: &[&str]) -> BenchTable {
        let head = columns.iter().map(|&column| column.to_owned()).collect();
        BenchTable { title: title.into(), style, rows: vec![head] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

impl fmt::Display for BenchTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let (open, between, close, heading) = match self.style {
            TableStyle::Text => ("", "  ", "", ""),
            TableStyle::Markdown => ("| ", " | ", " |", "### "),
        };
        writeln!(f, "{heading}{}\n", self.title)?;
        for (index, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            let line = cells.collect::<Vec<_>>().join(between);
            writeln!(f, "{}", format!("{open}{line}{close}").trim_end())?;
            if index == 0 {
                let rules = widths.iter().enumerate().map(|(column, &width)| {
                    let rule = "-".repeat(width);
                    match (self.style, column) {
                        (TableStyle::Markdown, 1..) => format!("{}:", &rule[1..]),
                        _ => rule,
                    }
                });
                writeln!(f, "{open}{}{close}", rules.collect::<Vec<_>>().join(between))?;
            }
        }
        Ok(())
    }
}

/// Formats a number with three significant digits: `9.87`, `46.5`, `1,234`.
pub fn figures(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => thousands(value.round() as u64),
    }
}

/// Formats `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a ratio as `6.1x`, or as `-` if one side was not measured.
pub fn ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{}x", figures(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let table = |style| {
            let mut table = BenchTable::new("Speed", style, &["limiter", "ns"]);
            table.row(["a".into(), "9.9".into()]);
            table.row(["tollgate".into(), "10".into()]);
            table.to_string()
        };
        let text = "Speed\n\nlimiter    ns\n--------  ---\na         9.9\ntollgate   10\n";
        assert_eq!(table(TableStyle::Text), text);
        let markdown = "### Speed\n\n| limiter  |  ns |\n| -------- | --: |\n\
                        | a        | 9.9 |\n| tollgate |  10 |\n";
        assert_eq!(table(TableStyle::Markdown), markdown);
    }

    #[test]
    fn numbers_read_well() {
        let shown = [0.456, 9.99, 9.999, 46.51, 99.96, 1_234.4].map(figures);
        assert_eq!(shown, ["0.46", "9.99", "10.0", "46.5", "100", "1,234"]);
        assert_eq!([0, 999, 1_000, 12_345_678].map(thousands), ["0", "999", "1,000", "12,345,678"]);
    }
}
