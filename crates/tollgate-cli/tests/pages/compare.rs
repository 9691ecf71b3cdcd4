//! Comparison of the output that a page shows with the real one.
//!
//! `…` or `...` in a line matches anything in that line; a line of its own matches any number of lines. Once a
//! server runs, parts that differ from run to run match each other: see [`VARIABLE_PARTS`].

use std::sync::LazyLock;

use regex::Regex;

/// Patterns of variable parts, each with what stands for them in the comparison. Group 1 is kept.
const VARIABLE_PARTS: [(&str, &str); 10] = [
    // Instants: 2026-11-15T12:53:28.998Z; Sun, 15 Nov 2026 12:52:43 GMT; seconds since 1970.
    (r"()\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
    (r"()\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", "<time>"),
    (r"()\b1[789]\d{8}\b", "<time>"),
    // Ids of requests and hashes of keys.
    (r"()\b([0-9a-f]{32}|[0-9a-f]{16})\b", "<id>"),
    // Fields of responses that depend on the clock or on the length of other fields.
    (r"(?i)^((?:x-ratelimit-reset|retry-after|content-length): )\d+$", "<number>"),
    (r"(;t=)\d+", "<duration>"),
    // Members of JSON, and fields of log lines.
    (r#"("(?:\w+_(?:ms|us|s|ns)|retryAfter)":)-?\d+"#, "<duration>"),
    (r"(\b(?:\w+_(?:ms|us|s|ns|after|ago))=)\d+\w*", "<duration>"),
    // Durations in text: 59.897 s, 12 ms.
    (r#"()\b\d+(\.\d+)? ?(s|ms|us|µs|min|h)\b"#, "<duration>"),
    // Ports of clients.
    (r"(\b127\.0\.0\.1:)(3[2-9]|[456]\d)\d{3}\b", "<port>"),
];

static VARIABLE_REGEXES: LazyLock<Vec<(Regex, String)>> = LazyLock::new(|| {
    let compiled = VARIABLE_PARTS.iter().map(|(pattern, name)| {
        (Regex::new(pattern).expect("a valid pattern"), format!("${{1}}{name}"))
    });
    compiled.collect()
});

/// Compares output; `Err` is a difference to read: `-` lines are shown on the page, `+` lines are real.
pub(super) fn compare(shown: &str, real: &str, variable_parts: bool) -> Result<(), String> {
    let lines = |text: &str| -> Vec<String> {
        text.trim_end().lines().map(|line| line.trim_end().to_string()).collect()
    };
    let (shown, real) = (lines(shown), lines(real));
    let prepare = |lines: &[String]| -> Vec<String> {
        lines.iter().map(|line| if variable_parts { unify(line) } else { line.clone() }).collect()
    };
    let (want, got) = (prepare(&shown), prepare(&real));
    if lines_match(&want, &got) {
        return Ok(());
    }
    let same_start =
        want.iter().zip(&got).take_while(|(want, got)| line_matches(want, got)).count();
    let mut difference = String::new();
    let mut write = |mark: char, lines: &[String]| {
        for line in lines {
            difference += &format!("    {mark} {line}\n");
        }
    };
    write(' ', &shown[..same_start]);
    write('-', &shown[same_start..]);
    write('+', &real[same_start..]);
    Err(difference)
}

/// True if a line that a page shows is among these.
pub(super) fn has_line(shown: &str, real: &str) -> bool {
    let shown = unify(shown.trim_end());
    real.lines().any(|line| line_matches(&shown, &unify(line.trim_end())))
}

/// Replaces the variable parts of a line. Columns are as wide as their values, so runs of spaces become one.
fn unify(line: &str) -> String {
    let mut line = line.to_string();
    for (pattern, name) in &*VARIABLE_REGEXES {
        line = pattern.replace_all(&line, name.as_str()).into_owned();
    }
    let indent = line.len() - line.trim_start().len();
    let words: Vec<&str> = line.split_whitespace().collect();
    format!("{}{}", &line[..indent], words.join(" "))
}

fn is_gap(line: &str) -> bool {
    matches!(line.trim(), "…" | "...")
}

/// Matches lines, with gaps of any number of lines: the usual two pointers, back to the last gap after a mismatch.
fn lines_match(want: &[String], got: &[String]) -> bool {
    let (mut at, mut from, mut gap) = (0, 0, None);
    while from < got.len() {
        if at < want.len() && is_gap(&want[at]) {
            gap = Some((at, from));
            at += 1;
        } else if at < want.len() && line_matches(&want[at], &got[from]) {
            (at, from) = (at + 1, from + 1);
        } else if let Some((gap_at, gap_from)) = gap {
            gap = Some((gap_at, gap_from + 1));
            (at, from) = (gap_at + 1, gap_from + 1);
        } else {
            return false;
        }
    }
    want[at..].iter().all(|line| is_gap(line))
}

/// Matches one line: its pieces between the gaps appear in order, the first at the start, the last at the end.
fn line_matches(want: &str, got: &str) -> bool {
    let want = want.replace("...", "…");
    let pieces: Vec<&str> = want.split('…').collect();
    let [first, middle @ .., last] = &pieces[..] else {
        return want == got;
    };
    let Some(mut rest) = got.strip_prefix(first) else { return false };
    for piece in middle {
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn gaps_and_variable_parts_match_and_nothing_else() {
    // shown | real | match | match with variable parts
    let rows = [
        ("a\nb", "a\nb\n", true, true),
        ("a\nb", "a\nc\n", false, false),
        ("a\nb", "a\n", false, false),
        ("a", "a\nb\n", false, false),
        ("a…c...e", "abcde", true, true),
        ("a…c", "abcd", false, false),
        ("…\nb", "x\na\nb", true, true),
        ("a\n...\nc\n", "a\nb\nb\nc", true, true),
        ("a\n...\nc\n", "a\nb\nb", false, false),
        ("x  59.9 s", "x 1 s", false, true),
        ("x  5 rows", "x 6 rows", false, false),
        ("\"retry_after_ms\":10,\"max\":3", "\"retry_after_ms\":9,\"max\":3", false, true),
        ("\"retry_after_ms\":10,\"max\":3", "\"retry_after_ms\":9,\"max\":4", false, false),
        ("Retry-After: 60", "Retry-After: 59", false, true),
        ("key=c4ed92aaac9406cc", "key=04ed92aaac9406cc", false, true),
        ("date: Sun, 15 Nov 2026 12:52:43 GMT", "date: Mon, 16 Nov 2026 12:52:43 GMT", false, true),
        ("by=127.0.0.1:43452", "by=127.0.0.1:53452", false, true),
        ("to 127.0.0.1:8080", "to 127.0.0.1:8081", false, false),
    ];
    for (shown, real, exact, variable) in rows {
        let found = [false, true].map(|parts| compare(shown, real, parts).is_ok());
        assert_eq!(found, [exact, variable], "{shown:?} {real:?}");
    }
    let difference = compare("a\nb", "a\nc", false);
    assert_eq!(difference.err().as_deref(), Some("      a\n    - b\n    + c\n"));
    assert!(has_line("…warn  refused", "x\n1 warn  refused\n") && !has_line("a", "b\nc"));
}
