//! The highest counts that the tests accept, in the file `testkit/instructions.txt`.
//!
//! The file has what was measured with the `ci` profile, and a count may be `MARGIN_PERCENT` higher: enough for
//! another compiler or library version, too little for a new copy or allocation per request.

use std::fmt::Write;
use std::fs;

use super::InstructionCount;

/// The file, in the source folder of this crate.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

/// Percentage by which a count may exceed the measured one.
const MARGIN_PERCENT: f64 = 10.0;

const HEADER: &str = "\
# Instructions per decision, measured with the `ci` profile on x86-64. A test fails if a path costs 10 % more.
# `cargo xtask instructions --write` measures again and writes this file.
";

/// Compares counts with the file and panics if one is too high; writes the file instead if `TOLLGATE_BLESS` is set.
///
/// # Panics
///
/// If a count is above its ceiling, or a path has none.
pub fn check(counts: &[InstructionCount]) {
    let text = fs::read_to_string(FILE).unwrap_or_default();
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(FILE, updated(&text, counts)).expect("the file can be written");
        return;
    }
    let problems: Vec<String> = counts.iter().filter_map(|count| problem(&text, count)).collect();
    assert!(
        problems.is_empty(),
        "{}\nTo see where they go: `cargo xtask instructions --help`. If the cost is justified, \
         `cargo xtask instructions --write` raises the ceilings; say why in the commit.",
        problems.join("\n")
    );
}

/// The complaint about a count that is too high or has no ceiling.
fn problem(text: &str, count: &InstructionCount) -> Option<String> {
    let InstructionCount { path, instructions } = count;
    let Some((_, measured)) = rows(text).find(|(name, _)| name == path) else {
        return Some(format!("{path}: {instructions:.0} instructions, and no ceiling"));
    };
    let ceiling = measured * (1.0 + MARGIN_PERCENT / 100.0);
    let more = (instructions / measured - 1.0) * 100.0;
    (*instructions > ceiling).then(|| {
        format!(
            "{path}: {instructions:.0} instructions per decision, {more:.1} % more than the \
             {measured:.0} in testkit/instructions.txt; at most {MARGIN_PERCENT} % are accepted"
        )
    })
}

/// The names and numbers in the file.
fn rows(text: &str) -> impl Iterator<Item = (&str, f64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (name, number) = line.rsplit_once(' ')?;
        Some((name.trim_end(), number.parse().ok()?))
    })
}

/// The text of the file with these counts in place of the old ones. Paths that are not counted here keep theirs.
fn updated(text: &str, counts: &[InstructionCount]) -> String {
    let new = counts.iter().map(|count| (count.path, count.instructions));
    let kept = rows(text).filter(|(name, _)| counts.iter().all(|count| count.path != *name));
    let mut rows: Vec<(&str, f64)> = kept.chain(new).collect();
    rows.sort_by_key(|(name, _)| *name);
    let mut text = String::from(HEADER);
    for (name, number) in rows {
        writeln!(text, "{name:<30} {number:>8.0}").expect("strings take all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &'static str, instructions: f64) -> InstructionCount {
        InstructionCount { path, instructions }
    }

    #[test]
    fn a_count_may_be_a_little_higher() {
        let text = updated("", &[count("a, b", 1_000.0), count("c", 50.0)]);
        let rows = [
            (count("a, b", 1_099.0), None),
            (count("a, b", 1_101.0), Some("10.1 % more than the 1000")),
            (count("c", 1.0), None),
            (count("d", 1.0), Some("no ceiling")),
        ];
        for (count, expected) in rows {
            let problem = problem(&text, &count);
            match expected {
                None => assert_eq!(problem, None),
                Some(part) => assert!(problem.expect("too much").contains(part), "{count:?}"),
            }
        }
    }

    #[test]
    fn new_counts_replace_their_own_rows_only() {
        let first = updated("", &[count("b", 2.0), count("a", 1.0)]);
        let second = updated(&first, &[count("b", 3.0)]);
        assert_eq!(rows(&second).collect::<Vec<_>>(), [("a", 1.0), ("b", 3.0)]);
        assert_eq!(updated(&second, &[]), second);
    }
}
