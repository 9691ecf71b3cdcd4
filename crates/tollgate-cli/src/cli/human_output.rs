//! Output for people: text of a server made safe for a terminal, waits, tables.

use tollgate::Wait;

use crate::telemetry::Printable;

/// Characters of one piece of a message: fewer than [`Printable`] shows whole.
const PIECE_CHARS: usize = 200;

/// A value, escaped, and shortened if it is long.
pub(crate) fn printable(text: &str) -> String {
    Printable(text).to_string()
}

/// A message, escaped. It is not shortened, because the advice is often at its end.
pub(crate) fn printable_whole(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let pieces = chars.chunks(PIECE_CHARS).map(String::from_iter);
    pieces.map(|piece| printable(&piece)).collect()
}

/// At most `lines_max` lines, escaped.
pub(crate) fn lines(text: &str, lines_max: usize) -> String {
    let mut shown: Vec<String> = text.lines().take(lines_max).map(printable_whole).collect();
    if text.lines().nth(lines_max).is_some() {
        shown.push("…".into());
    }
    shown.join("\n")
}

/// A wait in milliseconds; `None` means for ever.
pub(crate) fn wait(wait_ms: Option<u64>) -> String {
    let wait = wait_ms.map(|ms| Wait::from_micros(ms.saturating_mul(1_000)));
    wait.unwrap_or(Wait::NEVER).to_string()
}

/// A table with a header. Empty columns are left out.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(String::from);
    let used: [bool; N] = std::array::from_fn(|n| rows.iter().any(|row| !row[n].is_empty()));
    let rows: Vec<_> = std::iter::once(&head).chain(rows).collect();
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = (0..N).filter(|&n| used[n]).map(|n| format!("{:<1$}", row[n], widths[n]));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_does_not_drive_the_terminal() {
        let long = "x".repeat(300);
        assert_eq!(printable("a\x1b[2J\u{202e}b"), r"a\u{1b}[2J\u{202e}b");
        assert_eq!(printable(&long).chars().count(), 257, "cut");
        assert_eq!(printable_whole(&format!("{long}\x07")), format!(r"{long}\u{{7}}"));
        assert_eq!(lines("a\r\nb\x08\nc\nd", 3), "a\nb\\u{8}\nc\n…");
        assert_eq!(lines("a\nb\n", 2), "a\nb");
    }

    #[test]
    fn columns_without_a_value_are_left_out() {
        let rows = [["a", "", "1"], ["longer", "", ""]].map(|row| row.map(String::from));
        assert_eq!(table(["name", "none", "n"], &rows), "  name    n\n  a       1\n  longer\n");
    }
}
