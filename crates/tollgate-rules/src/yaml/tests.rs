//! Bounds and places.

use super::*;

fn read_text(text: &str) -> Result<YamlNode, String> {
    let mut diagnostics = Diagnostics::default();
    let node = read(&Source::from_text("t.yaml", text), &mut diagnostics);
    match node {
        Some(node) if diagnostics.is_empty() => Ok(node),
        _ => Err(diagnostics.to_string()),
    }
}

fn count(node: &YamlNode) -> usize {
    let below = node.items().iter().chain(node.entries().iter().map(|entry| &entry.node));
    1 + below.map(count).sum::<usize>()
}

#[test]
fn a_tree_knows_its_places() {
    let node = read_text("a: [1, 'x']\nb:\n  c: ~\n").unwrap();
    let list = node.get("a").unwrap();
    assert_eq!(list.items()[1].text(), Some("x"));
    let span = list.items()[1].span;
    assert_eq!((span.line, span.column, span.start, span.end), (1, 8, 7, 10));
    let c = node.get("b").unwrap().entry("c").unwrap();
    assert_eq!((c.key_span.line, c.key_span.column), (3, 3));
    assert!(matches!(c.node.value, YamlValue::Null));
}

#[test]
fn aliases_repeat_values() {
    let node = read_text("a: &x [1, 2]\nb: *x\nc: [*x, *x]\n").unwrap();
    assert_eq!(count(&node), 1 + 3 + 3 + 7);
    assert_eq!(node.get("b").unwrap().span.line, 2);
}

#[test]
fn what_could_be_expensive_is_refused_before_it_is() {
    let nested_aliases = {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let below = vec![format!("*a{}", level - 1); 9].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        text
    };
    let nested_anchors = {
        let open: String = (0..30).map(|level| format!("&a{level} [")).collect();
        format!("a: {open}{}{}", "x,".repeat(20_000), "]".repeat(30))
    };
    let cases = [
        ("nested aliases", nested_aliases, "more than 200000 values"),
        ("nested anchors", nested_anchors, "more than 200000 values"),
        ("200,000 brackets", "[".repeat(200_000), "nest more than 32 deep"),
        ("200,000 braces", "{a: ".repeat(200_000), "nest more than 32 deep"),
        ("dashes", "- ".repeat(200_000), "nest more than 32 deep"),
        ("a wide list", format!("[{}]", "x,".repeat(1_000_000)), "more than 25000 entries"),
        (
            "a wide map",
            format!("{{{}}}", (0..200_000).map(|n| format!("k{n}: 1,")).collect::<String>()),
            "more than 25000 entries",
        ),
        ("a long line", format!("a: {}", "x".repeat(4_000_000)), "longer than 64 KiB"),
        ("a long key", format!("{}: 1", "x".repeat(4_000_000)), ""),
        ("many aliases", format!("a: &x 1\nb: [{}]", "*x,".repeat(101)), "more than 100 aliases"),
        ("an alias of itself", "a: &x [*x]".into(), "inside its own anchor"),
        ("deep through an alias", deep_through_an_alias(), "nest more than 32 deep"),
    ];
    for (name, text, want) in cases {
        #[expect(clippy::disallowed_methods, reason = "a bound on time is what is tested")]
        let start = std::time::Instant::now();
        let error = read_text(&text).map(|_| ()).expect_err(name);
        #[expect(clippy::disallowed_methods, reason = "a bound on time is what is tested")]
        let took = start.elapsed();
        assert!(error.contains(want), "{name}: {error}");
        assert!(error.len() < 1_000, "{name}: {error}");
        // A hundred times what a slow machine needs: a busy one may not get to it for a while, and work
        // that grows with the square of the text would take minutes.
        assert!(took.as_secs() < 10, "{name} took {took:?}");
        println!("{name}: {took:?}");
    }
}

fn deep_through_an_alias() -> String {
    let nest =
        |inside: &str, times: usize| format!("{}{inside}{}", "[".repeat(times), "]".repeat(times));
    format!("a: &x {}\nb: {}", nest("1", 20), nest("*x", 20))
}

#[test]
fn what_is_no_tree_of_texts_is_refused_where_it_stands() {
    let cases = [
        ("a: 1\nb: 2\na: 3\n", "`a` is given twice", "t.yaml:3:1"),
        ("{[1]: 2}", "a key must be a text", "t.yaml:1:2"),
        ("? a\n: 1\n? [b]\n: 2\n", "a key must be a text", "t.yaml:3:3"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "merge keys", "t.yaml:3:3"),
        ("a: !thing 1", "the tag `!thing`", "t.yaml:1:4"),
        ("a: *nothing", "no anchor `&nothing`", "t.yaml:1:4"),
        ("a: 1\n---\nb: 2\n", "a second document", "t.yaml:2:1"),
        ("a: \0", "zero byte", "t.yaml:1:4"),
    ];
    for (text, want, place) in cases {
        let error = read_text(text).map(|_| ()).expect_err(text);
        assert!(error.contains(want) && error.contains(place), "{text:?}: {error}");
    }
    assert!(read_text("a: !!str 1\nb: !!int 2\n").is_ok());
}

#[test]
fn every_duplicate_is_reported_with_the_first_place() {
    let error = read_text("a: 1\na: 2\na: 3\n").unwrap_err();
    assert_eq!(error.matches("is given twice").count(), 2, "{error}");
    assert_eq!(error.matches("t.yaml:1:1").count(), 2, "{error}");
}
