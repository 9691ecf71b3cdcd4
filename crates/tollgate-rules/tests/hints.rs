//! Mistakes that people make in rules files: each is reported at its place, with what to write instead.

use tollgate_rules::{Diagnostic, Severity, Source, compile};

/// Everything that is reported about a text.
fn diagnostics(text: &str) -> Vec<Diagnostic> {
    let compiled = compile(&[Source::from_text("rules.yaml", text)]);
    compiled.diagnostics.iter().cloned().collect()
}

/// A rule with these lines, the first of which is line 5.
fn rule_with(lines: &str) -> String {
    format!("rules:\n  - name: api\n    match: {{ path: /a }}\n    key: \"{{ip}}\"\n{lines}\n")
}

#[test]
fn a_mistake_has_its_place_and_a_hint() {
    // text, line and column, part of the message, hint
    let rows = [
        (
            rule_with("    limits: [60/mn]"),
            (5, 14),
            "unknown unit \"mn\"",
            "did you mean `minute`?",
        ),
        (
            rule_with("    limits: [10/secnd]"),
            (5, 14),
            "unknown unit \"secnd\"",
            "did you mean `second`?",
        ),
        (
            rule_with("    limits: 60/minute, 1000/hour"),
            (5, 13),
            "\"60/minute, 1000/hour\" holds several rates",
            "write each as a limit of its own: `[60/minute, 1000/hour]`",
        ),
        (
            rule_with("    limits:\n      - 10/second and 100/minute burst 20"),
            (6, 9),
            "holds several rates",
            "write each as a limit of its own: `[10/second, 100/minute burst 20]`",
        ),
        (
            rule_with("    limits: [10/second]\n    cost: \"5\""),
            (6, 11),
            "`cost` is a text in quotes",
            "write `cost: 5`",
        ),
        (
            rule_with("    limits: [10/second]\n    tierd: true"),
            (6, 5),
            "no field `tierd` in a rule",
            "did you mean `tiered`?",
        ),
        (
            rule_with("    limits: [10/second]\n\tcost: 2"),
            (6, 1),
            "a tab in the indentation",
            "indent with spaces, two for each level",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ path: /a }", "\n\t\tpath: /a"),
            (4, 1),
            "a tab in the indentation",
            "indent with spaces, two for each level",
        ),
        (
            rule_with("    limits: [10/second]").replace("/a }", "/a, method: [GET, POSTT] }"),
            (3, 38),
            "\"POSTT\" is not a method that clients send",
            "did you mean `POST`?",
        ),
        (
            rule_with("    limits: [10/second]\n    cost: { \"POSTT /a\": 5 }"),
            (6, 13),
            "\"POSTT\" is not a method that clients send",
            "did you mean `POST`?",
        ),
        (
            format!("mode: shadow\n{}", rule_with("    limits: [10/second]")),
            (1, 1),
            "no field `mode` in a rules file",
            "`mode` is a field of a rule: write it below the rule's `name`",
        ),
        (
            rule_with("    limits: [10/second]\n    algorithm: token_bucket"),
            (6, 5),
            "no field `algorithm` in a rule",
            "`algorithm` is a field of a limit: write it there, such as `limits: [{ rate: 10/second, \
             algorithm: token_bucket }]`",
        ),
        (
            rule_with("    limits: [{ rate: 10/second, algorithm: log }]"),
            (5, 44),
            "`algorithm` cannot be \"log\"",
            "did you mean `sliding_window_log`? It can be: token_bucket, leaky_bucket, fixed_window, \
             sliding_window_log, sliding_window_counter",
        ),
        (
            rule_with("    limits: [10/second]\n    method: POST"),
            (6, 5),
            "no field `method` in a rule",
            "`method` is a field of a `match`: write it there, such as `match: { method: [GET, POST] }`",
        ),
        (
            rule_with("    limits: [10rpm]"),
            (5, 14),
            "the rate \"10rpm\" has no period",
            "did you mean `10/minute`?",
        ),
        (
            rule_with("    limits: [10 requests per minute]"),
            (5, 14),
            "begins with \"10 requests\"",
            "did you mean `10/minute`?",
        ),
        (
            rule_with("    limits: [\"1,000/hour\"]"),
            (5, 14),
            "begins with \"1,000\"",
            "did you mean `1000/hour`?",
        ),
        (
            rule_with("    limits: [10/m/h]"),
            (5, 14),
            "the period \"m/h\" has one `/` too many",
            "write one period, such as 100/minute; another rate is a limit of its own",
        ),
        (
            rule_with("    limits: [10/1.5h]"),
            (5, 14),
            "the period \"1.5h\" is not in whole numbers",
            "write second, minute, hour, day or week, or a number and us, ms, s, m, h, d or w, such as 90s",
        ),
        (
            rule_with("    limits: [10/second]\n    algoritm: token_bucket"),
            (6, 5),
            "no field `algoritm` in a rule",
            "did you mean `algorithm`? `algorithm` is a field of a limit: write it there, such as \
             `limits: [{ rate: 10/second, algorithm: token_bucket }]`",
        ),
        (
            rule_with("    limits: [10/second]").replace("\"{ip}\"", "{ip}:{path}"),
            (4, 10),
            "a text that begins with `{` is a map unless it is in quotes",
            "write `\"{ip}:{path}\"`",
        ),
        (
            rule_with("    limits: [10/second]").replace("\"{ip}\"", "“{ip}”"),
            (4, 10),
            "`“` is not a quote that YAML knows",
            "write the quotes of a keyboard, `\"` or `'`",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "{usr}"),
            (4, 10),
            "there is no fact `usr`",
            "did you mean `user`?",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "{global}"),
            (4, 10),
            "there is no fact `global`",
            "write `global` alone, without braces",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "{user,ip}"),
            (4, 10),
            "there is no fact `user,ip`",
            "write `{user|ip}` for the first of them that is known, `{user}:{ip}` for both",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "{{ip}}"),
            (4, 10),
            "there is no fact `{ip`",
            "write `{ip}`",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "{header}"),
            (4, 10),
            "there is no fact `header`",
            "write `{header.NAME}`, such as `{header.x-tenant}`",
        ),
        (
            rule_with("    limits: [10/second]").replace("{ip}", "$ip"),
            (4, 10),
            "the key \"$ip\" names no fact",
            "write `\"{ip}\"`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "path: ^/a.*$"),
            (3, 20),
            "does not begin with a slash",
            "for a regular expression write `regex:` instead of `path:`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "path: api/a"),
            (3, 20),
            "does not begin with a slash",
            "write `/api/a`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "path: https://a.example/b"),
            (3, 20),
            "does not begin with a slash",
            "write the path alone, `/b`, and the host beside it: `host: a.example`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "ip: 10.1.2.*"),
            (3, 18),
            "\"10.1.2.*\" is not an address",
            "write `10.1.2.0/24`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "ip: 192.168/16"),
            (3, 18),
            "\"192.168/16\" is not a network",
            "write `192.168.0.0/16`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "ip: \"10.1.2.3:80\""),
            (3, 18),
            "is not an address",
            "write it without the port, `10.1.2.3`",
        ),
        (
            rule_with("    limits: [10/second]").replace("path: /a", "ip: localhost"),
            (3, 18),
            "\"localhost\" is not an address",
            "write `127.0.0.1`, and `::1` for IPv6",
        ),
        (
            format!(
                "tiers: {{ pro: {{ multipler: 3 }} }}\n{}",
                rule_with("    limits: [10/second]\n    tiered: true")
            ),
            (1, 17),
            "a tier has no field `multipler`",
            "did you mean `multiplier`?",
        ),
    ];
    for (text, place, message, hint) in rows {
        let found = diagnostics(&text);
        let [one] = &found[..] else { panic!("{text}\n{found:?}") };
        let span = one.span().expect("a place");
        assert_eq!((span.line, span.column), place, "{text}\n{one}");
        assert!(one.message.contains(message), "{text}\n{one}");
        assert_eq!(one.hint.as_deref(), Some(hint), "{text}\n{one}");
    }
}

/// A rate that is spread over the fields of a limit.
#[test]
fn a_rate_in_several_fields_is_shown_as_one_text() {
    // limits, and the hint for each unknown field
    let rows = [
        ("{ minute: 10, hour: 100 }", &["`limits: [100/minute]`", "`limits: [100/hour]`"][..]),
        ("{ requests: 10, window: 60 }", &["`rate: 100/60s`", "`rate: 100/60s`"]),
    ];
    for (limits, hints) in rows {
        let found = diagnostics(&rule_with(&format!("    limits: {limits}")));
        let unknown = found.iter().filter(|one| one.message.contains("there is no field"));
        let told: Vec<&str> = unknown.filter_map(|one| one.hint.as_deref()).collect();
        assert_eq!(told.len(), hints.len(), "{limits}: {found:?}");
        for (told, hint) in told.iter().zip(hints) {
            assert!(told.contains(hint), "{limits}: {told}");
        }
    }
}

#[test]
fn estimates_are_noted_where_a_hard_bound_may_be_meant() {
    // limits and more, the places and texts of notes
    let rows = [
        (
            "    limits: [5/minute]",
            &[((5, 14), "`5/minute` is an estimate: up to 10 units can pass")][..],
        ),
        (
            "    limits: [20/second, 21/minute, { rate: 20/hour }]",
            &[((5, 14), "`20/second` is an estimate"), ((5, 36), "`20/hour` is an estimate")],
        ),
        (
            "    limits: [100/minute]\n    ban: { after: 3, within: 1m, for: 1h }",
            &[(
                (5, 14),
                "`100/minute` is an estimate, so `ban` may count refusals of callers who keep",
            )],
        ),
        ("    limits: [5/minute burst 5, { rate: 9/hour, algorithm: sliding_window_log }]", &[]),
        ("    limits: [{ rate: 5/minute, algorithm: sliding_window_counter }]", &[]),
        ("    limits: [{ rate: 5/minute, buckets: 6 }, 5/month]", &[]),
        ("    limits: [5/minute]\n    mode: off", &[]),
    ];
    for (lines, want) in rows {
        let text = rule_with(lines);
        let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
        let diagnostics = compiled.diagnostics;
        assert!(compiled.rules.is_some() && diagnostics.is_empty(), "{text}{diagnostics}");
        let notes: Vec<&Diagnostic> = diagnostics.notes().collect();
        assert_eq!(notes.len(), want.len(), "{text}{notes:?}");
        assert_eq!(diagnostics.count(Severity::Note), want.len());
        for (note, (place, message)) in notes.iter().zip(want) {
            let span = note.span().expect("a place");
            assert_eq!((span.line, span.column), *place, "{note}");
            assert!(note.message.contains(message), "{note}");
            let hint = note.hint.as_deref().unwrap_or_default();
            assert!(hint.contains("algorithm: sliding_window_log }`"), "{note}");
        }
    }
}

#[test]
fn no_mistake_hides_another() {
    let rows = [
        (
            rule_with("    limits: [10/secnd, { algorithm: tokenbucket }]"),
            &["needs the field `rate`", "cannot be \"tokenbucket\"", "unit \"secnd\""][..],
        ),
        (
            rule_with("    limits: [{ rate: 10/secnd, algorithm: tokenbucket }]"),
            &["cannot be \"tokenbucket\"", "unit \"secnd\""][..],
        ),
        (
            rule_with(
                "    limits: [{ rate: 10/second, burst: 0 }, { rate: 10, queue: on }, 0/day]",
            ),
            &["`burst`", "has no period", "`queue` is \"on\"", "the rate is zero"][..],
        ),
        (
            rule_with("    limits: [10/second]\n    limits: [1/secnd]\n    tierd: true"),
            &["`limits` is given twice", "no field `tierd`"][..],
        ),
        (
            rule_with(
                "    limits: [{ rate: 10/day, algorithm: fixed_window, align: calender, time_zone: Berlin }]",
            ),
            &["`align` cannot be \"calender\"", "there is no time zone \"Berlin\""][..],
        ),
        (
            rule_with("    limits: [10/secnd]\n    ban: { after: 0, within: 1mn, for: 1h }"),
            &["unit \"secnd\"", "`after` is 0", "unit \"mn\""][..],
        ),
    ];
    for (text, parts) in rows {
        let found = diagnostics(&text);
        for part in parts {
            assert!(found.iter().any(|one| one.message.contains(part)), "{text}{part}\n{found:?}");
        }
        assert_eq!(found.len(), parts.len(), "{text}{found:?}");
    }
}

#[test]
fn a_tab_is_reported_where_it_stands() {
    let text = "rules:\n  - name: api\n    match:\n      path: /a\n      method: [GET,\n        POST]\n    \
                key: '{ip}'\n    limits:\n      - 10/second\n      - rate: 100/minute\n        burst: 20\n    \
                ban:\n      after: 3\n      within: 1m\n      for: 1h\n";
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate().skip(1) {
        let bare = line.trim_start();
        let indent = &line[..line.len() - bare.len()];
        for indent in ["\t", "\t\t", "  \t", &format!("{indent}\t")] {
            let tabbed = format!("{indent}{bare}");
            let mut changed = lines.clone();
            changed[index] = &tabbed;
            let found = diagnostics(&(changed.join("\n") + "\n"));
            // Behind enough spaces YAML takes a tab inside brackets.
            let Some(one) = found.first() else {
                assert_eq!(bare, "POST]", "{tabbed:?}");
                continue;
            };
            assert_eq!(found.len(), 1, "{found:?}");
            let span = one.span().expect("a place");
            let column = indent.find('\t').expect("a tab") + 1;
            assert_eq!((span.line, span.column), (index + 1, column), "{one}");
            assert!(one.message.contains("there is a tab in the indentation"), "{one}");
        }
    }
}

#[test]
fn a_star_in_a_plain_text_is_told_from_a_pattern() {
    let warnings = |condition: &str| {
        let text = rule_with("    limits: [10/second burst 10]")
            .replace("path: /a", &format!("path: /a, {condition}"));
        let found = diagnostics(&text);
        found.iter().map(|one| (one.message.clone(), one.hint.clone())).collect::<Vec<_>>()
    };
    let found = warnings("header: { cookie: \"*a=1*\" }");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "this matches only the text `*a=1*`, with its `*`");
    assert_eq!(found[0].1.as_deref(), Some("a pattern is written `{ glob: \"*a=1*\" }`"));
    assert_eq!(warnings("header: { x-plan: [free, \"pro-*\"] }").len(), 1);
    for fine in [
        "header: { accept: \"*/*\" }",
        "header: { x: { glob: \"a*\" } }",
        "host: \"*.example.com\"",
    ] {
        assert_eq!(warnings(fine), [], "{fine}");
    }
}

#[test]
fn quotes_of_word_processors_are_letters_where_a_text_is_free() {
    let rule = |limits: &str, rest: &str| {
        format!("rules:\n  - {{ name: api, key: '{{ip}}', limits: {limits} }}{rest}\n")
    };
    for body in ["« Trop de requêtes »", "“Too many”", "„Zu viele“", "’t is te veel", "“Trop", "«»"]
    {
        let text = rule("[5/minute], refusal: { body: BODY }", "").replace("BODY", body);
        let found = diagnostics(&text);
        assert!(found.is_empty(), "{body}: {found:?}");
    }
    // A rule, the line and column of the mistake, and part of the message
    let bracket = "this bracket is closed by one of another kind";
    let quote = "is not a quote that YAML knows";
    let rows = [
        (rule("[5/minute }", "   # the caller’s limit"), (2, 39), bracket),
        (rule("[5/minute }", "   # “{user}”"), (2, 39), bracket),
        (rule("[{ rate: 5/minute, name: “a” ]", ""), (2, 40), bracket),
        (rule("[{ rate: 5/minute, name: '“{a}”' ]", ""), (2, 40), bracket),
        (rule("[“5/minute”]", ""), (2, 40), quote),
        (rule("[{ rate: “5/minute” }]", ""), (2, 48), quote),
        (rule("[5/minute]", "").replace("name: api", "name: “api”"), (2, 13), quote),
        (rule("[5/minute]", "").replace("name:", "“name”:"), (2, 7), quote),
        (rule("[5/minute]", "").replace("'{ip}'", "“{ip}:{path}”"), (2, 23), quote),
    ];
    for (text, (line, column), message) in rows {
        let found = diagnostics(&text);
        let [one] = &found[..] else { panic!("{text}: {found:?}") };
        let span = one.span().expect("a place");
        assert!(one.message.contains(message), "{text}: {one}");
        assert_eq!((span.line, span.column), (line, column), "{text}: {one}");
    }
}
