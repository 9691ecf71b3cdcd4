//! Which limit of a file a descriptor meets: quirks as tables, and random trees against a plain
//! transcription of how the reference server finds it.

use std::collections::BTreeMap;

use tollgate_rules::DescriptorError;
use tollgate_rules::descriptors::WILDCARD_BYTES_MAX;

use super::gate::{DescriptorGate, descriptor};

#[test]
fn exact_before_wildcard_before_any_and_no_step_back() {
    let gate = DescriptorGate::new(&["
domain: d
descriptors:
  - key: k
    value: exact
    rate_limit: { unit: hour, requests_per_unit: 1, name: exact }
  - { key: k, value: a*, rate_limit: { unit: hour, requests_per_unit: 2, name: first } }
  - { key: k, value: '*b', rate_limit: { unit: hour, requests_per_unit: 3, name: second } }
  - { key: k, value: a*c*e, rate_limit: { unit: hour, requests_per_unit: 4, name: hidden } }
  - { key: k, rate_limit: { unit: hour, requests_per_unit: 5, name: any } }
  - { key: k, value: none }
  - { key: deep, value: x, descriptors: [{ key: y, rate_limit: { unit: hour, requests_per_unit: 6, name: xy } }] }
  - { key: deep, rate_limit: { unit: hour, requests_per_unit: 7, name: deep }, descriptors: [{ key: z, rate_limit: { unit: hour, requests_per_unit: 8, name: z } }] }
  - { key: a_b, value: c, rate_limit: { unit: hour, requests_per_unit: 9, name: tuple } }
  - { key: number, value: 1234, rate_limit: { unit: hour, requests_per_unit: 10, name: number } }
  - { key: number, value: no, rate_limit: { unit: hour, requests_per_unit: 11, name: no } }
  - { key: empty, value: '', rate_limit: { unit: hour, requests_per_unit: 12, name: empty } }
"]);
    let rows: [(&[(&str, &str)], &str); 20] = [
        (&[("k", "exact")], "exact"),
        (&[("k", "ab")], "first"),
        (&[("k", "b")], "second"),
        (&[("k", "ace")], "first"),
        (&[("k", "a*c*e")], "hidden"),
        (&[("k", "zzz")], "any"),
        (&[("k", "")], "any"),
        // A node without a limit keeps its value from the others.
        (&[("k", "none")], ""),
        (&[("deep", "x")], ""),
        (&[("deep", "x"), ("y", "")], "xy"),
        // The first step is not taken back, though the other branch would fit.
        (&[("deep", "x"), ("z", "")], ""),
        (&[("deep", "other")], "deep"),
        (&[("deep", "other"), ("z", "1")], "z"),
        (&[("deep", "other"), ("z", "1"), ("z", "1")], ""),
        (&[("z", "1")], ""),
        // The reference joins key and value, and takes these for each other.
        (&[("a", "b_c")], ""),
        (&[("a_b", "c")], "tuple"),
        (&[("number", "1234")], "number"),
        (&[("number", "no")], "no"),
        (&[("empty", "something")], "empty"),
    ];
    for (entries, want) in rows {
        let described = gate.ask("d", &[descriptor(entries)]);
        let name = described.statuses().next().unwrap().limit.and_then(|limit| limit.name);
        assert_eq!(name.unwrap_or_default(), want, "{entries:?}");
    }
}

/// A random tree, as written and as the reference server keeps it.
#[derive(Clone, Debug, Default)]
struct NaiveDescriptorTree {
    limit: Option<u32>,
    /// By `key` or `key=value`.
    below: BTreeMap<String, NaiveDescriptorTree>,
    /// `key=value` of those with a `*`, in order.
    wildcards: Vec<String>,
}

struct TreeRandom(u64);

impl TreeRandom {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

const KEYS: [&str; 2] = ["k", "k_a"];
const VALUES: [&str; 9] = ["", "a", "b", "ab", "a*", "*", "*b", "a*b", "a_b"];
const SENT: [&str; 8] = ["", "a", "b", "ab", "aab", "a*", "ba", "a_b"];

/// Writes a level and keeps it, with limits that are numbered by `next`.
fn level(
    random: &mut TreeRandom,
    depth: usize,
    next: &mut u32,
    text: &mut String,
) -> NaiveDescriptorTree {
    let mut naive = NaiveDescriptorTree::default();
    let indent = "  ".repeat(2 * depth);
    text.push_str(&format!("{indent}descriptors:\n"));
    for _ in 0..1 + random.below(6) {
        let (key, value) = (random.pick(&KEYS), random.pick(&VALUES));
        let name = if value.is_empty() { key.to_string() } else { format!("{key}={value}") };
        if naive.below.contains_key(&name) {
            continue;
        }
        text.push_str(&format!("{indent}  - key: {key}\n"));
        if !value.is_empty() {
            text.push_str(&format!("{indent}    value: '{value}'\n"));
        }
        let limit = (random.below(3) > 0).then(|| {
            *next += 1;
            *next
        });
        if let Some(number) = limit {
            text.push_str(&format!(
                "{indent}    rate_limit: {{ unit: day, requests_per_unit: {number} }}\n"
            ));
        }
        let mut node = NaiveDescriptorTree::default();
        if depth < 2 && random.below(2) == 0 {
            node = level(random, depth + 1, next, text);
        }
        node.limit = limit;
        if value.contains('*') {
            naive.wildcards.push(name.clone());
        }
        naive.below.insert(name, node);
    }
    naive
}

/// Whether a text fits, by definition.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
        Some((byte, rest)) => {
            text.split_first().is_some_and(|(b, text)| b == byte && fits(rest, text))
        }
    }
}

fn find(root: &NaiveDescriptorTree, entries: &[(&str, &str)]) -> Option<u32> {
    let mut node = root;
    for (key, value) in entries {
        let exact = format!("{key}={value}");
        let wildcard = || node.wildcards.iter().find(|one| fits(one.as_bytes(), exact.as_bytes()));
        let next = node.below.get(&exact).filter(|_| !value.is_empty());
        let next = next.or_else(|| wildcard().and_then(|name| node.below.get(name)));
        node = next.or_else(|| node.below.get(*key))?;
    }
    node.limit
}

#[test]
fn random_trees_are_searched_as_the_reference_does() {
    let mut random = TreeRandom(6);
    let (mut found, mut missed) = (0, 0);
    for _ in 0..300 {
        let (mut text, mut next) = (String::from("domain: d\n"), 0);
        let naive = level(&mut random, 0, &mut next, &mut text);
        let gate = DescriptorGate::new(&[&text]);
        for _ in 0..40 {
            let entries: Vec<(&str, &str)> = (0..1 + random.below(6) / 3 + random.below(6) / 5)
                .map(|_| (random.pick(&KEYS), random.pick(&SENT)))
                .collect();
            let want = find(&naive, &entries);
            let described = gate.ask("d", &[descriptor(&entries).hits(0)]);
            let got = described.statuses().next().unwrap().limit.map(|limit| limit.units as u32);
            assert_eq!(got, want, "{entries:?} in\n{text}");
            match want {
                Some(_) => found += 1,
                None => missed += 1,
            }
        }
    }
    assert!(found > 1_000 && missed > 2_000, "{found} {missed}");
}

#[test]
fn long_values_beside_many_stars_are_refused() {
    const PATTERNS: usize = 900;
    let rows: String = (0..PATTERNS)
        .map(|n| {
            format!(
                "  - {{ key: k, value: '*{n}x*', rate_limit: {{ unit: hour, requests_per_unit: 9 }} }}\n"
            )
        })
        .collect();
    let ends = "  - { key: e, value: 'a*', rate_limit: { unit: hour, requests_per_unit: 9 } }\n";
    let gate = DescriptorGate::new(&[&format!("domain: d\ndescriptors:\n{rows}{ends}")]);
    let longest = WILDCARD_BYTES_MAX / PATTERNS;
    let value = |length: usize| descriptor(&[("k", &"y".repeat(length))]);
    assert_eq!(gate.say("d", &[value(longest)]), "OK: OK");
    // The values of a request count together.
    for asked in [vec![value(longest + 1)], vec![value(longest / 2), value(longest / 2 + 2)]] {
        let refused = gate.try_ask("d", &asked).unwrap_err();
        assert_eq!(refused, DescriptorError::TooMuchToMatch);
        assert!(refused.is_refusal() && refused.to_string().contains("shorter"));
    }
    // Where nothing is searched for, nothing counts: an end, or a value that is there as it is.
    assert_eq!(gate.say("d", &[descriptor(&[("e", &"a".repeat(1 << 20))])]), "OK: OK 9/hour 8");
    assert_eq!(gate.say("d", &[descriptor(&[("k", "*7x*")])]), "OK: OK 9/hour 8");
}
