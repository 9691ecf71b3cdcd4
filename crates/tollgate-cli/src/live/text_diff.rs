//! The difference between two versions of rules as text, in the unified format.
//!
//! Lines that both versions begin and end with are left out first. What is between them is compared by the longest
//! common subsequence, if it is small enough for a table; otherwise all of it is shown as removed and added.

use std::fmt::Write;

use tollgate_rules::Source;

/// Most bytes of a difference; the rest is left out.
pub(super) const DIFF_BYTES_MAX: usize = 32 << 10;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Most cells of the table of common lines: 2 MiB, used while a difference is made.
const CELLS_MAX: usize = 1 << 20;

/// The difference between two lists of files; empty if their texts are equal.
pub(super) fn diff_sources(old: &[Source], new: &[Source]) -> String {
    let mut diff = String::new();
    if let ([old], [new]) = (old, new) {
        // Rules that were sent replace a file under another name.
        diff_texts(&mut diff, (old.name(), old.text()), (new.name(), new.text()));
        return diff;
    }
    for one in old {
        let kept = new.iter().find(|other| other.name() == one.name());
        let (name, text) = kept.map_or(("/dev/null", ""), |kept| (kept.name(), kept.text()));
        diff_texts(&mut diff, (one.name(), one.text()), (name, text));
    }
    for one in new.iter().filter(|one| old.iter().all(|other| other.name() != one.name())) {
        diff_texts(&mut diff, ("/dev/null", ""), (one.name(), one.text()));
    }
    diff
}

/// Appends the difference between two texts, as far as there is room.
fn diff_texts(diff: &mut String, (old_name, old): (&str, &str), (new_name, new): (&str, &str)) {
    if old == new || diff.len() >= DIFF_BYTES_MAX {
        return;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let _ = writeln!(diff, "--- {old_name}\n+++ {new_name}");
    for hunk in hunks(&edits(&old, &new)) {
        write_hunk(diff, hunk);
        if diff.len() > DIFF_BYTES_MAX {
            diff.truncate(diff.floor_char_boundary(DIFF_BYTES_MAX));
            diff.push_str("\n… and more\n");
            return;
        }
    }
}

/// The fate of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEdit<'a> {
    Keep(&'a str),
    Remove(&'a str),
    Add(&'a str),
}

impl<'a> LineEdit<'a> {
    /// The sign of the line in a difference, and its text.
    fn shown(self) -> (char, &'a str) {
        match self {
            LineEdit::Keep(line) => (' ', line),
            LineEdit::Remove(line) => ('-', line),
            LineEdit::Add(line) => ('+', line),
        }
    }
}

/// All lines of both texts, in order.
fn edits<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<LineEdit<'a>> {
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let head = same(&mut old.iter().zip(new));
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = same(&mut old_rest.iter().rev().zip(new_rest.iter().rev()));
    let (old_middle, old_tail) = old_rest.split_at(old_rest.len() - tail);
    let new_middle = &new_rest[..new_rest.len() - tail];
    let keep =
        |lines: &[&'a str]| lines.iter().map(|line| LineEdit::Keep(line)).collect::<Vec<_>>();
    let mut edits = keep(&old[..head]);
    edits.extend(middle_edits(old_middle, new_middle));
    edits.extend(keep(old_tail));
    edits
}

/// The lines of two texts that differ at both ends.
fn middle_edits<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<LineEdit<'a>> {
    let width = new.len() + 1;
    let mut edits = Vec::with_capacity(old.len() + new.len());
    let (mut from_old, mut from_new) = (0, 0);
    if (old.len() + 1).saturating_mul(width) <= CELLS_MAX {
        // `common[i * width + j]`: length of the longest common subsequence of `old[i..]` and `new[j..]`. It is at most
        // the shorter length, and one of them is below 1,024.
        let mut common = vec![0_u16; (old.len() + 1) * width];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                common[i * width + j] = match old[i] == new[j] {
                    true => common[(i + 1) * width + j + 1] + 1,
                    false => common[(i + 1) * width + j].max(common[i * width + j + 1]),
                };
            }
        }
        while from_old < old.len() && from_new < new.len() {
            let (i, j) = (from_old, from_new);
            if old[i] == new[j] {
                edits.push(LineEdit::Keep(old[i]));
                (from_old, from_new) = (i + 1, j + 1);
            } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
                edits.push(LineEdit::Remove(old[i]));
                from_old += 1;
            } else {
                edits.push(LineEdit::Add(new[j]));
                from_new += 1;
            }
        }
    }
    edits.extend(old[from_old..].iter().map(|line| LineEdit::Remove(line)));
    edits.extend(new[from_new..].iter().map(|line| LineEdit::Add(line)));
    edits
}

/// A change with its context: its first lines in both texts, counted from 0, and its lines.
type Hunk<'e, 'a> = (usize, usize, &'e [LineEdit<'a>]);

/// The changes with their context; changes close to each other are one hunk.
fn hunks<'e, 'a>(edits: &'e [LineEdit<'a>]) -> Vec<Hunk<'e, 'a>> {
    let is_change = |place: &usize| !matches!(edits[*place], LineEdit::Keep(_));
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for place in (0..edits.len()).filter(is_change) {
        let end = (place + 1 + CONTEXT).min(edits.len());
        match ranges.last_mut() {
            Some(last) if place <= last.1 + CONTEXT => last.1 = end,
            _ => ranges.push((place.saturating_sub(CONTEXT), end)),
        }
    }
    let (mut old, mut new, mut counted) = (0, 0, 0);
    let hunks = ranges.into_iter().map(|(start, end)| {
        for edit in &edits[counted..start] {
            old += usize::from(!matches!(edit, LineEdit::Add(_)));
            new += usize::from(!matches!(edit, LineEdit::Remove(_)));
        }
        counted = start;
        (old, new, &edits[start..end])
    });
    hunks.collect()
}

fn write_hunk(diff: &mut String, (old, new, lines): Hunk<'_, '_>) {
    let count = |left_out: char| lines.iter().filter(|edit| edit.shown().0 != left_out).count();
    let (olds, news) = (count('+'), count('-'));
    // The format counts from 1, and names the line before an empty range.
    let first = |start: usize, lines: usize| start + usize::from(lines > 0);
    let _ = writeln!(diff, "@@ -{},{olds} +{},{news} @@", first(old, olds), first(new, news));
    for edit in lines {
        let (sign, line) = edit.shown();
        let _ = writeln!(diff, "{sign}{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: &str, new: &str) -> String {
        diff_sources(&[Source::from_text("a", old)], &[Source::from_text("a", new)])
    }

    #[test]
    fn differences_are_those_of_diff() {
        // As `diff -u` prints them.
        let rows = [
            ("", "", ""),
            ("x\n", "x\n", ""),
            ("", "x\ny\n", "@@ -0,0 +1,2 @@\n+x\n+y\n"),
            ("x\n", "", "@@ -1,1 +0,0 @@\n-x\n"),
            (
                "1\n2\n3\n4\n5\n6\n",
                "1\n2\n3\n4\nb\n6\n",
                "@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n+b\n 6\n",
            ),
            ("a\nb\nc\n", "b\nc\nd\n", "@@ -1,3 +1,3 @@\n-a\n b\n c\n+d\n"),
        ];
        for (old, new, want) in rows {
            let head = if want.is_empty() { "" } else { "--- a\n+++ a\n" };
            assert_eq!(diff(old, new), format!("{head}{want}"), "{old:?} {new:?}");
        }
        let lines = |marked: &[usize]| -> String {
            let line = |number| match marked.contains(&number) {
                true => format!("changed {number}\n"),
                false => format!("{number}\n"),
            };
            (1..=40).map(line).collect()
        };
        // Seven lines between two changes are two hunks, six are one.
        for (marked, hunks) in [([10, 18], 2), ([10, 17], 1), ([1, 40], 2)] {
            let diff = diff(&lines(&[]), &lines(&marked));
            assert_eq!(diff.matches("\n@@ ").count(), hunks, "{diff}");
        }
        let far = diff(&lines(&[]), &lines(&[10, 18]));
        assert!(far.contains("@@ -7,7 +7,7 @@") && far.contains("@@ -15,7 +15,7 @@"), "{far}");
    }

    #[test]
    fn applying_a_difference_to_the_old_text_gives_the_new_one() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let mut text = || -> Vec<String> {
                let length = random(30);
                (0..length).map(|_| random(6).to_string()).collect()
            };
            let (old, new) = (text(), text());
            let lines =
                |text: &[String]| text.iter().map(|line| format!("{line}\n")).collect::<String>();
            let shown = diff(&lines(&old), &lines(&new));
            assert_eq!(applied(&old, &shown), new, "{shown}");
        }
    }

    /// The text after the changes of a difference.
    fn applied(old: &[String], diff: &str) -> Vec<String> {
        let (mut new, mut next) = (Vec::new(), 0);
        for line in diff.lines().skip(2) {
            if let Some(place) = line.strip_prefix("@@ -") {
                let (first, rest) = place.split_once(',').unwrap();
                let is_empty = rest.starts_with("0 ");
                let start = first.parse::<usize>().unwrap() - usize::from(!is_empty);
                new.extend_from_slice(&old[next..start]);
                next = start;
                continue;
            }
            let (sign, text) = line.split_at(1);
            if sign != "+" {
                assert_eq!(old[next], text);
                next += 1;
            }
            if sign != "-" {
                new.push(text.to_string());
            }
        }
        new.extend_from_slice(&old[next..]);
        new
    }

    #[test]
    fn files_are_compared_by_name() {
        let source = |name, text| Source::from_text(name, text);
        let old = [source("a", "1\n"), source("b", "2\n"), source("c", "3\n")];
        let new = [source("a", "1\n"), source("c", "4\n"), source("d", "5\n")];
        let want = "--- b\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-2\n\
            --- c\n+++ c\n@@ -1,1 +1,1 @@\n-3\n+4\n\
            --- /dev/null\n+++ d\n@@ -0,0 +1,1 @@\n+5\n";
        assert_eq!(diff_sources(&old, &new), want);
        assert!(diff_sources(&old[..1], &[source("PUT", "2\n")]).starts_with("--- a\n+++ PUT\n"));
    }

    #[test]
    fn large_texts_have_a_bounded_difference() {
        let text =
            |word: &str| (0..50_000).map(|line| format!("{word} {line}\n")).collect::<String>();
        let diff = diff(&text("old"), &text("new"));
        assert!(diff.len() <= DIFF_BYTES_MAX + 20, "{}", diff.len());
        assert!(diff.ends_with("… and more\n"));
    }
}
