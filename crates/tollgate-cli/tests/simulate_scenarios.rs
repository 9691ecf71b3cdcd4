//! The command `tollgate simulate --scenario`: its answers are the worked examples of the algorithms, and its picture
//! shows those answers.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::command::{file, run};

const DOCUMENTS: &str = include_str!("../../tollgate/tests/data/documents.jsonl");

/// A scenario and the prefix of its worked examples.
const WORKED: [(&str, &str); 2] = [("visual", "004-visual-"), ("timeline", "002-visual-")];

/// The algorithm of a worked example, and whether it is a queue.
fn algorithm(example: &Value) -> (&str, bool) {
    let args = example["args"].as_str().expect("arguments");
    let words: Vec<&str> = args.split(' ').collect();
    let at = words.iter().position(|word| *word == "--algorithm").expect("an algorithm");
    (words[at + 1], words.contains(&"--queue"))
}

/// The answers of a scenario with one algorithm.
fn answers_of(answers: &[Value], (algorithm, queue): (&str, bool)) -> Vec<Value> {
    let is_wanted =
        |answer: &&Value| answer["algorithm"] == algorithm && answer["queue"] == Value::Bool(queue);
    answers.iter().filter(is_wanted).cloned().collect()
}

#[test]
fn the_worked_examples_are_scenarios() {
    for (scenario, prefix) in WORKED {
        let answers =
            run(["simulate", "--scenario", scenario, "--output", "jsonl"]).answers(scenario);
        let mut found = BTreeSet::new();
        for line in DOCUMENTS.lines() {
            let example: Value = serde_json::from_str(line).expect("one JSON object per line");
            let id = example["id"].as_str().expect("an id");
            if !id.starts_with(prefix) {
                continue;
            }
            let answers = answers_of(&answers, algorithm(&example));
            let ok: String = answers
                .iter()
                .map(|answer| if answer["allowed"] == true { '1' } else { '0' })
                .collect();
            assert_eq!(ok, example["ok"], "{id}");
            for (index, answer) in answers.iter().enumerate() {
                let at_us = example["at_s"][index].as_u64().expect("whole seconds") * 1_000_000;
                assert_eq!(answer["at"], at_us, "{id}, request {index}");
                let retry = example["retry_us"].get(index.to_string()).cloned();
                assert_eq!(answer["retry_after_us"], retry.unwrap_or(0.into()), "{id}, {index}");
                for column in ["remaining", "delay_us"] {
                    let expected = example.get(column).map(|column| &column[index]);
                    assert!(expected.is_none_or(|value| *value == answer[column]), "{id}, {index}");
                }
            }
            found.insert(algorithm(&example).0.to_owned() + &algorithm(&example).1.to_string());
        }
        assert!(found.len() >= 5, "{scenario} has worked examples: {found:?}");
    }
}

#[test]
fn the_picture_shows_the_answers() {
    for (scenario, _) in WORKED {
        let path = file(&format!("{scenario}.svg"), "");
        let path = path.to_str().expect("text");
        let drawn = run(["simulate", "--scenario", scenario, "--svg", path]);
        assert_eq!((drawn.code, &*drawn.stderr), (Some(0), ""), "{scenario}");
        let again = run(["simulate", "--scenario", scenario, "--svg", path, "--output", "jsonl"]);
        let picture = fs::read_to_string(path).expect("a picture");
        // A circle for each request that is admitted at once, a cross for each that is refused, besides the legend.
        let answers = again.answers(scenario);
        let count =
            |fits: &dyn Fn(&Value) -> bool| answers.iter().filter(|answer| fits(answer)).count();
        let at_once = count(&|answer| answer["allowed"] == true && answer["delay_us"] == 0);
        let refused = count(&|answer| answer["allowed"] == false);
        assert_eq!(
            picture.matches("<circle class=\"admitted\"").count(),
            at_once + 1,
            "{scenario}"
        );
        assert_eq!(picture.matches("class=\"x refused\"").count(), refused + 1, "{scenario}");
        for algorithm in ["token_bucket", "leaky_bucket, queue", "sliding_window_counter"] {
            let heading = format!("\n{algorithm}\n");
            assert!(drawn.stdout.contains(&heading), "{scenario}: {algorithm}");
            assert!(picture.contains(&format!(">{algorithm}</text>")), "{scenario}: {algorithm}");
        }
    }
}

#[test]
fn a_scenario_stands_alone() {
    let wrong = run(["simulate", "--scenario", "visual", "--rate", "1/s"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    let unknown = run(["simulate", "--scenario", "earthquake"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("boundary"), "{}", unknown.stderr);
}

/// The cells of a row of a table, without the name.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name));
    line.expect(name).split_whitespace().collect()
}

#[test]
fn a_table_has_what_was_measured() {
    let ran = run(["simulate", "--scenario", "visual", "--output", "table"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let (traffic, limits) = ran.stdout.split_once("measured in this run").expect("two tables");
    assert_eq!(row(traffic, "fixed_window"), ["7", "1", "-", "-", "100.0", "%", "4"]);
    assert_eq!(row(traffic, "leaky_bucket, queue"), ["8", "0", "7", "3", "s", "114.2", "%", "4"]);
    // A burst, and the worst ten seconds. Two of four come back while the adversary waits for its first.
    let extremes = [
        ("token_bucket", ["4", "7"]),
        ("leaky_bucket, queue", ["1", "4"]),
        ("fixed_window", ["4", "8"]),
        ("sliding_window_log", ["4", "4"]),
        ("sliding_window_counter", ["4", "8"]),
    ];
    for (name, extremes) in extremes {
        let cells = row(limits, name);
        assert_eq!(cells[..2], extremes, "{name}");
        let [bytes, ns] = [cells[2], cells[3]].map(|cell| cell.parse::<u64>().expect("a number"));
        let has_log = name == "sliding_window_log";
        assert!(
            if has_log { (60..200).contains(&bytes) } else { (32..=40).contains(&bytes) },
            "{name}: {bytes}"
        );
        assert!(ns > 0, "{name}");
    }
}

#[test]
fn a_recorded_trace_is_compared_as_well() {
    let trace: String = (0..40)
        .map(|index| {
            format!(
                "{{\"at\":{},\"key\":\"k{}\"}}\n",
                1_790_000_000_000_000_u64 + index * 100_000,
                index % 2
            )
        })
        .collect();
    let trace = file("recorded.jsonl", trace);
    let picture = file("recorded.svg", "");
    let [trace, picture] = [&trace, &picture].map(|path| path.to_str().expect("text"));
    let base = ["simulate", "--rate", "2/1s", "--trace", trace];
    let ran = run(base.into_iter().chain(["--algorithm", "all", "--svg", picture]));
    let answers = ran.answers("all algorithms");
    assert_eq!(answers.len(), 40 * 6);
    let one = run(base.into_iter().chain(["--algorithm", "fixed_window"])).answers("one algorithm");
    for (of_all, alone) in answers_of(&answers, ("fixed_window", false)).iter().zip(&one) {
        for (name, value) in alone.as_object().expect("an answer") {
            assert_eq!(&of_all[name], value);
        }
    }
    let drawn = fs::read_to_string(picture).expect("a picture");
    // Times of a trace with dates are shown from its first request on.
    assert!(drawn.contains("40 requests by 2 callers") && drawn.contains(">1 s</text>"));
    let alone = run(base.into_iter().chain(["--output", "chart"])).stdout;
    assert!(alone.contains("sliding_window_counter") && !alone.contains("token_bucket"), "{alone}");
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let empty = file("nothing.jsonl", "");
    let empty = empty.to_str().expect("text");
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--trace", empty, "--output", "chart"], 1, "no requests"),
        (&["--trace", empty, "--algorithm", "all", "--queue"], 1, "leave out --queue"),
        (
            &["--trace", empty, "--output", "table", "--store", "redis://127.0.0.1:1"],
            2,
            "leave out --store",
        ),
        (&["--trace", "/nowhere", "--output", "chart"], 1, "/nowhere"),
    ];
    for (options, code, text) in cases {
        let ran = run(["simulate", "--rate", "2/1s"].into_iter().chain(options.iter().copied()));
        assert_eq!(ran.code, Some(code), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(text), "{options:?}: {}", ran.stderr);
    }
    let trace = file("one.jsonl", "{\"at\":0}\n");
    let trace = trace.to_str().expect("text");
    let ran = run(["simulate", "--rate", "2/1s", "--trace", trace, "--svg", "/nowhere/a.svg"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("cannot write /nowhere/a.svg"), "{}", ran.stderr);
}

#[test]
fn rules_are_drawn_by_their_keys() {
    let rules = "# Two a second.\nrules:\n  - { name: api, key: '{user}', limits: [2/second] }\n";
    let rules = file("keys-drawn.yaml", rules);
    // Six callers, of whom the fourth sends the most.
    let line = |index: u64, user: u64| {
        format!("{{\"at\":{},\"facts\":{{\"user\":\"u{user}\"}}}}\n", index * 100_000)
    };
    let trace: String =
        (0..30).map(|index| line(index, [0, 1, 2, 3, 4, 5, 3, 3, 3][index as usize % 9])).collect();
    let trace = file("keys-drawn.jsonl", trace);
    let [rules, trace] = [&rules, &trace].map(|path| path.to_str().expect("text"));
    let base = ["simulate", "--rules", rules, "--trace", trace];
    let chart = run(base.into_iter().chain(["--output", "chart", "--title", "Six callers"]));
    assert_eq!((chart.code, &*chart.stderr), (Some(0), ""));
    assert!(chart.stdout.starts_with("Six callers\nTwo a second.\n"), "{}", chart.stdout);
    assert!(chart.stdout.contains("30 requests"), "{}", chart.stdout);
    // Four keys with 12, 4, 4 and 4 requests have a panel; two keys with three each have none.
    assert!(
        chart.stdout.contains("\nuser=u3 · ") && chart.stdout.contains("6 requests of other keys"),
        "{}",
        chart.stdout
    );
    assert_eq!(chart.stdout.matches("\nuser=u").count(), 4);

    // The picture comes beside the same answers.
    let picture = file("keys-drawn.svg", "");
    let picture = picture.to_str().expect("text");
    let plain = run(base).answers("plain");
    let drawn = run(base.into_iter().chain(["--svg", picture])).answers("drawn");
    assert_eq!(plain, drawn);
    let of_u3 = |allowed: bool| {
        let is_u3 = |index: usize| [3, 6, 7, 8].contains(&(index % 9));
        (0..30).filter(|&index| is_u3(index) && plain[index]["allowed"] == allowed).count()
    };
    let counts = format!("{} admitted, {} refused", of_u3(true), of_u3(false));
    assert!(of_u3(false) > 0, "somebody is refused");
    let picture = fs::read_to_string(picture).expect("a picture");
    assert!(picture.contains(&counts), "{counts}");
}

#[test]
fn rules_that_wait_for_each_other_are_not_drawn() {
    let rules = "rules: [{ name: jobs, key: '{user}', limits: [2/second], concurrency: 1 }]";
    let rules = file("waits-drawn.yaml", rules);
    let trace = file("waits-drawn.jsonl", "{\"at\":0,\"facts\":{\"user\":\"a\"}}\n");
    let [rules, trace] = [&rules, &trace].map(|path| path.to_str().expect("text"));
    let ran = run(["simulate", "--rules", rules, "--trace", trace, "--output", "chart"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(2), ""));
    assert!(ran.stderr.contains("are not drawn\nhint: leave out"), "{}", ran.stderr);
}

#[test]
fn a_trace_that_goes_back_in_time_is_drawn_from_left_to_right() {
    let rules = "rules: [{ name: a, key: '{user}', limits: [{ rate: 9/minute, algorithm: fixed_window }] }]";
    let line = |second: u64| format!("{{\"at\":{second}000000,\"facts\":{{\"user\":\"u\"}}}}\n");
    let trace = file("back.jsonl", [10, 5, 20, 1, 30].map(line).concat());
    let (rules, picture) = (file("back.yaml", rules), file("back.svg", ""));
    let [rules, trace, picture] =
        [&rules, &trace, &picture].map(|path| path.to_str().expect("text"));
    run(["simulate", "--rules", rules, "--trace", trace, "--svg", picture]).answers("drawn");
    let svg = fs::read_to_string(picture).expect("a picture");
    let path = svg.split("class=\"l level\" d=\"M").nth(2).and_then(|rest| rest.split('"').next());
    let places = path.expect("a line besides that of the legend").split('L');
    let across = places.map(|place| place.split(' ').next().and_then(|x| x.parse().ok()));
    let across: Vec<f64> = across.map(|x| x.expect("a number")).collect();
    assert!(across.len() > 3 && across.is_sorted(), "{across:?}");
}
