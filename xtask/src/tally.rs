//! The numbers of passed and failed tests, read from the output of the test runners.
//!
//! Both formats are for people and may change; the tests below hold a line of each kind that the
//! runners print today. A runner that ends badly without a summary is counted by `test.rs`.

use std::fmt;
use std::ops::Add;

/// Passed and failed tests. Skipped ones are in neither number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestTally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that passed only when they were repeated, as nextest lists them.
    pub(crate) flaky: Vec<String>,
}

/// The test runner whose output is read. nextest prints the output of a failing test with libtest's result line,
/// so the two formats must not be read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestRunner {
    Libtest,
    Nextest,
}

impl TestTally {
    /// The results in one line of output, or `None` for any line that has none.
    pub(crate) fn from_line(runner: TestRunner, line: &str) -> Option<Self> {
        let line = without_colours(line);
        match runner {
            // test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; …
            TestRunner::Libtest => {
                let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
                Some(Self::sum(counts.split(';')))
            }
            //      Summary [   5.009s] 4 tests run: 2 passed (1 slow), 1 failed, 1 timed out
            //    FLAKY 2/3 [   0.004s] (1/2) tollgate-cli::suite resp::wire::reads_all
            TestRunner::Nextest => {
                let line = line.trim();
                if let Some(flaky) = line.strip_prefix("FLAKY ") {
                    return Some(Self { flaky: vec![flaky.to_owned()], ..Self::default() });
                }
                let (_tests, counts) = line.strip_prefix("Summary [")?.split_once(" run: ")?;
                Some(Self::sum(counts.split(',')))
            }
        }
    }

    /// Adds up parts such as `2 passed (1 slow)`, `1 failed`, `1 timed out`; others do not count.
    fn sum<'a>(parts: impl Iterator<Item = &'a str>) -> Self {
        let mut tally = Self::default();
        for part in parts {
            let Some((count, what)) = part.trim().split_once(' ') else { continue };
            let Ok(count) = count.parse::<u64>() else { continue };
            if what.starts_with("passed") {
                tally.passed += count;
            } else if ["failed", "timed out", "exec failed"].iter().any(|it| what.starts_with(it)) {
                tally.failed += count;
            }
        }
        tally
    }
}

impl Add for TestTally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        let new = other.flaky.into_iter().filter(|line| !self.flaky.contains(line));
        let new = new.collect::<Vec<_>>();
        self.flaky.extend(new);
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed, ..self }
    }
}

impl fmt::Display for TestTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Drops terminal colour sequences: ESC, `[`, parameters, and the letter that ends them.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64) -> TestTally {
        TestTally { passed, failed, ..TestTally::default() }
    }

    /// Each row: a line of output, and the (passed, failed) in it if it is a summary.
    fn check(runner: TestRunner, rows: &[(&str, Option<(u64, u64)>)]) {
        for (line, expected) in rows {
            let expected = expected.map(|(passed, failed)| counts(passed, failed));
            assert_eq!(TestTally::from_line(runner, line), expected, "{runner:?}: {line:?}");
        }
    }

    #[test]
    fn reads_libtest() {
        let rows = [
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered\n",
                Some((3, 0)),
            ),
            ("test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured\n", Some((12, 2))),
            ("test result: \u{1b}[32mok\u{1b}[m. 7 passed; 0 failed; 0 ignored\n", Some((7, 0))),
            ("    test result: ok. 9 passed; 0 failed\n", None), // quoted by someone else
            ("test tally::tests::reads_libtest ... ok\n", None),
            ("running 3 tests\n", None),
            ("     Summary [   0.006s] 3 tests run: 3 passed, 0 skipped\n", None),
            ("", None),
        ];
        check(TestRunner::Libtest, &rows);
    }

    #[test]
    fn reads_nextest() {
        let rows = [
            (" Summary [   0.006s] 3 tests run: 3 passed, 0 skipped\n", Some((3, 0))),
            (" Summary [   3.007s] 1 test run: 1 passed (1 slow), 4 skipped\n", Some((1, 0))),
            (" Summary [   5.0s] 4 tests run: 2 passed, 1 failed, 1 timed out\n", Some((2, 2))),
            (
                " Summary [   5.0s] 5 tests run: 3 passed (1 slow, 2 flaky), 2 exec failed",
                Some((3, 2)),
            ),
            (" Summary [   0.1s] 1/4 tests run: 0 passed, 1 failed, 1 skipped\n", Some((0, 1))),
            (
                "\u{1b}[31;1m Summary\u{1b}[0m [ 3s] 1 test run: 1 \u{1b}[31mfailed\u{1b}[0m\n",
                Some((0, 1)),
            ),
            ("    test result: FAILED. 0 passed; 1 failed; 0 ignored\n", None),
            ("        PASS [   0.006s] (3/4) tollgate limit::tests::builds\n", None),
            ("", None),
        ];
        check(TestRunner::Nextest, &rows);
    }

    #[test]
    fn flaky_tests_are_listed_once() {
        let line = "   \u{1b}[33mFLAKY 2/3\u{1b}[0m [   0.043s] (2/2) testkit wait::tests::waits\n";
        let flaky = TestTally::from_line(TestRunner::Nextest, line).expect("a flaky test");
        let sum = counts(1, 0) + flaky.clone() + flaky;
        assert_eq!(sum.flaky, ["2/3 [   0.043s] (2/2) testkit wait::tests::waits"]);
        assert_eq!((sum.passed, sum.failed), (1, 0));
        let quoted = "  TRY 2 PASS [   0.043s] (2/2) testkit wait::tests::waits\n";
        assert_eq!(TestTally::from_line(TestRunner::Nextest, quoted), None);
        assert_eq!(TestTally::from_line(TestRunner::Libtest, line), None);
    }

    #[test]
    fn adds_up_and_prints_plainly() {
        let sum = counts(40, 1) + counts(2, 0);
        assert_eq!(sum.to_string(), "42 passed, 1 failed");
    }
}
