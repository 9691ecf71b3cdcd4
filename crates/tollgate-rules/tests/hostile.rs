//! Files that nobody means well with: they cost little time, little memory, and no panic.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tollgate_rules::{Source, compile};

/// What is said about a text, and that it is said soon.
fn said(name: &str, text: &str) -> String {
    let before = time_on_processor();
    let said = match Source::from_bytes("rules.yaml", text.as_bytes()) {
        Ok(source) => compile(&[source]).diagnostics.to_string(),
        Err(diagnostic) => diagnostic.to_string(),
    };
    let took = time_on_processor().saturating_sub(before);
    println!("{name}: {took:?}");
    // Several times what an idle machine needs; the most limits of all take longest.
    assert!(took.as_secs() < 3, "{name} took {took:?}");
    assert!(said.len() < 200_000, "{name}: {} bytes", said.len());
    said
}

/// How long this thread has been at work: what else the machine does must not fail a test. Zero where
/// the system does not tell.
fn time_on_processor() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split_whitespace().next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn rules(count: usize, rule: impl Fn(usize) -> String) -> String {
    format!(
        "rules:\n{}",
        (0..count).map(|n| format!("  - {{ {} }}\n", rule(n))).collect::<String>()
    )
}

/// A method that no other rule has, and that is near no method of HTTP.
fn custom_method(n: usize) -> String {
    let letters: String = n.to_string().bytes().map(|digit| char::from(digit + 17)).collect();
    format!("QQ-{letters}")
}

#[test]
fn large_files_of_every_kind_are_answered_soon() {
    let plain = |n: usize| format!("name: r{n}, key: global, limits: 1/s");
    let cases = [
        (
            "expressions",
            rules(8_000, |n| format!("{}, match: {{ regex: \"(a|b){{1,90}}x{n}\" }}", plain(n))),
            "more than 1000 globs and regular expressions",
        ),
        (
            "large expressions",
            rules(1_000, |n| {
                format!("{}, match: {{ regex: \"([a-z]{{1,90}}){{1,90}}{n}\" }}", plain(n))
            }),
            "too large when compiled",
        ),
        (
            "conditions",
            rules(1, |n| {
                let all = "{ method: GET }, ".repeat(20_000);
                format!("{}, match: {{ all: [{all}] }}", plain(n))
            }),
            "at most 1000 conditions",
        ),
        (
            "rules that match everything",
            rules(12_000, |n| format!("{}, match: {{ path: \"/{{*rest}}\" }}", plain(n))),
            "meet 12000 limits",
        ),
        (
            "rules without a path",
            rules(12_000, |n| format!("{}, match: {{ user: u{n} }}", plain(n))),
            "",
        ),
        (
            "both",
            rules(10_000, |n| match n % 2 {
                0 => format!("{}, match: {{ user: u{n} }}", plain(n)),
                _ => format!("{}, match: {{ path: \"/{n}\" }}", plain(n)),
            }),
            "",
        ),
        (
            "paths beside many expressions",
            rules(13_000, |n| match n {
                0 => {
                    let any: String = (0..990)
                        .map(|n| format!("{{ regex: '.*[a-z]{{5}}.*[b-z]{{3}}.*x{n}y' }}, "))
                        .collect();
                    format!("{}, match: {{ any: [{any}] }}", plain(n))
                }
                _ => format!("{}, match: {{ path: \"/p{n}/{}\" }}", plain(n), "a".repeat(60)),
            }),
            "",
        ),
        (
            "methods without a path",
            rules(12_000, |n| {
                let method = custom_method(n);
                format!("{}, match: {{ method: {method} }}", plain(n))
            }),
            "",
        ),
        (
            "paths that many rules share, and methods that they do not",
            rules(12_000, |n| {
                let method = custom_method(n);
                format!("{}, match: {{ path: \"/a/{{*rest}}\", method: {method} }}", plain(n))
            }),
            "",
        ),
        (
            "tiers",
            format!(
                "tiers: {{ {} }}\n{}",
                (1..=100).map(|n| format!("t{n}: {n}")).collect::<Vec<_>>().join(", "),
                rules(10_000, |n| format!("{}, tiered: true", plain(n)))
            ),
            "more than 320000 limits",
        ),
        (
            "tiers that change nothing",
            format!(
                "tiers: {{ {} }}\n{}",
                (1..=100).map(|n| format!("t{n}: 1")).collect::<Vec<_>>().join(", "),
                rules(10_000, |n| format!("{}, tiered: true", plain(n)))
            ),
            "more than 320000 limits",
        ),
        (
            "unknown fields",
            rules(1, |n| {
                let fields: String =
                    (0..20_000).map(|n| format!(", unknown_field_number_{n}: 1")).collect();
                plain(n) + &fields
            }),
            "more",
        ),
        (
            "overrides of unknown rules",
            rules(5_000, plain)
                + "overrides:\n"
                + &"  - { rule: nobody-has-this-name, key: a, limits: 1/s }\n".repeat(5_000),
            "and 4900 more",
        ),
        (
            "overrides",
            rules(5_000, |n| format!("{}, match: {{ path: /{n} }}", plain(n)))
                + "overrides:\n"
                + &(0..5_000)
                    .map(|n| format!("  - {{ rule: r{n}, key: global, limits: 1/s }}\n"))
                    .collect::<String>(),
            "",
        ),
        ("the same name", rules(10_000, |_| plain(1)), "and 9899 more"),
        ("a long value", format!("rules: {}", "x".repeat(60_000)), "`rules` is a single value"),
        ("a long key", format!("? {}\n: 1\n", "x".repeat(60_000)), "there is no field `xxx"),
    ];
    for (name, text, want) in cases {
        let said = said(name, &text);
        assert!(said.contains(want), "{name}: {}", &said[..said.len().min(2_000)]);
        assert!(!want.is_empty() || said.is_empty(), "{name}: {}", &said[..said.len().min(2_000)]);
    }
}

/// Numbers that look random and are the same each time.
struct HostileNumbers(u64);

impl HostileNumbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn damaged_files_are_answered_without_a_panic() {
    let mut files = Vec::new();
    for directory in ["good", "broken", "warned"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory);
        let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")));
    }
    files.sort();
    let pieces: [&[u8]; 20] = [
        b"\n",
        b"  ",
        b"\t",
        b"- ",
        b": ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"'",
        b"&a ",
        b"*a ",
        b"#",
        b"!!str ",
        b"|\n",
        b"\xe2\x82\xac",
        b"\r",
        b"99999999999999999999",
        b"\xff",
    ];
    let mut numbers = HostileNumbers(7);
    for path in &files {
        let original = fs::read(path).unwrap();
        for round in 0..60 {
            let mut bytes = original.clone();
            for _ in 0..=round % 4 {
                let at = numbers.below(bytes.len() + 1);
                match numbers.below(3) {
                    0 => drop(
                        bytes.splice(at..at, pieces[numbers.below(pieces.len())].iter().copied()),
                    ),
                    1 => drop(bytes.drain(at..(at + numbers.below(9)).min(bytes.len()))),
                    _ => bytes.truncate(bytes.len().max(1) - numbers.below(bytes.len().max(1)) / 8),
                }
            }
            match Source::from_bytes("rules.yaml", &bytes) {
                Ok(source) => {
                    let compiled = compile(&[source]);
                    assert_eq!(compiled.rules.is_none(), compiled.diagnostics.has_errors());
                    drop((compiled.diagnostics.to_string(), compiled.diagnostics.to_json()));
                }
                Err(diagnostic) => drop(diagnostic.to_string()),
            }
        }
    }
}
